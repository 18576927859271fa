// The names of the orders.
#include <array>
#include <string>

#include "schedule/names.h"
#include "schedule/orders/orders.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

using Builder = HeadOrder (*)(const order::Tiles&, int32_t, order::Group);

constexpr std::array kInfos{
    OrderInfo{"ascending", "KV tiles left to right, query tiles top down (FlashAttention-3)",
              Pass::backward, Level::invariant},
    OrderInfo{"descending", "KV tiles left to right, query tiles bottom up (DASH section 3.3)",
              Pass::backward, Level::invariant},
    OrderInfo{"right_to_left", "KV tiles right to left, query tiles top down (SPT)", Pass::backward,
              Level::invariant},
    OrderInfo{"chunked_descending", "chunks of 8 KV tiles left to right, right to left inside",
              Pass::backward, Level::invariant},
    OrderInfo{"shift", "query tiles rotated over all KV tiles of a head (DASH figure 6)",
              Pass::backward, Level::invariant},
    OrderInfo{"symmetric_shift", "KV tiles i and n-1-i in one task, rotated (DASH figure 7)",
              Pass::backward, Level::invariant},
    OrderInfo{"chunked_shift", "shift inside chunks of 8 KV tiles, chunk after chunk",
              Pass::backward, Level::invariant},
    OrderInfo{"chunked_symmetric_shift", "symmetric shift inside chunks of 8 KV tiles",
              Pass::backward, Level::invariant},
    OrderInfo{"ascending", "KV tiles enter the softmax left to right", Pass::forward,
              Level::invariant},
    OrderInfo{"descending", "KV tiles enter the softmax right to left, the diagonal first",
              Pass::forward, Level::invariant},
};

constexpr std::array<Builder, kInfos.size()> kBuilders{
    order::ascending,
    order::descending,
    order::right_to_left,
    order::chunked_descending,
    order::shift,
    order::symmetric_shift,
    order::chunked_shift,
    order::chunked_symmetric_shift,
    order::forward_ascending,
    order::forward_descending,
};

constexpr std::string_view kSplitSuffix = "/split";

}  // namespace

std::span<const OrderInfo> orders() { return kInfos; }

std::shared_ptr<const HeadOrder> make_order(Pass pass, std::string_view name,
                                            std::shared_ptr<const TileMap> tiles, int32_t group) {
  std::string_view base = name;
  const bool split = base.ends_with(kSplitSuffix);
  if (split) base.remove_suffix(kSplitSuffix.size());
  std::vector<std::string> known;
  for (size_t k = 0; k < kInfos.size(); ++k) {
    if (kInfos[k].pass != pass) continue;
    known.emplace_back(kInfos[k].name);
    if (base != kInfos[k].name) continue;
    auto order = kBuilders[k](tiles, group, split ? order::Group::split : order::Group::walked);
    order.name = name;
    return std::make_shared<const HeadOrder>(std::move(order));
  }
  throw Error(ErrorCode::invalid_argument, "schedule.make_order", "no such order",
              {"order", std::string(name), "one of orders(), with or without /split",
               nearest_name(base, known)});
}

}  // namespace verbatim
