// Geometry of one slice. Every function is O(1).
#pragma once

#include <optional>
#include <string>

#include "verbatim/mask.h"

namespace verbatim {

/// Longest query or key axis: tile indices then fit 32 bits and areas 64.
inline constexpr int64_t kMaxLength = int64_t{1} << 30;

/// Most batch entries or heads.
inline constexpr int64_t kMaxHeads = int64_t{1} << 24;

/// Whether no band cuts the slice.
inline bool is_rectangle(const Slice& s) { return s.lo == Slice::kNoLow && s.hi == Slice::kNoHigh; }

/// The positions that both slices hold; may be empty.
Slice clip(const Slice& a, const Slice& b);

/// The same positions with the smallest rectangle around them (so no row and no column is empty)
/// and with bands that cut nothing left open; nullopt when no position is visible.
std::optional<Slice> tighten_band(const Slice& slice);
inline std::optional<Slice> tighten(const Slice& s) {
  if (!is_rectangle(s)) return tighten_band(s);
  return s.q_begin < s.q_end && s.k_begin < s.k_end ? std::optional(s) : std::nullopt;
}

/// Queries and keys exchanged.
Slice transpose(const Slice& slice);

/// The same positions seen from the new origin (q, k).
Slice shift(const Slice& slice, int64_t q, int64_t k);

/// Visible keys of row q of a tightened slice, q in [q_begin, q_end).
Interval keys_of_row(const Slice& slice, int64_t q);

/// "q [0, 4) x k [0, 8), k - q <= 2"
std::string to_string(const Slice& slice);

}  // namespace verbatim
