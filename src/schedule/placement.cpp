// Who does which task when. Nothing here changes a bit of the result.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <numeric>

#include "core/names.h"
#include "schedule/spaced.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

constexpr int32_t kMaxWorkers = 1 << 20;

using Heads = std::span<const std::shared_ptr<const HeadOrder>>;

constexpr std::array kInfos{
    PlacementInfo{"queue", "free workers take head after head, in the order's own sequence"},
    PlacementInfo{"longest_first",
                  "free workers take the longest task of all heads, but first those it waits for; "
                  "longest_first:N: of equal sections of at most N heads, one after another"},
    PlacementInfo{"head_swizzled",
                  "equal sections of heads side by side, task by task; head_swizzled:N: at most N; "
                  "head_swizzled:N:M: M tasks of each in turn"},
    PlacementInfo{"staggered",
                  "as head_swizzled, heads start one after another; staggered:N: at most N"},
    PlacementInfo{"spaced",
                  "as queue, but chains that follow each other through the same rows start two "
                  "visits apart, others between them"},
    PlacementInfo{"static", "tasks are dealt to workers in turn, head after head (DASH's figures)"},
    PlacementInfo{"alternating", "as static, every second round dealt backwards: long meets short"},
    PlacementInfo{"persistent", "each worker has a contiguous share of equal work"},
};

size_t count_tasks(Heads heads) {
  size_t count = 0;
  for (const auto& order : heads) count += order->tasks.size();
  return count;
}

std::vector<PlacedTask> head_after_head(Heads heads) {
  std::vector<PlacedTask> tasks;
  tasks.reserve(count_tasks(heads));
  for (size_t h = 0; h < heads.size(); ++h)
    for (size_t t = 0; t < heads[h]->tasks.size(); ++t)
      tasks.push_back({static_cast<int32_t>(h), static_cast<int32_t>(t)});
  return tasks;
}

std::span<const Chain> chains_of(const HeadOrder& order, const Task& task) {
  return std::span(order.chains).subspan(task.chain_begin, task.chain_end - task.chain_begin);
}

int64_t visits(const HeadOrder& order, const Task& task) {
  int64_t visits = 0;
  for (const Chain& chain : chains_of(order, task)) visits += order.visits(chain);
  return visits;
}

std::vector<int64_t> visits_of_tasks(const HeadOrder& order) {
  std::vector<int64_t> of_task;
  for (const Task& task : order.tasks) of_task.push_back(visits(order, task));
  return of_task;
}

/// The visits of the longest task of a KV tile, or of the KV tiles whose tasks wait for it if that
/// is longer, for each task. Of an order whose tasks wait for later ones or for none, its own
/// visits. Who waits is alike for all query heads of a group: the first is looked at.
std::vector<int64_t> urgency_of_tasks(const HeadOrder& order) {
  std::vector<int64_t> of_task = visits_of_tasks(order);
  if (order.pass == Pass::forward) return of_task;
  std::vector<int64_t> of_tile(order.tiles->kv_tiles());
  const auto tile_of = [&](const Chain& chain) -> int64_t& { return of_tile[chain.tile]; };
  for (size_t t = 0; t < of_task.size(); ++t)
    for (const Chain& chain : chains_of(order, order.tasks[t]))
      tile_of(chain) = std::max(tile_of(chain), of_task[t]);

  struct Row {  // of dQ: the last addend seen, and the urgency of its KV tile
    int32_t addend = std::numeric_limits<int32_t>::max();
    int64_t urgency = 0;
  };
  std::vector<Row> rows(order.tiles->q_tiles());
  const auto each_visit = [&](const Chain& chain, auto visit) {
    order.for_each_part(chain, [&](int32_t q_head, RunView runs) {
      if (q_head != 0) return;
      for (const Run& run : runs)
        for (int32_t i = 0; i < run.count; ++i)
          visit(rows[run.tile(i)], run.addend_step == 0 ? run.addend : run.addend_of(i));
    });
  };
  bool in_order = true;
  for (size_t t = of_task.size(); t-- > 0;) {
    for (const Chain& chain : chains_of(order, order.tasks[t])) {
      int64_t& urgency = tile_of(chain);
      each_visit(chain, [&](const Row& row, int32_t addend) {
        urgency = std::max(urgency, row.urgency);
        in_order = in_order && addend < row.addend;
      });
      each_visit(chain, [&](Row& row, int32_t addend) { row = {addend, urgency}; });
    }
  }
  if (!in_order) return of_task;
  for (size_t t = 0; t < of_task.size(); ++t)
    for (const Chain& chain : chains_of(order, order.tasks[t]))
      of_task[t] = std::max(of_task[t], tile_of(chain));
  return of_task;
}

