// The names of the orders.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>

#include "contract/rules.h"
#include "core/names.h"
#include "schedule/orders/orders.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

using Builder = HeadOrder (*)(const order::Tiles&, int32_t group, order::Parts parts);

constexpr std::array kInfos{
    OrderInfo{"ascending", "KV tiles left to right, query tiles top down (FlashAttention-3)",
              Pass::backward, Level::invariant},
    OrderInfo{"descending", "KV tiles left to right, query tiles bottom up (DASH section 3.3)",
              Pass::backward, Level::invariant},
    OrderInfo{"right_to_left", "KV tiles right to left, query tiles top down (SPT)", Pass::backward,
              Level::invariant},
    OrderInfo{"right_to_left_tail", "right_to_left, but the heads that fill the last wave descend",
              Pass::backward, Level::gpu_to_gpu},
    OrderInfo{"chunked_descending", "chunks of 8 KV tiles left to right, right to left inside",
              Pass::backward, Level::invariant},
    OrderInfo{"shift",
              "query tiles rotated over the KV tiles of a head, at most 64 (DASH figure 6)",
              Pass::backward, Level::invariant},
    OrderInfo{"symmetric_shift", "KV tiles i and n-1-i in one task, rotated (DASH figure 7)",
              Pass::backward, Level::invariant},
    OrderInfo{"chunked_shift", "shift inside chunks of 8 KV tiles, chunk after chunk",
              Pass::backward, Level::invariant},
    OrderInfo{"chunked_symmetric_shift", "symmetric shift inside chunks of 8 KV tiles",
              Pass::backward, Level::invariant},
    OrderInfo{"matched", "KV tiles in tasks of equal work, each at another row in every slot",
              Pass::backward, Level::invariant},
    OrderInfo{"none", "the chains of auto, added as they come: what determinism costs",
              Pass::backward, Level::not_guaranteed},
    OrderInfo{"ascending", "KV tiles enter the softmax left to right", Pass::forward,
              Level::invariant},
    OrderInfo{"descending", "KV tiles enter the softmax right to left, the diagonal first",
              Pass::forward, Level::invariant},
};

/// What `auto` goes by in one sequence. Its tiles without padding are copied where there is some.
std::string auto_name(Pass pass, const TileMap& tiles, int32_t group, int64_t visits) {
  const Sequence& s = tiles.sequences.front();
  const bool whole =
      s.core == Interval{0, tiles.q_edges.back()} && s.k == Interval{0, tiles.kv_edges.back()};
  const auto name_of = [&](const TileMap& core) {
    return contract::auto_order(pass, core, group, visits);
  };
  return whole ? name_of(tiles) : name_of(tiles.core());
}

/// The chains that `auto` would run in order; a plan of level not_guaranteed takes no turns. `auto`
/// says whether to split the group.
HeadOrder unordered(const order::Tiles& tiles, int32_t group, order::Parts) {
  const std::string name = auto_name(Pass::backward, *tiles, group, 0);
  return *make_order(Pass::backward, name, tiles, group);
}

// As kInfos.
constexpr std::array<Builder, kInfos.size()> kBuilders{
    order::ascending,
    order::descending,
    order::right_to_left,
    order::right_to_left,
    order::chunked_descending,
    order::shift,
    order::symmetric_shift,
    order::chunked_shift,
    order::chunked_symmetric_shift,
    order::matched,
    unordered,
    order::forward_ascending,
    order::forward_descending,
};

std::string_view without_suffix(std::string_view name) { return name.substr(0, name.find('/')); }

/// Reads the N of "<before>N", at least `least`, or nothing.
std::optional<int32_t> number_after(std::string_view before, std::string_view text, int32_t least) {
  if (!text.starts_with(before)) return std::nullopt;
  int32_t number = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + before.size(), end, number);
  if (read != std::from_chars_result{end, std::errc()} || number < least) return std::nullopt;
  return number;
}

/// What the suffixes ask for: none kWalked, "/split" kEach, "/split:N" and "/even:N" N, a last
/// "/rows:N" chunks of rows; nothing if there are others.
std::optional<order::Parts> parts_asked(const OrderInfo& info, std::string_view name) {
  const bool columns = order::takes_columns(info);
  std::string_view suffix = name.substr(without_suffix(name).size());
  order::Parts parts;
  if (const size_t last = suffix.rfind("/rows:"); last != std::string_view::npos && columns) {
    const auto rows = number_after("/rows:", suffix.substr(last), 1);
    if (!rows) return std::nullopt;
    parts.rows = *rows;
    suffix = suffix.substr(0, last);
  }
  if (suffix.empty()) return parts;
  if (suffix == "/split") {
    parts.count = order::kEach.count;
    return parts;
  }
  if (info.pass == Pass::forward) return std::nullopt;
  parts.even = columns && suffix.starts_with("/even:");
  const auto count = number_after(parts.even ? "/even:" : "/split:", suffix, 2);
  if (!count) return std::nullopt;
  parts.count = *count;
  return parts;
}

}  // namespace

bool order::takes_columns(const OrderInfo& info) {
  constexpr std::array<Builder, 4> kColumns{order::ascending, order::descending,
                                            order::right_to_left, order::chunked_descending};
  const Builder builder = kBuilders[&info - kInfos.data()];
  return std::ranges::find(kColumns, builder) != kColumns.end();
}

const OrderInfo& order::find(Pass pass, std::string_view name) {
  for (const OrderInfo& info : kInfos)
    if (info.pass == pass && without_suffix(name) == info.name && parts_asked(info, name))
      return info;
  std::vector<std::string> known{"auto"}, of_columns;
  for (const OrderInfo& info : kInfos) {
    if (info.pass != pass) continue;
    known.emplace_back(info.name);
    if (takes_columns(info)) of_columns.emplace_back(info.name);
  }
  throw Error(
      ErrorCode::invalid_argument, "schedule.make_order", "no such order",
      {"order", std::string(name),
       fmt::format("{}, with or without /split{}", fmt::join(known, ", "),
                   pass == Pass::backward
                       ? fmt::format(" or /split:N; {} also with /even:N, N >= 2, and then /rows:N",
                                     fmt::join(of_columns, ", "))
                       : ""),
       nearest_name(without_suffix(name), known)});
}

std::string order::last_heads(std::string_view name) {
  if (without_suffix(name) != "right_to_left_tail") return "";
  return "descending" + std::string(name.substr(without_suffix(name).size()));
}

std::span<const OrderInfo> orders() { return kInfos; }

std::shared_ptr<const HeadOrder> make_order(Pass pass, std::string_view name,
                                            std::shared_ptr<const TileMap> tiles, int32_t group,
                                            int64_t visits) {
  if (group < 1)
    throw Error(ErrorCode::invalid_argument, "order", "a group has query heads",
                {"group", fmt::to_string(group), "1 or more", "1"});
  return std::make_shared<const HeadOrder>(
      order::per_sequence(tiles, [&](const order::Tiles& part) {
        const std::string own =
            name == "auto" ? auto_name(pass, *part, group, visits) : std::string(name);
        const OrderInfo& info = order::find(pass, own);
        const size_t index = &info - kInfos.data();
        const bool is_padding = part->columns.empty();  // whose zeros need no second chain
        HeadOrder order =
            kBuilders[index](part, group, is_padding ? order::kWalked : *parts_asked(info, own));
        order.name = own;
        return order;
      }));
}

}  // namespace verbatim
