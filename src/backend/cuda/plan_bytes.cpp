#include "backend/cuda/plan_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/threads.h"
#include "mask/slice.h"

namespace verbatim::cuda {
namespace {

constexpr int64_t kAligned = 16;
constexpr int64_t kWorthThreads = int64_t{1} << 20;  // bytes; fewer are there before threads wake
constexpr size_t kRunsOfPart = size_t{1} << 16;
constexpr size_t kWorthSpreading = size_t{1} << 15;  // runs; fewer are copied one by one

template <class T>
const T* at(const void* base, int64_t offset) {
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(base) + offset);
}

/// OrderView::q_used or kv_used of tiles with these edges, from what each slice shows of the axis.
std::vector<int32_t> used(const std::vector<int64_t>& edges, const std::vector<Interval>& shown) {
  std::vector<int32_t> used(edges.size() - 1);
  for (const auto& [begin, end] : shown) {
    const auto after = std::ranges::upper_bound(edges, begin);
    for (size_t t = after - edges.begin() - 1; t < used.size() && edges[t] < end; ++t) {
      used[t] = std::max(used[t], static_cast<int32_t>(std::min(edges[t + 1], end) - edges[t]));
    }
  }
  return used;
}

}  // namespace

PlanBytes::PlanBytes(const Plan& plan, const LocalPiece* piece) : plan_(plan), piece_(piece) {
  DropoutOrigins dropout(plan);
  if (piece) dropout.first_sequence = piece->first_sequence;
  for (size_t i = 0; i < plan.orders.size(); ++i)
    orders_.push_back(
        add(*plan.orders[i], std::move(dropout.of_order[i]), piece ? &piece->heads[i] : nullptr));
  if (piece) turns_ = add(piece->first_addends);
  heads_ = add(plan.order_of_head);
  sequences_ = add(std::move(dropout.first_sequence));
  placed_ = add(plan.placement.tasks.list());
  units_ = add(plan.placement.worker_begin);
  views_ = reserve(static_cast<int64_t>(plan.orders.size() * sizeof(OrderView)));
  lists_ = reserve(static_cast<int64_t>(spreads_.size() * sizeof(RunSpread)));
  copied_ = size_;
  for (Order& order : orders_)
    if (order.spread >= 0) {
      Spread& spread = spreads_[static_cast<size_t>(order.spread)];
      order.runs = spread.to = reserve(spread.runs * int64_t{sizeof(Run)});
    }
}

int64_t PlanBytes::reserve(int64_t bytes) {
  const int64_t begin = (size_ + kAligned - 1) / kAligned * kAligned;
  size_ = begin + bytes;
  return begin;
}

template <class T>
int64_t PlanBytes::add(const std::vector<T>& values, std::shared_ptr<const void> kept) {
  static_assert(std::is_trivially_copyable_v<T>);
  const int64_t begin = reserve(static_cast<int64_t>(values.size() * sizeof(T)));
  if (!values.empty())
    parts_.push_back([begin, &values, kept = std::move(kept)](std::byte* all) {
      std::memcpy(all + begin, values.data(), values.size() * sizeof(T));
    });
  return begin;
}

template <class T>
int64_t PlanBytes::add(std::vector<T>&& values) {
  const auto kept = std::make_shared<const std::vector<T>>(std::move(values));
  return add(*kept, kept);
}

int64_t PlanBytes::add(const Runs& runs) {
  const int64_t begin = reserve(static_cast<int64_t>(runs.size() * sizeof(Run)));
  for (size_t first = 0; first < runs.size(); first += kRunsOfPart)
    parts_.push_back([begin, first, &runs](std::byte* all) {
      auto* to = reinterpret_cast<Run*>(all + begin) + first;
      runs.for_each_part(first, std::min(first + kRunsOfPart, runs.size()),
                         [&](int32_t q_head, RunView part) {
                           for (Run run : part) {
                             run.q_head = q_head;
                             *to++ = run;
                           }
                         });
    });
  return begin;
}

PlanBytes::Spread PlanBytes::add_spread(const Runs& runs) {
  std::vector<uint64_t> words;
  std::vector<Run> wide;
  std::vector<RunPart> parts;
  int64_t run = 0;
  size_t near = 0;
  runs.for_each_repeat(0, runs.size(), near, [&](int32_t q_head, int32_t heads, RunView part) {
    const auto size = static_cast<int32_t>(part.size());
    parts.push_back({run, std::ssize(words), size, q_head});
    run += int64_t{size} * heads;
    for (const Run& own : part) {
      if (RunWord::fits(own)) {
        words.push_back(RunWord::pack(own));
      } else {
        words.push_back(RunWord::kWide | wide.size());
        wide.push_back(own);
      }
    }
  });
  const auto count = static_cast<int32_t>(parts.size());
  const int64_t at = add(std::move(words)), wide_at = add(std::move(wide));
  return {at, wide_at, add(std::move(parts)), -1, run, count};
}

