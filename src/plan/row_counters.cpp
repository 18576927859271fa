#include "plan/row_counters.h"

#include <algorithm>
#include <bit>

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

/// Whether extend() may succeed with a neighbour of value `value`; most on irregular masks may not.
bool may_extend(const Stair& a, int32_t value) {
  if (a.step == 0) return true;
  if (a.every == 1) return a.value + a.size() * a.step == value;
  return a.size() % a.every != 0 || a.at(a.end) == value;
}

uint64_t bit(int32_t i) { return uint64_t{1} << (i % 64); }

/// The highest of the bits 0 to `i` of a word; -1: none.
int32_t highest(uint64_t word, int32_t i) {
  return 63 - std::countl_zero(word & (~uint64_t{0} >> (63 - i)));
}

size_t words_for(size_t bits) { return (bits + 63) / 64; }

}  // namespace

RowCounters::RowCounters(int32_t rows)
    : rows_(rows),
      stairs_(rows),
      begins_(words_for(stairs_.size())),
      words_(words_for(begins_.size())) {
  if (rows > 0) put({0, rows, 0, 0, 1});
}

void RowCounters::put(const Stair& stair) {
  at(stair.begin) = stair;
  const int32_t word = stair.begin / 64;
  begins_[word] |= bit(stair.begin);
  words_[word / 64] |= bit(word);
}

void RowCounters::remove(int32_t begin) {
  const int32_t word = begin / 64;
  if ((begins_[word] &= ~bit(begin)) == 0) words_[word / 64] &= ~bit(word);
}

int32_t RowCounters::begin_before(int32_t row) const {
  int32_t word = row / 64 - 1;  // a stair begins at row 0, so some word before has a bit
  int32_t group = word / 64, i = highest(words_[group], word % 64);
  while (i < 0) i = highest(words_[--group], 63);
  word = group * 64 + i;
  return word * 64 + highest(begins_[word], 63);
}

// Lets a stair begin at `row`, cutting one in two or three if need be.
void RowCounters::split(int32_t row) {
  if (row >= rows_) return;
  const int32_t begin = begin_of(row);
  if (begin == row) return;
  const Stair whole = at(begin);
  const int32_t plateau_end =
      std::min(whole.end, whole.begin + ((row - whole.begin) / whole.every + 1) * whole.every);
  const bool on_edge = whole.step == 0 || (row - whole.begin) % whole.every == 0;
  const auto put_rest_from = [&](int32_t from) {
    put(canonical({from, whole.end, whole.at(from), whole.step, whole.every}));
  };
  at(begin) = canonical({whole.begin, row, whole.value, whole.step, whole.every});
  if (on_edge) return put_rest_from(row);
  put({row, plateau_end, whole.at(row), 0, 1});
  if (plateau_end < whole.end) put_rest_from(plateau_end);
}

// Joins what can be joined among the stairs from the one at `first` to the one that ends at `last`.
void RowCounters::join(int32_t first, int32_t last) {
  for (int32_t next = at(first).end; next < last;) {
    const int32_t after = at(next).end;
    for (int32_t kept = next; kept > first;) {
      const int32_t before = begin_of(kept - 1);
      if (!may_extend(at(before), at(kept).value) || !extend(at(before), at(kept))) break;
      remove(kept);
      kept = before;
    }
    next = after;
  }
}

// On irregular masks most stairs are two plateaus and most visits take one of them. Then the two
// are as many plateaus after, and no stair needs to be cut and joined again. False: it is not so
// here.
bool RowCounters::take_plateau(int32_t first, int32_t last, std::vector<Stair>& out,
                               int32_t count) {
  const int32_t begin = begin_of(first), width = last - first;
  Stair& s = at(begin);
  if (s.size() != 2 * width || width > kLongestPlateau || (s.step != 0 && s.every != width))
    return false;
  const auto put_two = [&](int32_t value, int32_t step) {
    s.value = value, s.step = step, s.every = step == 0 ? 1 : width;
  };
  if (first != begin) {
    if (last != s.end) return false;
    out.push_back({first, last, s.value + s.step, 0, 1});
    put_two(s.value, s.step + count);
    if (last < rows_ && may_extend(s, at(last).value)) join(begin, at(last).end);
    return true;
  }
  const int32_t before = first == 0 ? 0 : begin_of(first - 1);
  const bool joins = first > 0 && may_extend(at(before), s.value + count);
  if (joins) {
    Stair joined = at(before);
    if (extend(joined, {first, last, s.value + count, 0, 1})) return false;
  }
  out.push_back({first, last, s.value, 0, 1});
  put_two(s.value + count, s.step - count);
  if (joins) join(before, s.end);
  return true;
}

void RowCounters::take(int32_t first, int32_t last, std::vector<Stair>& out, int32_t count) {
  if (first >= last || take_plateau(first, last, out, count)) return;
  split(first);
  split(last);
  for (int32_t row = first; row < last; row = at(row).end) {
    out.push_back(at(row));
    at(row).value += count;
  }
  join(first == 0 ? 0 : begin_of(first - 1), last < rows_ ? at(last).end : rows_);
}

std::vector<int32_t> RowCounters::values() const {
  std::vector<int32_t> values(rows_);
  for (int32_t begin = 0; begin < rows_;) {
    const Stair& s = stairs_[begin];
    for (int32_t row = s.begin; row < s.end; ++row) values[row] = s.at(row);
    begin = s.end;
  }
  return values;
}

}  // namespace verbatim