/// What `measure` says of each of `tasks`; heads that share an order are measured once.
std::vector<int64_t> measured(Heads heads, std::span<const PlacedTask> tasks,
                              std::vector<int64_t> (*measure)(const HeadOrder&)) {
  std::vector<std::pair<const HeadOrder*, std::vector<int64_t>>> known;
  std::vector<size_t> known_of_head;
  for (const auto& order : heads) {
    size_t k = 0;
    while (k < known.size() && known[k].first != order.get()) ++k;
    if (k == known.size()) {
      known.push_back({order.get(), measure(*order)});
    }
    known_of_head.push_back(k);
  }
  std::vector<int64_t> work;
  work.reserve(tasks.size());
  for (const PlacedTask& task : tasks)
    work.push_back(known[known_of_head[task.head]].second[task.task]);
  return work;
}

/// Sections of at most `section` heads, equal to within one: the tasks of a small last one would
/// end late. `turn` tasks of each head come together.
std::vector<PlacedTask> swizzled(Heads heads, size_t section, size_t turn) {
  std::vector<size_t> sizes;
  for (const auto& order : heads) sizes.push_back(order->tasks.size());
  std::vector<PlacedTask> tasks;
  tasks.reserve(count_tasks(heads));
  const size_t sections = (heads.size() + section - 1) / section;
  for (size_t s = 0; s < sections; ++s) {
    const size_t begin = (heads.size() * s + sections - 1) / sections;
    const size_t end = (heads.size() * (s + 1) + sections - 1) / sections;
    size_t longest = 0;
    for (size_t h = begin; h < end; ++h) longest = std::max(longest, sizes[h]);
    for (size_t first = 0; first < longest; first += turn)
      for (size_t h = begin; h < end; ++h)
        for (size_t t = first; t < std::min(first + turn, sizes[h]); ++t)
          tasks.push_back({static_cast<int32_t>(h), static_cast<int32_t>(t)});
  }
  return tasks;
}

/// The longest first, those of equal sections of heads one after another; equally long ones as they
/// are in `tasks`.
std::vector<PlacedTask> longest_first(Heads heads, const std::vector<PlacedTask>& tasks,
                                      size_t sections) {
  const auto work = measured(heads, tasks, urgency_of_tasks);
  std::vector<int32_t> by_work(tasks.size());
  std::iota(by_work.begin(), by_work.end(), 0);
  std::ranges::stable_sort(by_work, {}, [&](int32_t i) {
    return std::pair(static_cast<size_t>(tasks[i].head) * sections / heads.size(), -work[i]);
  });
  std::vector<PlacedTask> sorted;
  sorted.reserve(tasks.size());
  for (const int32_t index : by_work) sorted.push_back(tasks[index]);
  return sorted;
}

/// As swizzled, but heads start one after another: chains of a head that start together would
/// follow each other through its rows, and wait for each other all the way. With many sections the
/// starts of a section's heads are spread over the time of a whole head, with few over less of it,
/// for what starts late ends late.
std::vector<PlacedTask> staggered(Heads heads, size_t section) {
  constexpr size_t kMany = 5;  // sections
  const size_t sections = (heads.size() + section - 1) / section;
  const size_t side_by_side = sections == 0 ? 1 : (heads.size() + sections - 1) / sections;
  const size_t parts = side_by_side << (kMany - std::min(sections, kMany));
  // When each head starts: one task of each head that has started is issued at a time.
  std::vector<size_t> start;
  for (size_t h = 0; h < heads.size(); ++h) {
    const size_t at = h < side_by_side
                          ? h * heads[h]->tasks.size() / parts
                          : start[h - side_by_side] + heads[h - side_by_side]->tasks.size();
    start.push_back(h == 0 ? at : std::max(at, start.back()));
  }
  std::vector<PlacedTask> tasks;
  tasks.reserve(count_tasks(heads));
  for (size_t time = 0, begin = 0, end = 0; begin < heads.size(); ++time) {
    while (end < heads.size() && start[end] <= time) ++end;
    for (size_t h = begin; h < end; ++h)
      if (time - start[h] < heads[h]->tasks.size())
        tasks.push_back({static_cast<int32_t>(h), static_cast<int32_t>(time - start[h])});
    while (begin < end && start[begin] + heads[begin]->tasks.size() <= time + 1) ++begin;
  }
  return tasks;
}

/// As many heads as it takes to give every worker a task: more would only crowd the L2 cache.
size_t default_section(Heads heads, int32_t workers) {
  size_t tasks = 1;
  for (const auto& order : heads) tasks = std::max(tasks, order->tasks.size());
  return std::max<size_t>(1, (static_cast<size_t>(workers) + tasks / 2) / tasks);
}

