// Documents and padding, found from breaks and visible positions.
#include <algorithm>
#include <iterator>

#include "mask/slice.h"
#include "verbatim/mask.h"

namespace verbatim {
namespace {

/// Fills in the rows and keys between which the slices of each sequence lie, where nothing does
/// empty ones; false if a slice joins two of them.
bool measure(const HeadMask& mask, std::vector<Sequence>& sequences) {
  for (Sequence& s : sequences) s.q = s.k = {INT64_MAX, INT64_MIN};
  const auto add = [&](const Slice& s) {
    const auto next = sequences.size() == 1
                          ? sequences.end()
                          : std::ranges::upper_bound(sequences, s.q_begin, {}, &Sequence::q_begin);
    const bool last = next == sequences.end();
    Sequence& own = *std::prev(next);
    if (s.k_begin < own.k_begin || s.q_end > (last ? mask.q_len : next->q_begin) ||
        s.k_end > (last ? mask.kv_len : next->k_begin))
      return false;
    own.q = {std::min(own.q.begin, s.q_begin), std::max(own.q.end, s.q_end)};
    own.k = {std::min(own.k.begin, s.k_begin), std::max(own.k.end, s.k_end)};
    return true;
  };
  for (const Slice& slice : mask.slices) {
    if (is_rectangle(slice)) {  // most slices of long lists, so these are not copied
      if (slice.q_begin < slice.q_end && slice.k_begin < slice.k_end && !add(slice)) return false;
    } else if (const auto tight = tighten_band(slice); tight && !add(*tight)) {
      return false;
    }
  }
  return true;
}

/// From the extents of what is visible to what is not padding. Positions count from (q_first,
/// k_first), the sequence ends at (q_end, k_end).
void cut_padding(Sequence& s, int64_t q_first, int64_t k_first, int64_t q_end, int64_t k_end) {
  if (s.q.begin >= s.q.end) {
    s.q = {s.q_begin, q_end};
    s.k = {s.k_begin, k_end};
    s.core = s.q;
    return;
  }
  const int64_t to_row = q_first - k_first;  // from a key to the row of the same position
  const Interval own{s.k.begin + to_row, s.k.end + to_row};
  if (s.q.begin <= own.begin && own.end <= s.q.end) {
    s.core = own;
    return;
  }
  s.q.begin = q_first;
  s.k.begin = k_first;
  s.core = s.q;
}

}  // namespace

std::vector<Sequence> sequences(const HeadMask& mask) {
  std::vector<Sequence> found(1);
  if (mask.q_breaks.size() == mask.k_breaks.size())
    for (size_t i = 0; i < mask.q_breaks.size(); ++i)
      found.push_back({.q_begin = mask.q_breaks[i], .k_begin = mask.k_breaks[i]});
  if (!measure(mask, found)) {
    found.assign(1, {});
    measure(mask, found);
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const bool last = i + 1 == found.size();
    Sequence& s = found[i];
    const int64_t q_end = last ? mask.q_len : found[i + 1].q_begin;
    const int64_t k_end = last ? mask.kv_len : found[i + 1].k_begin;
    cut_padding(s, std::clamp(mask.q_padding, s.q_begin, q_end),
                std::clamp(mask.k_padding, s.k_begin, k_end), q_end, k_end);
  }
  return found;
}

}  // namespace verbatim
