#include "mask/lines.h"

#include <algorithm>
#include <tuple>

#include "mask/slice.h"

namespace verbatim {

void merge(std::vector<Interval>& intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  size_t count = 0;
  for (const Interval& interval : intervals) {
    if (count > 0 && intervals[count - 1].end == interval.begin) {
      intervals[count - 1].end = interval.end;
    } else {
      intervals[count++] = interval;
    }
  }
  intervals.resize(count);
}

void for_each_row(std::span<const Slice> slices, int64_t rows,
                  const std::function<void(int64_t, std::span<const Interval>)>& visit) {
  std::vector<Slice> sorted;
  for (const Slice& s : slices) {
    if (const auto tight = tighten(s)) sorted.push_back(*tight);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Slice& a, const Slice& b) { return a.q_begin < b.q_begin; });
  std::vector<const Slice*> alive;
  std::vector<Interval> keys;
  size_t next = 0;
  for (int64_t q = 0; q < rows; ++q) {
    std::erase_if(alive, [q](const Slice* s) { return s->q_end <= q; });
    while (next < sorted.size() && sorted[next].q_begin == q) alive.push_back(&sorted[next++]);
    keys.clear();
    for (const Slice* s : alive) keys.push_back(keys_of_row(*s, q));
    merge(keys);
    visit(q, keys);
  }
}

bool SliceBuilder::extend(Open& open, Interval keys) {
  const int64_t begin_step = keys.begin - open.last.begin, end_step = keys.end - open.last.end;
  if (begin_step < 0 || begin_step > 1 || end_step < 0 || end_step > 1) return false;
  if (begin_step == 0 && open.begin_moves) return false;
  if (end_step == 1 && open.end_stays) return false;
  open.last = keys;
  open.begin_moves = begin_step == 1;
  open.end_stays = end_step == 0;
  Slice& s = open.slice;
  if (begin_step == 1) s.lo = keys.begin - s.q_end;
  if (end_step == 1) s.hi = keys.end - 1 - s.q_end;
  s.k_end = keys.end;
  ++s.q_end;
  return true;
}

void SliceBuilder::add_row(std::span<const Interval> keys) {
  std::vector<Open> next;
  auto open = open_.begin();
  for (const Interval& interval : keys) {
    while (open != open_.end() && open->last.begin + 1 < interval.begin) {
      done_.push_back((open++)->slice);
    }
    if (open != open_.end() && extend(*open, interval)) {
      next.push_back(*open++);
    } else {
      next.push_back({{row_, row_ + 1, interval.begin, interval.end}, interval});
    }
  }
  while (open != open_.end()) done_.push_back((open++)->slice);
  open_ = std::move(next);
  ++row_;
}

std::vector<Slice> SliceBuilder::finish() {
  add_row({});
  std::sort(done_.begin(), done_.end(), [](const Slice& a, const Slice& b) {
    return std::tie(a.q_begin, a.k_begin) < std::tie(b.q_begin, b.k_begin);
  });
  return std::move(done_);
}

}  // namespace verbatim
