// Runs of visits, and the sequence of them that an order is made of.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <vector>

namespace verbatim {

/// Consecutive visits of a chain: tiles first, first + step, ... of the streamed axis (query tiles
/// in the backward, KV tiles in the forward), cut by the same slices.
struct Run {
  int32_t q_head = 0;  // query head inside the group whose rows are visited
  int32_t first = 0, count = 0, step = 1;
  int32_t addend = 0, addend_step = 0;  // backward: place of each visit in the sum of its dQ row
  int32_t slice_begin = 0, slice_count = 0;  // as in TileRun; 0 slices: nothing to mask
  int32_t addend_every = 1;  // visits that share an addend before it steps: KV tiles are wider

  constexpr int32_t tile(int32_t i) const { return first + i * step; }
  constexpr int32_t addend_of(int32_t i) const {
    return i < addend_every ? addend : addend + i / addend_every * addend_step;
  }
  bool operator==(const Run&) const = default;
};

/// The runs of an order in sequence: read as a list of Run. Query heads of a group mostly repeat
/// one another's, which are kept once, so that a long group costs no memory and little time.
class Runs {
 public:
  Runs() = default;
  Runs(std::initializer_list<Run> runs) : kept_(runs) {}
  explicit Runs(std::vector<Run> runs) : kept_(std::move(runs)) {}
  /// Of `kept` the sequence has what repeat() appends.
  static Runs of_repeats(std::vector<Run> kept);

  size_t size() const { return stretches_.empty() ? kept_.size() : stretches_.back().end(); }
  bool empty() const { return size() == 0; }
  Run operator[](size_t i) const {
    return stretches_.empty() ? kept_[i] : stretch_at(i).at(*this, i);
  }
  bool operator==(const Runs& other) const;
  /// All of them, one by one: what devices hold.
  std::vector<Run> all() const;
  int64_t bytes() const;

  /// Calls f(query head, runs) for runs [begin, end) in sequence, parts of them at once that one
  /// query head visits: it stands for the q_head of each.
  template <class F>
  void for_each_part(size_t begin, size_t end, F&& f) const;

  /// Appends kept runs [first, last), once for each query head [q_head, q_head + heads).
  void repeat(size_t first, size_t last, int32_t q_head, int32_t heads);
  /// Appends `other`, whose tiles count from `tile` here.
  void append(const Runs& other, int32_t tile);
  void push_back(const Run& run) { unpacked().push_back(run); }
  void clear() { *this = Runs(); }
  /// To write to: from now on each is kept by itself.
  std::vector<Run>& unpacked();

 private:
  static constexpr int32_t kOwn = -1;  // each run has a query head of its own

  /// Kept runs [first, first + size), `heads` times over.
  struct Stretch {
    size_t begin, first, size;  // begin: in the sequence; first: in kept_
    int32_t q_head, heads;

    size_t end() const { return begin + size * heads; }
    Run at(const Runs& runs, size_t i) const;
  };
  const Stretch& stretch_at(size_t i) const;

  std::vector<Run> kept_;
  std::vector<Stretch> stretches_;  // none: the sequence is kept_
};

inline const Runs::Stretch& Runs::stretch_at(size_t i) const {
  return *std::prev(std::ranges::upper_bound(stretches_, i, {}, &Stretch::begin));
}

inline Run Runs::Stretch::at(const Runs& runs, size_t i) const {
  const size_t in = i - begin;
  Run run = runs.kept_[first + in % size];
  if (q_head != kOwn) run.q_head = q_head + static_cast<int32_t>(in / size);
  return run;
}

template <class F>
void Runs::for_each_part(size_t begin, size_t end, F&& f) const {
  const auto own = [&](std::span<const Run> runs) {
    while (!runs.empty()) {
      const int32_t q_head = runs.front().q_head;
      size_t same = 1;
      while (same < runs.size() && runs[same].q_head == q_head) ++same;
      f(q_head, runs.first(same));
      runs = runs.subspan(same);
    }
  };
  if (begin >= end) return;
  const std::span<const Run> kept(kept_);
  if (stretches_.empty()) return own(kept.subspan(begin, end - begin));
  for (const Stretch* s = &stretch_at(begin); begin < end; ++s) {
    while (begin < std::min(end, s->end())) {
      const size_t in = begin - s->begin, from = in % s->size;
      const size_t count = std::min(s->size - from, end - begin);
      const std::span<const Run> runs = kept.subspan(s->first + from, count);
      if (s->q_head == kOwn) {
        own(runs);
      } else {
        f(s->q_head + static_cast<int32_t>(in / s->size), runs);
      }
      begin += count;
    }
  }
}

}  // namespace verbatim
