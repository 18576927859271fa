// Parts of orders: from ranges to the chains that a backend runs.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "dist/deal.h"
#include "dist/passes.h"
#include "plan/visits.h"
#include "schedule/spaced.h"
#include "verbatim/schedule.h"

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

/// Whether chains are cut for few workers, which are together again in a launch: then they rotate.
bool is_cut(const HeadOrder& order) {
  return std::ranges::any_of(order.chains, [](const Chain& chain) { return chain.continues; });
}

/// Where each of the WholeChains of a head comes in the plan's placement. Of one that has no
/// queue, or whose chains are cut, all come at once.
std::vector<size_t> places_of(const Plan& whole, int32_t head) {
  const HeadOrder& order = whole.order(head);
  std::vector<size_t> places(order.chains.size());
  if (!whole.placement.queue || is_cut(order)) return places;
  const PlacedTasks& tasks = whole.placement.tasks;
  for (size_t place = 0; place < tasks.size(); ++place) {
    if (tasks[place].head != head) continue;
    const Task& task = order.tasks[static_cast<size_t>(tasks[place].task)];
    std::fill(places.begin() + task.chain_begin, places.begin() + task.chain_end, place);
  }
  return places;
}

/// The tasks of a launch as the plan places them.
std::vector<PlacedTask> as_placed(const Plan& whole, const std::vector<HeadPart>& heads) {
  std::vector<std::pair<size_t, PlacedTask>> placed;
  for (const HeadPart& own : heads) {
    const std::vector<size_t> places = places_of(whole, own.head);
    int32_t task = 0;
    for (const Stretch& stretch : own.part->stretches)
      for (int32_t i = 0; i < stretch.count; ++i)
        placed.push_back({places[static_cast<size_t>(stretch.chain + i)], {own.head, task++}});
  }
  std::ranges::stable_sort(placed, {}, &std::pair<size_t, PlacedTask>::first);
  std::vector<PlacedTask> tasks;
  for (const auto& [place, task] : placed) tasks.push_back(task);
  return tasks;
}

/// The longest first, with other heads beside it: in a launch of few heads what starts last would
/// end alone, and chains of one head wait for each other. Sections have as many heads as keep all
/// workers busy for eight of the longest chains.
std::vector<PlacedTask> longest_first(const std::vector<HeadPiece>& heads) {
  constexpr int64_t kFewest = 8, kLongest = 8;
  int64_t longest = 0, all = 0;  // visits
  std::vector<std::shared_ptr<const HeadOrder>> orders;
  for (const HeadPiece& head : heads) {
    orders.push_back(head.order);
    for (const Chain& chain : head.order->chains) {
      const int64_t visits = head.order->visits(chain);
      longest = std::max(longest, visits);
      all += visits;
    }
  }
  const int64_t busy =
      kLongest * dist::kWorkers * longest * std::ssize(heads) / std::max<int64_t>(all, 1);
  std::vector<PlacedTask> tasks =
      make_placement(fmt::format("longest_first:{}", std::max(kFewest, busy)), orders, 1)
          .tasks.list();
  for (PlacedTask& task : tasks) task.head = heads[static_cast<size_t>(task.head)].head;
  return tasks;
}

/// Of one or two heads: as placed, but spaced, for the others that lay between are on other ranks.
std::vector<PlacedTask> spaced_apart(const std::vector<HeadPiece>& heads,
                                     std::vector<PlacedTask> tasks) {
  std::vector<std::shared_ptr<const HeadOrder>> orders;
  for (const HeadPiece& head : heads) orders.push_back(head.order);
  for (PlacedTask& task : tasks)
    task.head =
        static_cast<int32_t>(std::ranges::find(heads, task.head, &HeadPiece::head) - heads.begin());
  tasks = spaced(orders, std::move(tasks), dist::kWorkers);
  for (PlacedTask& task : tasks) task.head = heads[static_cast<size_t>(task.head)].head;
  return tasks;
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
  std::map<const OrderPart*, std::shared_ptr<const HeadOrder>> made;
  for (const HeadPart& own : heads) {
    std::shared_ptr<const HeadOrder>& order = made[own.part.get()];
    if (!order) order = own.part->make();
    HeadPiece& head = piece.heads.emplace_back(own.head, order);
    for (size_t s = 0; s < own.carries.size(); ++s) {
      const Carry& first = own.carries[s];
      for (int32_t i = 0; i < own.part->stretches[s].count; ++i)
        head.carries.push_back(
            {first.in < 0 ? -1 : first.in + i, first.out < 0 ? -1 : first.out + i});
    }
  }
  size_t tasks = 0;
  for (const HeadPiece& head : piece.heads) tasks += head.order->tasks.size();
  // What is placed well for all tasks is so for half of them. Where no chain waits for one that
  // comes later, the longest first is such a sequence, too.
  const bool few = 2 * tasks < whole.placement.tasks.size() && whole.residency == 1;
  if (few && whole.problem.group() == 1) {
    piece.tasks = longest_first(piece.heads);
    return piece;
  }
  piece.tasks = as_placed(whole, heads);
  const auto cut = [&](const HeadPart& own) { return is_cut(whole.order(own.head)); };
  if (few && whole.pass == Pass::backward && heads.size() <= 2 && std::ranges::none_of(heads, cut))
    piece.tasks = spaced_apart(piece.heads, std::move(piece.tasks));
  return piece;
}

}  // namespace verbatim
