#include "verbatim/runs.h"

#include <algorithm>
#include <utility>

namespace verbatim {

Runs Runs::of_repeats(PackedRuns kept) {
  Runs runs;
  runs.kept_ = std::move(kept);
  return runs;
}

bool Runs::operator==(const Runs& other) const {
  if (size() != other.size()) return false;
  for (size_t i = 0; i < size(); ++i)
    if ((*this)[i] != other[i]) return false;
  return true;
}

std::vector<Run> Runs::all() const {
  std::vector<Run> all;
  all.reserve(size());
  for_each_part(0, size(), [&](int32_t q_head, RunView runs) {
    for (Run run : runs) {
      run.q_head = q_head;
      all.push_back(run);
    }
  });
  return all;
}

int64_t Runs::bytes() const {
  return kept_.bytes() + static_cast<int64_t>(stretches_.size() * sizeof(RunStretch));
}

bool Runs::are_next(size_t begin_before, size_t end_before, size_t begin, size_t end,
                    size_t& near) const {
  if (end_before - begin_before != end - begin) return false;
  if (begin == end) return true;
  size_t at = begin_before, a = stretch_near(at, near), b = stretch_near(begin, a);
  near = b;
  if (a == b && stretches_[a].times > 1) {
    const size_t all = stretches_[a].of_one_time();
    return begin - at == all && end - begin == all && end <= stretches_[a].end();
  }
  while (begin < end) {
    const RunStretch &x = stretches_[a], &y = stretches_[b];
    if (x.q_head != y.q_head || x.heads != y.heads || x.times > 1 || y.times > 1) return false;
    const bool all = at == x.begin && begin == y.begin && x.size == y.size && y.end() <= end;
    if (!all && x.heads > 1) return false;  // a part of what repeats
    const size_t kept = all ? x.size : std::min({x.end() - at, y.end() - begin, end - begin});
    const size_t count = kept * static_cast<size_t>(x.heads);
    const RunView runs = kept_.part(y.first + (begin - y.begin), kept);
    if (!runs.is_next(kept_.part(x.first + (at - x.begin), kept))) return false;
    at += count, begin += count;
    if (at == x.end()) ++a;
    if (begin == y.end()) ++b;
  }
  return true;
}

size_t Runs::repeats_until(size_t begin, size_t end, size_t& near) const {
  if (begin >= end) return end;
  near = stretch_near(begin, near);
  const RunStretch& own = stretches_[near];
  return end - begin == own.of_one_time() ? std::max(end, own.end()) : end;
}

void Runs::repeat(size_t first, size_t last, int32_t q_head, int32_t heads) {
  if (first == last) return;
  if (!stretches_.empty()) {
    RunStretch& latest = stretches_.back();
    const RunView runs = kept_.part(first, last - first);
    if (latest.size == runs.size() && latest.q_head == q_head && latest.heads == heads &&
        runs.is_next(kept_.part(latest.first, latest.size).later(latest.times - 1))) {
      ++latest.times;
      return;
    }
    if (latest.first == first && latest.size == last - first && latest.times == 1 &&
        latest.q_head + int64_t{latest.heads} == q_head) {
      latest.heads += heads;
      return;
    }
    if (latest.first + latest.size == first && latest.q_head == q_head && latest.heads == 1 &&
        heads == 1 && latest.times == 1) {
      latest.size += last - first;
      return;
    }
  }
  stretches_.push_back({size(), first, last - first, q_head, heads});
}

void Runs::append(const Runs& other, int32_t tile) {
  const size_t begin = kept_.size();
  for (Run run : other.kept_.all()) {
    run.first += tile;
    kept_.push_back(run);
  }
  for (RunStretch s : other.stretches_) {
    s.begin = size();
    s.first += begin;
    stretches_.push_back(s);
  }
}

void Runs::push_back(Run run) {
  const int32_t q_head = std::exchange(run.q_head, 0);
  const size_t kept = kept_.size();
  kept_.push_back(run);
  repeat(kept, kept + 1, q_head, 1);
}

}  // namespace verbatim