PlanBytes::Order PlanBytes::add(const HeadOrder& order, std::vector<DropoutOrigin> dropout_origins,
                                const LocalHead* piece) {
  const TileMap& tiles = *order.tiles;
  std::vector<Interval> queries, keys;
  for (const Slice& slice : tiles.slices) {
    const auto shown = tighten(slice);
    if (!shown) continue;
    queries.push_back({shown->q_begin, shown->q_end});
    keys.push_back({shown->k_begin, shown->k_end});
  }
  const int64_t q_edges = add(tiles.q_edges), kv_edges = add(tiles.kv_edges);
  int32_t spread = -1;
  if (order.runs.size() >= kWorthSpreading) {
    spread = static_cast<int32_t>(spreads_.size());
    spreads_.push_back(add_spread(order.runs));
  }
  return {.runs = spread < 0 ? add(order.runs) : -1,
          .chains = add(order.chains),
          .tasks = add(order.tasks),
          .row_addends = add(order.row_addends),
          .q_edges = q_edges,
          .kv_edges = kv_edges,
          .q_used = add(used(tiles.q_edges, queries)),
          .kv_used = add(used(tiles.kv_edges, keys)),
          .slice_ids = add(tiles.slice_ids),
          .slices = add(tiles.slices),
          .dropout_origins = add(std::move(dropout_origins)),
          .q_rows = piece ? add(piece->q_rows) : q_edges,
          .kv_rows = piece ? add(piece->kv_rows) : kv_edges,
          .carries = piece ? add(piece->carries) : -1,
          .q_tiles = tiles.q_tiles(),
          .kv_tiles = tiles.kv_tiles(),
          .spread = spread};
}

RunSpread PlanBytes::spread_of(const Spread& o, const void* memory) const {
  return {.words = at<uint64_t>(memory, o.words),
          .wide = at<Run>(memory, o.wide),
          .parts = at<RunPart>(memory, o.parts),
          .to = const_cast<Run*>(at<Run>(memory, o.to)),
          .runs = o.runs,
          .part_count = o.part_count};
}

PlanBytes::Spreads PlanBytes::spreads(const void* memory) const {
  int64_t most = 0;
  for (const Spread& spread : spreads_) most = std::max(most, spread.runs);
  return {at<RunSpread>(memory, lists_), static_cast<int32_t>(spreads_.size()), most};
}

OrderView PlanBytes::view_of(const Order& o, const void* memory) const {
  return {.runs = at<Run>(memory, o.runs),
          .chains = at<Chain>(memory, o.chains),
          .tasks = at<Task>(memory, o.tasks),
          .row_addends = at<int32_t>(memory, o.row_addends),
          .q_edges = at<int64_t>(memory, o.q_edges),
          .kv_edges = at<int64_t>(memory, o.kv_edges),
          .q_rows = at<int64_t>(memory, o.q_rows),
          .kv_rows = at<int64_t>(memory, o.kv_rows),
          .carries = o.carries < 0 ? nullptr : at<Carry>(memory, o.carries),
          .q_used = at<int32_t>(memory, o.q_used),
          .kv_used = at<int32_t>(memory, o.kv_used),
          .slice_ids = at<int32_t>(memory, o.slice_ids),
          .slices = at<Slice>(memory, o.slices),
          .dropout_origins = at<DropoutOrigin>(memory, o.dropout_origins),
          .q_tiles = o.q_tiles,
          .kv_tiles = o.kv_tiles};
}

PlanView PlanBytes::view(const void* memory) const {
  const Placement& placement = plan_.placement;
  const bool queue = placement.queue;
  return {.orders = at<OrderView>(memory, views_),
          .order_of_head = at<int32_t>(memory, heads_),
          .first_sequence = at<int64_t>(memory, sequences_),
          .placed = at<PlacedTask>(memory, placed_),
          .unit_begin = queue ? nullptr : at<int32_t>(memory, units_),
          .unit_count = static_cast<int32_t>(queue ? placement.tasks.size()
                                                   : placement.worker_begin.size() - 1),
          .group = static_cast<int32_t>(plan_.problem.group()),
          .kv_heads = static_cast<int32_t>(plan_.problem.kv_heads),
          .first_q_head = piece_ ? static_cast<int32_t>(piece_->q_head) : 0};
}

const int32_t* PlanBytes::first_turns(const void* memory) const {
  return turns_ < 0 ? nullptr : at<int32_t>(memory, turns_);
}

std::unique_ptr<std::byte[]> PlanBytes::make(const void* memory) const {
  auto all = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(copied_));
  for_each_in_parallel(copied_ < kWorthThreads ? 1 : core_count(), std::ssize(parts_),
                       [&](int64_t part) { parts_[static_cast<size_t>(part)](all.get()); });
  for (size_t i = 0; i < orders_.size(); ++i) {
    const OrderView view = view_of(orders_[i], memory);
    std::memcpy(all.get() + views_ + i * sizeof(OrderView), &view, sizeof(OrderView));
  }
  for (size_t i = 0; i < spreads_.size(); ++i) {
    const RunSpread list = spread_of(spreads_[i], memory);
    std::memcpy(all.get() + lists_ + i * sizeof(RunSpread), &list, sizeof(RunSpread));
  }
  return all;
}

}  // namespace verbatim::cuda
