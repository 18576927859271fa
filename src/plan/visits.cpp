#include "plan/visits.h"

#include <algorithm>
#include <numeric>

#include "plan/verify.h"
#include "plan/walk.h"

namespace verbatim {
namespace {

size_t row_of(const HeadOrder& order, int32_t q_head, int32_t q_tile) {
  return static_cast<size_t>(q_head) * static_cast<size_t>(order.tiles->q_tiles()) +
         static_cast<size_t>(q_tile);
}

size_t rows_of(const HeadOrder& order) { return row_of(order, order.group, 0); }

/// Calls f(task, row, addend) for all that enters the sum of a row: visits in the backward, chains
/// in the forward.
template <class F>
void for_each_addend(const HeadOrder& order, F&& f) {
  for (int32_t t = 0; t < std::ssize(order.tasks); ++t) {
    const Task& task = order.tasks[t];
    if (order.pass == Pass::backward) {
      for_each_visit(order, task, [&](const Chain&, const Run& run, int32_t i) {
        f(t, row_of(order, run.q_head, run.tile(i)), run.addend_of(i));
      });
      continue;
    }
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
      const Chain& chain = order.chains[c];
      f(t, row_of(order, chain.q_head, chain.tile), chain.addend);
    }
  }
}

/// The last place that each task of a piece waits for, where that is behind its own.
void note_waits(const HeadOrder& piece, const std::vector<int32_t>& place_of_task,
                std::vector<int32_t>& furthest) {
  const std::vector<int32_t> before = addends_before(piece);
  std::vector<size_t> begin(before.size() + 1);  // of each row, among the addends of all
  for_each_addend(piece, [&](int32_t, size_t row, int32_t) { ++begin[row + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<int32_t> place_of(begin.back());  // of each addend
  const auto number = [&](size_t row, int32_t addend) {
    return begin[row] + static_cast<size_t>(addend - before[row]);
  };
  for_each_addend(piece, [&](int32_t task, size_t row, int32_t addend) {
    place_of[number(row, addend)] = place_of_task[task];
  });
  for_each_addend(piece, [&](int32_t task, size_t row, int32_t addend) {
    if (addend == before[row]) return;
    int32_t& last = furthest[place_of_task[task]];
    last = std::max(last, place_of[number(row, addend - 1)]);
  });
}

}  // namespace

void append_visits(std::vector<Run>& runs, const Run& run, int32_t begin, int32_t end) {
  while (begin < end) {
    // What starts inside a plateau of equal addends ends with it.
    const bool inside = begin % run.addend_every != 0;
    const int32_t stop =
        inside ? std::min(end, (begin / run.addend_every + 1) * run.addend_every) : end;
    Run part = run;
    part.first = run.tile(begin);
    part.count = stop - begin;
    part.addend = run.addend_of(begin);
    if (inside) part.addend_step = 0, part.addend_every = 1;
    runs.push_back(part);
    begin = stop;
  }
}

std::vector<int32_t> addends_before(const HeadOrder& piece) {
  constexpr int32_t kNone = INT32_MAX;
  std::vector<int32_t> before(rows_of(piece), kNone);
  for_each_addend(piece, [&](int32_t, size_t row, int32_t addend) {
    before[row] = std::min(before[row], addend);
  });
  std::ranges::replace(before, kNone, 0);
  return before;
}

int32_t residency_of(std::span<const std::shared_ptr<const HeadOrder>> heads,
                     std::span<const PlacedTask> sequence) {
  std::vector<std::vector<int32_t>> place(heads.size());  // in the sequence, [head][task]
  for (size_t h = 0; h < heads.size(); ++h) place[h].resize(heads[h]->tasks.size());
  for (size_t p = 0; p < sequence.size(); ++p)
    place[sequence[p].head][sequence[p].task] = static_cast<int32_t>(p);
  std::vector<int32_t> furthest(sequence.size());
  std::iota(furthest.begin(), furthest.end(), 0);
  for (size_t h = 0; h < heads.size(); ++h) note_waits(*heads[h], place[h], furthest);
  return largest_block(furthest);
}

}  // namespace verbatim
