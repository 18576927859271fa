#include "backend/cuda/plan_bytes.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "core/threads.h"
#include "mask/slice.h"

namespace verbatim::cuda {
namespace {

constexpr int64_t kAligned = 16;
constexpr int64_t kWorthThreads = int64_t{1} << 20;  // bytes; fewer are there before threads wake

template <class T>
const T* at(const void* base, int64_t offset) {
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(base) + offset);
}

/// used[t] = positions of tile t up to the last that a slice shows.
void write_used(const std::vector<Slice>& slices, const std::vector<int64_t>& edges,
                int64_t Slice::*begin, int64_t Slice::*end, std::span<int32_t> used) {
  std::ranges::fill(used, 0);
  size_t open = used.size();  // tiles of which not all is shown yet
  size_t first = 0;           // where a slice begins: mostly in the tile of the one before, or next
  Interval latest{0, 0};
  for (const Slice& slice : slices) {
    if (open == 0) return;
    if (Interval{slice.*begin, slice.*end} == latest) continue;  // side by side with it
    const auto shown = tighten(slice);
    if (!shown) continue;
    if (is_rectangle(slice)) latest = {slice.*begin, slice.*end};
    const int64_t from = (*shown).*begin, to = (*shown).*end;
    if (from < edges[first]) first = 0;
    if (from >= edges[first + 1] && from >= edges[++first + 1])
      first = std::ranges::upper_bound(edges, from) - edges.begin() - 1;
    for (size_t t = first; t < used.size() && edges[t] < to; ++t) {
      const int64_t all = edges[t + 1] - edges[t];
      if (used[t] == all) continue;
      used[t] = std::max(used[t], static_cast<int32_t>(std::min(to - edges[t], all)));
      if (used[t] == all) --open;
    }
  }
}

}  // namespace

PlanBytes::PlanBytes(const Plan& plan, const LocalPiece* piece, size_t worth_spreading)
    : plan_(plan), piece_(piece) {
  size_t runs = 0;
  for (const auto& order : plan.orders) runs += order->runs.size();
  spread_ = runs >= worth_spreading;
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
  lists_ = spread_ ? reserve(static_cast<int64_t>(plan.orders.size() * sizeof(RunSpread))) : -1;
  copied_ = size_;
  if (!spread_) return;
  for (Order& order : orders_) order.runs = reserve(order.run_count * int64_t{sizeof(Run)});
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
  parts_.push_back([begin, &runs](std::byte* all) {
    auto* to = reinterpret_cast<Run*>(all + begin);
    runs.for_each_part(0, runs.size(), [&](int32_t q_head, RunView part) {
      for (Run run : part) {
        run.q_head = q_head;
        *to++ = run;
      }
    });
  });
  return begin;
}

int64_t PlanBytes::add_used(const std::vector<Slice>& slices, const std::vector<int64_t>& edges,
                            int64_t Slice::*begin, int64_t Slice::*end) {
  const size_t tiles = edges.size() - 1;
  const int64_t at = reserve(static_cast<int64_t>(tiles * sizeof(int32_t)));
  parts_.push_back([=, &slices, &edges](std::byte* all) {
    write_used(slices, edges, begin, end, {reinterpret_cast<int32_t*>(all + at), tiles});
  });
  return at;
}

PlanBytes::Order PlanBytes::add(const HeadOrder& order, std::vector<DropoutOrigin> dropout_origins,
                                const LocalHead* piece) {
  const TileMap& tiles = *order.tiles;
  const Runs& runs = order.runs;
  const int64_t q_edges = add(tiles.q_edges), kv_edges = add(tiles.kv_edges);
  return {.runs = spread_ ? -1 : add(runs),
          .words = spread_ ? add(runs.kept().words()) : -1,
          .wide = spread_ ? add(runs.kept().wide()) : -1,
          .stretches = spread_ ? add(runs.stretches()) : -1,
          .chains = add(order.chains),
          .tasks = add(order.tasks),
          .row_addends = add(order.row_addends),
          .q_edges = q_edges,
          .kv_edges = kv_edges,
          .q_used = add_used(tiles.slices(), tiles.q_edges, &Slice::q_begin, &Slice::q_end),
          .kv_used = add_used(tiles.slices(), tiles.kv_edges, &Slice::k_begin, &Slice::k_end),
          .slice_ids = add(tiles.slice_ids),
          .slices = add(tiles.slices()),
          .dropout_origins = add(std::move(dropout_origins)),
          .q_rows = piece ? add(piece->q_rows) : q_edges,
          .kv_rows = piece ? add(piece->kv_rows) : kv_edges,
          .carries = piece ? add(piece->carries) : -1,
          .run_count = std::ssize(runs),
          .stretch_count = static_cast<int32_t>(runs.stretches().size()),
          .q_tiles = tiles.q_tiles(),
          .kv_tiles = tiles.kv_tiles()};
}

RunSpread PlanBytes::spread_of(const Order& o, const void* memory) const {
  return {.words = at<uint64_t>(memory, o.words),
          .wide = at<Run>(memory, o.wide),
          .stretches = at<RunStretch>(memory, o.stretches),
          .to = const_cast<Run*>(at<Run>(memory, o.runs)),
          .runs = o.run_count,
          .stretch_count = o.stretch_count};
}

PlanBytes::Spreads PlanBytes::spreads(const void* memory) const {
  if (!spread_) return {};
  int64_t most = 0;
  for (const Order& order : orders_) most = std::max(most, order.run_count);
  return {at<RunSpread>(memory, lists_), static_cast<int32_t>(orders_.size()), most};
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
    if (!spread_) continue;
    const RunSpread list = spread_of(orders_[i], memory);
    std::memcpy(all.get() + lists_ + i * sizeof(RunSpread), &list, sizeof(RunSpread));
  }
  return all;
}

}  // namespace verbatim::cuda