Placement fixed(int32_t workers) {
  Placement placement;
  placement.queue = false;
  placement.workers = workers;
  placement.worker_begin = {0};
  return placement;
}

enum class Deal { same, alternating };

Placement deal(Heads heads, int32_t workers, Deal how) {
  const auto tasks = head_after_head(heads);
  const size_t count = workers;
  std::vector<std::vector<PlacedTask>> hands(count);
  for (size_t t = 0; t < tasks.size(); ++t) {
    const size_t seat = t % count;
    const bool backwards = how == Deal::alternating && t / count % 2 == 1;
    hands[backwards ? count - 1 - seat : seat].push_back(tasks[t]);
  }
  Placement placement = fixed(workers);
  std::vector<PlacedTask> dealt;
  for (const auto& hand : hands) {
    dealt.insert(dealt.end(), hand.begin(), hand.end());
    placement.worker_begin.push_back(static_cast<int32_t>(dealt.size()));
  }
  placement.tasks = std::move(dealt);
  return placement;
}

Placement persistent(Heads heads, int32_t workers) {
  Placement placement = fixed(workers);
  placement.tasks = head_after_head(heads);
  const auto work = measured(heads, placement.tasks.list(), visits_of_tasks);
  const int64_t total = std::accumulate(work.begin(), work.end(), int64_t{0});
  int64_t before = 0;
  for (size_t t = 0; t < work.size(); ++t) {
    // A task belongs to the share in which its middle lies.
    const auto share = total == 0 ? 0 : (2 * before + work[t]) * workers / (2 * total);
    while (static_cast<int64_t>(placement.worker_begin.size()) <=
           std::min<int64_t>(share, workers - 1))
      placement.worker_begin.push_back(static_cast<int32_t>(t));
    before += work[t];
  }
  placement.worker_begin.resize(workers + 1, static_cast<int32_t>(work.size()));
  return placement;
}

[[noreturn]] void unknown(std::string_view name) {
  std::vector<std::string> known;
  for (const PlacementInfo& info : kInfos) known.emplace_back(info.name);
  throw Error(ErrorCode::invalid_argument, "schedule.make_placement", "no such placement",
              {"placement", std::string(name), fmt::format("{}", fmt::join(known, ", ")),
               nearest_name(name, known)});
}

}  // namespace

std::span<const PlacementInfo> placements() { return kInfos; }

Placement make_placement(std::string_view name, Heads heads, int32_t workers) {
  if (workers < 1 || workers > kMaxWorkers)
    throw Error(ErrorCode::invalid_argument, "schedule.make_placement", "no machine has so many",
                {"workers", fmt::to_string(workers), fmt::format("1 to {}", kMaxWorkers),
                 fmt::to_string(workers < 1 ? 1 : kMaxWorkers)});
  const auto queue = [&](std::vector<PlacedTask> tasks) {
    Placement placement;
    placement.workers = workers;
    placement.tasks = std::move(tasks);
    return placement;
  };
  const auto number = [&](std::string_view text) -> size_t {
    int32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1) unknown(name);
    return static_cast<size_t>(value);
  };
  // The N of "head_swizzled:N", or the default.
  const auto section = [&](std::string_view family) {
    return name == family ? default_section(heads, workers)
                          : number(name.substr(family.size() + 1));
  };
  const auto longest = [&] {
    if (name == "longest_first") return longest_first(heads, head_after_head(heads), 1);
    const size_t most = section("longest_first");
    return longest_first(heads, swizzled(heads, most, 1), (heads.size() + most - 1) / most);
  };
  // As the N and the M of "head_swizzled:N:M" say.
  const auto swizzle = [&] {
    const size_t first = name.find(':'), last = name.rfind(':');
    if (first == last) return swizzled(heads, section("head_swizzled"), 1);
    return swizzled(heads, number(name.substr(first + 1, last - first - 1)),
                    number(name.substr(last + 1)));
  };
  const auto is = [&](std::string_view family) {
    return name == family || (name.starts_with(family) && name[family.size()] == ':');
  };
  const auto make = [&]() -> Placement {
    if (name == "queue") return queue(head_after_head(heads));
    if (is("longest_first")) return queue(longest());
    if (is("head_swizzled")) return queue(swizzle());
    if (is("staggered")) return queue(staggered(heads, section("staggered")));
    if (name == "spaced") return queue(spaced(heads, head_after_head(heads), workers));
    if (name == "static") return deal(heads, workers, Deal::same);
    if (name == "alternating") return deal(heads, workers, Deal::alternating);
    if (name == "persistent") return persistent(heads, workers);
    unknown(name);
  };
  Placement placement = make();
  placement.name = name;
  return placement;
}

}  // namespace verbatim
