// Parts of orders: from ranges to the chains that a backend runs.
#include <algorithm>
#include <utility>

#include "dist/passes.h"
#include "plan/visits.h"

namespace verbatim {
namespace dist {
namespace {

/// By chain.
template <class Rows>
void sort(Rows& rows) {
  const auto chain = [](const auto& row) { return row.chain; };
  if (!std::ranges::is_sorted(rows, {}, chain)) std::ranges::sort(rows, {}, chain);
}

/// Whether these, which are sorted, are `chains` chains, each once.
template <class Rows>
bool cover(const Rows& rows, size_t chains) {
  int32_t next = 0;
  for (const auto& row : rows) next = row.chain == next ? next + row.count : -1;
  return std::cmp_equal(next, chains);
}

}  // namespace

std::pair<WholeChains, ChainRows> by_chain(const HeadOrder& order, ChainRows issued) {
  const size_t count = order.chains.size();
  sort(issued.alike);
  sort(issued.rows);
  const bool all = cover(issued.alike, count) && cover(issued.rows, count);
  // Pieces are by themselves, so the first chains tell.
  const auto is_piece = [&](const AlikeChains& own) { return order.chains[own.chain].continues; };
  const WholeChains chains(order, !all || std::ranges::any_of(issued.alike, is_piece));
  if (all && chains.size() == count) return {chains, std::move(issued)};
  ChainRows each;
  for (size_t c = 0; c < chains.size(); ++c) {
    const auto number = static_cast<int32_t>(c);
    each.alike.push_back({number, 1});
    each.rows.push_back(row_of(chains[c], number));
  }
  return {chains, std::move(each)};
}

}  // namespace dist

std::shared_ptr<const HeadOrder> OrderPart::make() const {
  auto order = std::make_shared<HeadOrder>();
  order->pass = whole->pass;
  order->name = whole->name;
  order->tiles = whole->tiles;
  order->group = whole->group;
  order->row_addends = whole->row_addends;
  const bool forward = whole->pass == Pass::forward;
  const WholeChains chains(*whole);
  std::vector<Run> runs;
  for (const Stretch& stretch : stretches) {
    for (int32_t c = stretch.chain; c < stretch.chain + stretch.count; ++c) {
      const Chain& from = chains[c];
      Chain chain{.tile = from.tile};
      if (forward) chain = whole->chains[c];
      chain.run_begin = static_cast<int32_t>(runs.size());
      dist::Passes passes;
      for (int32_t r = from.run_begin; r < from.run_end; ++r) {
        const Run& run = whole->runs[r];
        const int32_t pass = passes.next(run);
        append_visits(runs, run, dist::visits_before(run, pass, stretch.begin),
                      dist::visits_before(run, pass, stretch.end));
      }
      chain.run_end = static_cast<int32_t>(runs.size());
      const auto number = static_cast<int32_t>(order->chains.size());
      order->chains.push_back(chain);
      order->tasks.push_back({number, number + 1});
    }
  }
  order->runs = Runs(runs);
  return order;
}

namespace {

/// Where each of the WholeChains of a head comes in the plan's placement. Of one that has no
/// queue, or whose chains are cut for few workers and together again here, all come at once.
std::vector<size_t> places_of(const Plan& whole, int32_t head) {
  const HeadOrder& order = whole.order(head);
  std::vector<size_t> places(order.chains.size());
  const auto cut = [](const Chain& chain) { return chain.continues; };
  if (!whole.placement.queue || std::ranges::any_of(order.chains, cut)) return places;
  const PlacedTasks& tasks = whole.placement.tasks;
  for (size_t place = 0; place < tasks.size(); ++place) {
    if (tasks[place].head != head) continue;
    const Task& task = order.tasks[static_cast<size_t>(tasks[place].task)];
    std::fill(places.begin() + task.chain_begin, places.begin() + task.chain_end, place);
  }
  return places;
}

}  // namespace

TileSums Add::tile(int32_t i) const {
  TileSums tile = sums;
  tile.kv_tile += i;
  for (int32_t& block : tile.blocks) block += i * step;
  return tile;
}

Piece Compute::piece(const Plan& whole) const {
  Piece piece;
  std::vector<std::pair<size_t, PlacedTask>> placed;
  for (const HeadPart& own : heads) {
    const std::vector<size_t> places = places_of(whole, own.head);
    int32_t task = 0;
    for (const Stretch& stretch : own.part->stretches)
      for (int32_t i = 0; i < stretch.count; ++i)
        placed.push_back({places[static_cast<size_t>(stretch.chain + i)], {own.head, task++}});
    HeadPiece& made = piece.heads.emplace_back(own.head, own.part->make());
    for (size_t s = 0; s < own.carries.size(); ++s) {
      const Carry& first = own.carries[s];
      for (int32_t i = 0; i < own.part->stretches[s].count; ++i)
        made.carries.push_back({first.in < 0 ? -1 : first.in + i, first.out + i});
    }
  }
  std::ranges::stable_sort(placed, {}, &std::pair<size_t, PlacedTask>::first);
  for (const auto& [place, task] : placed) piece.tasks.push_back(task);
  return piece;
}

}  // namespace verbatim
