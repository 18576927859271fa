#include "mask/slice.h"

#include <fmt/format.h>

#include <algorithm>

namespace verbatim {
namespace {

/// Sum of clamp(i, 0, limit) for i < n.
int64_t sum_of_ramp(int64_t n, int64_t limit) {
  if (n <= 0) return 0;
  if (n <= limit) return n * (n - 1) / 2;
  return limit * (limit - 1) / 2 + (n - limit) * limit;
}

/// Positions (x, y) of a rows x columns rectangle with y - x <= bound.
int64_t area_up_to(int64_t rows, int64_t columns, int64_t bound) {
  const int64_t in_row_0 = std::clamp(bound + 1, -rows, columns);
  return sum_of_ramp(rows + in_row_0, columns) - sum_of_ramp(in_row_0, columns);
}

}  // namespace

int64_t Slice::area() const {
  const int64_t rows = q_end - q_begin, columns = k_end - k_begin;
  if (rows <= 0 || columns <= 0 || lo > hi) return 0;
  const int64_t corner = k_begin - q_begin;
  return area_up_to(rows, columns, hi - corner) - area_up_to(rows, columns, lo - 1 - corner);
}

Slice clip(const Slice& a, const Slice& b) {
  return {std::max(a.q_begin, b.q_begin), std::min(a.q_end, b.q_end),
          std::max(a.k_begin, b.k_begin), std::min(a.k_end, b.k_end),
          std::max(a.lo, b.lo),           std::min(a.hi, b.hi)};
}

std::optional<Slice> tighten_band(const Slice& slice) {
  Slice s = slice;
  if (s.lo > s.hi || s.q_begin >= s.q_end || s.k_begin >= s.k_end) return std::nullopt;
  s.q_begin = std::max(s.q_begin, s.k_begin - s.hi);
  s.q_end = std::min(s.q_end, s.k_end - s.lo);
  s.k_begin = std::max(s.k_begin, s.q_begin + s.lo);
  s.k_end = std::min(s.k_end, s.q_end + s.hi);
  if (s.q_begin >= s.q_end || s.k_begin >= s.k_end) return std::nullopt;
  if (s.lo <= s.k_begin - (s.q_end - 1)) s.lo = Slice::kNoLow;
  if (s.hi >= s.k_end - 1 - s.q_begin) s.hi = Slice::kNoHigh;
  return s;
}

Slice transpose(const Slice& s) { return {s.k_begin, s.k_end, s.q_begin, s.q_end, -s.hi, -s.lo}; }

Slice shift(const Slice& s, int64_t q, int64_t k) {
  return {s.q_begin - q,
          s.q_end - q,
          s.k_begin - k,
          s.k_end - k,
          s.lo == Slice::kNoLow ? s.lo : s.lo - (k - q),
          s.hi == Slice::kNoHigh ? s.hi : s.hi - (k - q)};
}

Interval keys_of_row(const Slice& s, int64_t q) {
  return {std::max(s.k_begin, q + s.lo), std::min(s.k_end, q + s.hi + 1)};
}

std::string to_string(const Slice& s) {
  std::string text = fmt::format("q [{}, {}) x k [{}, {})", s.q_begin, s.q_end, s.k_begin, s.k_end);
  if (s.lo != Slice::kNoLow && s.hi != Slice::kNoHigh) {
    text += fmt::format(", {} <= k - q <= {}", s.lo, s.hi);
  } else if (s.lo != Slice::kNoLow) {
    text += fmt::format(", {} <= k - q", s.lo);
  } else if (s.hi != Slice::kNoHigh) {
    text += fmt::format(", k - q <= {}", s.hi);
  }
  return text;
}

}  // namespace verbatim
