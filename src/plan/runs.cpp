#include "verbatim/runs.h"

#include <utility>

namespace verbatim {

Runs Runs::of_repeats(std::vector<Run> kept) {
  Runs runs(std::move(kept));
  runs.stretches_.push_back({0, 0, 0, kOwn, 1});
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
  for_each_part(0, size(), [&](int32_t q_head, std::span<const Run> runs) {
    for (Run run : runs) {
      run.q_head = q_head;
      all.push_back(run);
    }
  });
  return all;
}

int64_t Runs::bytes() const {
  return static_cast<int64_t>(kept_.size() * sizeof(Run) + stretches_.size() * sizeof(Stretch));
}

void Runs::repeat(size_t first, size_t last, int32_t q_head, int32_t heads) {
  if (first == last) return;
  stretches_.push_back({size(), first, last - first, q_head, heads});
}

void Runs::append(const Runs& other, int32_t tile) {
  const size_t begin = size(), first = kept_.size();
  const bool plain = stretches_.empty() && other.stretches_.empty();
  for (Run run : other.kept_) {
    run.first += tile;
    kept_.push_back(run);
  }
  if (plain) return;
  const auto as_stretch = [](size_t from, size_t count) {
    return Stretch{from, from, count, kOwn, 1};
  };
  if (stretches_.empty()) stretches_.push_back(as_stretch(0, begin));
  std::vector<Stretch> added = other.stretches_;
  if (added.empty()) added.push_back(as_stretch(0, other.kept_.size()));
  for (Stretch& stretch : added) {
    stretch.begin += begin;
    stretch.first += first;
    stretches_.push_back(stretch);
  }
}

std::vector<Run>& Runs::unpacked() {
  if (!stretches_.empty()) *this = Runs(all());
  return kept_;
}

}  // namespace verbatim
