// The sequence of runs that an order is made of.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

#include "verbatim/packed_runs.h"

namespace verbatim {

/// Kept runs [first, first + size), by `heads` query heads, and all that `times` over, each time
/// with addends that are one more.
struct RunStretch {
  size_t begin, first, size;  // begin: in the sequence; first: of those kept
  int32_t q_head, heads, times = 1;

  constexpr size_t of_one_time() const { return size * static_cast<size_t>(heads); }
  constexpr size_t end() const { return begin + of_one_time() * static_cast<size_t>(times); }
  /// Which of those kept run `i` of the sequence is, in here, by whom, and how much is added to its
  /// addend.
  struct Place {
    size_t kept;
    int32_t q_head, more;
  };
  constexpr Place place(size_t i) const {
    if (i - begin < size) return {first + (i - begin), q_head, 0};  // as most are: no division
    const size_t time = (i - begin) / of_one_time(), in = (i - begin) % of_one_time();
    return {first + in % size, q_head + static_cast<int32_t>(in / size),
            static_cast<int32_t>(time)};
  }
};

/// The runs of an order in sequence: read as a list of Run. Query heads of a group mostly repeat
/// one another's, which are kept once. Chains whose runs are those of the chain before, but for
/// addends that are one more, share an entry.
class Runs {
 public:
  Runs() = default;
  Runs(std::initializer_list<Run> runs) { add(runs); }
  explicit Runs(const std::vector<Run>& runs) { add(runs); }
  /// Of `kept`, whose query heads are 0, the sequence has what repeat() appends.
  static Runs of_repeats(PackedRuns kept);

  size_t size() const { return stretches_.empty() ? 0 : stretches_.back().end(); }
  bool empty() const { return stretches_.empty(); }
  Run operator[](size_t i) const;
  /// The same. `near` is where one call leaves off, so that the next, of a run behind, need not
  /// search; 0 at first.
  Run at_near(size_t i, size_t& near) const;
  bool operator==(const Runs& other) const;
  /// All of them, one by one: what devices hold.
  std::vector<Run> all() const;
  int64_t bytes() const;
  /// What is kept, and the stretches of it that the sequence is.
  const PackedRuns& kept() const { return kept_; }
  const std::vector<RunStretch>& stretches() const { return stretches_; }

  /// Calls f(query head, RunView) for runs [begin, end) in sequence, parts of them at once that one
  /// query head visits; the view's own query heads are 0.
  template <class F>
  void for_each_part(size_t begin, size_t end, F&& f) const {
    size_t near = 0;
    for_each_repeat(begin, end, near, [&](int32_t q_head, int32_t heads, RunView runs) {
      for (int32_t h = 0; h < heads; ++h) f(q_head + h, runs);
    });
  }
  /// The same with f(first query head, how many, RunView): heads behind each other that repeat one
  /// another at once. `near` as above.
  template <class F>
  void for_each_repeat(size_t begin, size_t end, size_t& near, F&& f) const;

  /// Whether runs [begin, end) visit the same as [begin_before, end_before) by the same query
  /// heads, with addends that are one more. False may also mean: not found out. `near` as above.
  bool are_next(size_t begin_before, size_t end_before, size_t begin, size_t end,
                size_t& near) const;
  /// Up to which run [begin, end) repeats, each time with addends one more; `end` where it does
  /// not, or was not found out. `near` as above.
  size_t repeats_until(size_t begin, size_t end, size_t& near) const;

  /// Appends kept runs [first, last), once for each query head [q_head, q_head + heads).
  void repeat(size_t first, size_t last, int32_t q_head, int32_t heads);
  /// Appends `other`, whose tiles count from `tile` here.
  void append(const Runs& other, int32_t tile);
  void push_back(Run run);
  void clear() { *this = Runs(); }
  /// Lets f(std::vector<Run>&) change all(). From then on each is kept by itself.
  template <class F>
  void edit(F&& f) {
    std::vector<Run> runs = all();
    f(runs);
    *this = Runs(runs);
  }

 private:
  Run run_of(const RunStretch& stretch, size_t i) const;
  const RunStretch& stretch_at(size_t i) const;
  /// Its number, found at or behind `near`.
  size_t stretch_near(size_t i, size_t near) const;
  template <class Range>
  void add(const Range& runs) {
    kept_.reserve(std::size(runs));
    for (const Run& run : runs) push_back(run);
  }

  PackedRuns kept_;  // of query head 0
  std::vector<RunStretch> stretches_;
};

inline const RunStretch& Runs::stretch_at(size_t i) const {
  if (stretches_.size() == 1) return stretches_.front();  // a group of one query head
  return *std::prev(std::ranges::upper_bound(stretches_, i, {}, &RunStretch::begin));
}

inline Run Runs::run_of(const RunStretch& stretch, size_t i) const {
  const RunStretch::Place at = stretch.place(i);
  Run run = kept_[at.kept];
  run.addend += at.more;
  run.q_head = at.q_head;
  return run;
}

inline Run Runs::operator[](size_t i) const { return run_of(stretch_at(i), i); }

inline size_t Runs::stretch_near(size_t i, size_t near) const {
  for (size_t s = near; s < std::min(near + 2, stretches_.size()); ++s)
    if (stretches_[s].begin <= i && i < stretches_[s].end()) return s;
  return static_cast<size_t>(&stretch_at(i) - stretches_.data());
}

inline Run Runs::at_near(size_t i, size_t& near) const {
  near = stretch_near(i, near);
  return run_of(stretches_[near], i);
}

template <class F>
void Runs::for_each_repeat(size_t begin, size_t end, size_t& near, F&& f) const {
  if (begin >= end) return;
  for (near = stretch_near(begin, near);; ++near) {
    const RunStretch& s = stretches_[near];
    const size_t all = s.of_one_time();
    while (begin < std::min(end, s.end())) {
      const size_t time = s.times > 1 ? (begin - s.begin) / all : 0;
      const size_t in = begin - s.begin - time * all;
      const auto part = [&](size_t from, size_t count) {
        return kept_.part(s.first + from, count).later(static_cast<int32_t>(time));
      };
      if (in == 0 && all <= end - begin) {
        f(s.q_head, s.heads, part(0, s.size));
        begin += all;
      } else {
        const size_t from = in % s.size, count = std::min(s.size - from, end - begin);
        f(s.q_head + static_cast<int32_t>(in / s.size), 1, part(from, count));
        begin += count;
      }
    }
    if (begin == end) return;
  }
}

}  // namespace verbatim
