#include "plan/row_counters.h"

#include <algorithm>

namespace verbatim {
namespace {

// Longer plateaus are left alone: they come from irregular masks, not from tile ratios.
constexpr int32_t kLongestPlateau = 64;

Stair canonical(Stair s) {
  if (s.step == 0 || s.size() <= s.every) s.step = 0, s.every = 1;
  return s;
}

// Extends `a` by its upper neighbour `b` when one stair can say both.
bool extend(Stair& a, const Stair& b) {
  if (a.step == 0 && b.step == 0) {
    if (a.value == b.value) return a.end = b.end, true;
    if (a.size() > kLongestPlateau || b.size() > a.size()) return false;
    a.every = a.size(), a.step = b.value - a.value, a.end = b.end;
    return true;
  }
  if (a.step == 0) {
    if (a.size() != b.every || a.value != b.value - b.step) return false;
    a.every = b.every, a.step = b.step, a.end = b.end;
    return true;
  }
  const int32_t last_plateau = a.size() % a.every;
  if (last_plateau != 0) {
    if (b.step != 0 || b.value != a.at(a.end - 1) || b.size() > a.every - last_plateau)
      return false;
    return a.end = b.end, true;
  }
  if (b.value != a.at(a.end)) return false;
  const bool fits = b.step == 0 ? b.size() <= a.every : b.step == a.step && b.every == a.every;
  if (fits) a.end = b.end;
  return fits;
}

}  // namespace

RowCounters::RowCounters(int32_t rows) : rows_(rows) {
  if (rows > 0) stairs_.push_back({0, rows, 0, 0, 1});
}

// The index of the stair that begins at `row`, cutting one in two or three if need be.
size_t RowCounters::split(int32_t row) {
  const auto after = std::upper_bound(stairs_.begin(), stairs_.end(), row,
                                      [](int32_t r, const Stair& s) { return r < s.begin; });
  if (after == stairs_.begin()) return 0;
  const size_t index = static_cast<size_t>(after - stairs_.begin()) - 1;
  const Stair whole = stairs_[index];
  if (whole.begin == row) return index;
  if (row >= whole.end) return stairs_.size();
  const int32_t plateau_end =
      std::min(whole.end, whole.begin + ((row - whole.begin) / whole.every + 1) * whole.every);
  const bool on_edge = whole.step == 0 || (row - whole.begin) % whole.every == 0;
  const auto rest_from = [&](int32_t begin) {
    return canonical({begin, whole.end, whole.at(begin), whole.step, whole.every});
  };
  stairs_[index] = canonical({whole.begin, row, whole.value, whole.step, whole.every});
  const auto next = stairs_.begin() + static_cast<ptrdiff_t>(index) + 1;
  if (on_edge) {
    stairs_.insert(next, rest_from(row));
  } else if (plateau_end == whole.end) {
    stairs_.insert(next, {row, plateau_end, whole.at(row), 0, 1});
  } else {
    stairs_.insert(next, {{row, plateau_end, whole.at(row), 0, 1}, rest_from(plateau_end)});
  }
  return index + 1;
}

// Joins what can be joined among the stairs [first, last).
void RowCounters::join(size_t first, size_t last) {
  size_t kept = first;
  for (size_t next = first + 1; next < last; ++next) {
    stairs_[++kept] = stairs_[next];
    while (kept > first && extend(stairs_[kept - 1], stairs_[kept])) --kept;
  }
  stairs_.erase(stairs_.begin() + static_cast<ptrdiff_t>(kept) + 1,
                stairs_.begin() + static_cast<ptrdiff_t>(last));
}

void RowCounters::take(int32_t first, int32_t last, std::vector<Stair>& out) {
  if (first >= last) return;
  const size_t begin = split(first);
  const size_t end = split(last);
  for (size_t k = begin; k < end; ++k) {
    out.push_back(stairs_[k]);
    ++stairs_[k].value;
  }
  join(begin == 0 ? 0 : begin - 1, std::min(end + 1, stairs_.size()));
}

std::vector<int32_t> RowCounters::values() const {
  std::vector<int32_t> values(static_cast<size_t>(rows_));
  for (const Stair& s : stairs_)
    for (int32_t row = s.begin; row < s.end; ++row) values[static_cast<size_t>(row)] = s.at(row);
  return values;
}

}  // namespace verbatim
