#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "mask/lines.h"
#include "mask/slice.h"
#include "mask/small_blocks.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

void require(bool ok, const char* argument, std::string got, std::string expected) {
  if (ok) return;
  throw Error(ErrorCode::invalid_argument, "mask.validate",
              fmt::format("{} is out of range", argument),
              {argument, std::move(got), std::move(expected), ""});
}

void check_breaks(const std::vector<int64_t>& breaks, int64_t length, const char* argument) {
  int64_t previous = 0;
  for (const int64_t edge : breaks) {
    require(previous <= edge && edge <= length, argument, fmt::to_string(edge),
            fmt::format("{} to {}", previous, length));
    previous = edge;
  }
}

/// Sweeps the rows and keeps the slices of the current row ordered by their keys. Both ends of a
/// slice stay or move one key to the right from row to row, so two slices cannot change places
/// without overlapping first: checking neighbours finds every overlap in O(n log n).
void check_disjoint(const std::vector<Slice>& slices) {
  if (in_rows(slices)) return;
  struct Event {
    int64_t q;
    bool starts;  // ends come first, so that a slice may follow another in the same row
    size_t id;
  };
  std::vector<Slice> tight(slices.size());
  std::vector<Event> events;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto s = tighten(slices[i]);
    if (!s) continue;
    tight[i] = *s;
    events.push_back({s->q_begin, true, i});
    events.push_back({s->q_end, false, i});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.q, a.starts, a.id) < std::tie(b.q, b.starts, b.id);
  });

  int64_t row = 0;
  const auto before = [&](size_t a, size_t b) {
    return std::pair(keys_of_row(tight[a], row).begin, a) <
           std::pair(keys_of_row(tight[b], row).begin, b);
  };
  std::set<size_t, decltype(before)> active(before);
  std::vector<decltype(active)::iterator> where(slices.size());
  const auto check = [&](size_t a, size_t b) {
    if (!tighten(clip(tight[a], tight[b]))) return;
    throw Error(
        ErrorCode::invalid_argument, "mask.validate",
        fmt::format("slices {} and {} overlap", std::min(a, b), std::max(a, b)),
        {"slices",
         fmt::format("{} and {}", to_string(slices[std::min(a, b)]),
                     to_string(slices[std::max(a, b)])),
         "disjoint slices", to_string(*tighten(clip(tight[a], tight[b]))) + " in one of them"});
  };
  for (const Event& event : events) {
    if (event.starts) {
      row = event.q;
      const auto it = where[event.id] = active.insert(event.id).first;
      if (it != active.begin()) check(*std::prev(it), event.id);
      if (std::next(it) != active.end()) check(event.id, *std::next(it));
    } else {
      const auto next = active.erase(where[event.id]);
      if (next != active.end() && next != active.begin()) check(*std::prev(next), *next);
    }
  }
}

/// The breaks of both masks. Where each has as many on both axes they go in pairs, boundaries of
/// documents, of which common ones are kept once: whatever both masks show lies between the same
/// boundaries on both axes, so it still does when each axis is sorted on its own.
void join_breaks(const HeadMask& a, const HeadMask& b, HeadMask& both) {
  if (a.q_breaks.size() != a.k_breaks.size() || b.q_breaks.size() != b.k_breaks.size()) {
    std::ranges::set_union(a.q_breaks, b.q_breaks, std::back_inserter(both.q_breaks));
    std::ranges::set_union(a.k_breaks, b.k_breaks, std::back_inserter(both.k_breaks));
    return;
  }
  const auto pairs = [](const HeadMask& mask) {
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (size_t i = 0; i < mask.q_breaks.size(); ++i)
      pairs.emplace_back(mask.q_breaks[i], mask.k_breaks[i]);
    return pairs;
  };
  std::vector<std::pair<int64_t, int64_t>> joined;
  std::ranges::set_union(pairs(a), pairs(b), std::back_inserter(joined));
  for (const auto& [q, k] : joined) {
    both.q_breaks.push_back(q);
    both.k_breaks.push_back(k);
  }
  std::ranges::sort(both.q_breaks);
  std::ranges::sort(both.k_breaks);
}

}  // namespace

bool HeadMask::contains(int64_t q, int64_t k) const {
  return std::any_of(slices.begin(), slices.end(),
                     [&](const Slice& s) { return s.contains(q, k); });
}

int64_t HeadMask::area() const {
  int64_t sum = 0;
  for (const Slice& s : slices) sum += s.area();
  return sum;
}

std::vector<Interval> HeadMask::row(int64_t q) const {
  std::vector<Interval> found;
  for (const Slice& s : slices) {
    if (q < s.q_begin || q >= s.q_end) continue;
    const Interval keys = keys_of_row(s, q);
    if (keys.begin < keys.end) found.push_back(keys);
  }
  merge(found);
  return found;
}

HeadMask HeadMask::crop(int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end) const {
  if (!(0 <= q_begin && q_begin <= q_end && q_end <= q_len && 0 <= k_begin && k_begin <= k_end &&
        k_end <= kv_len)) {
    throw Error(ErrorCode::invalid_argument, "mask.crop", "the rectangle leaves the plane",
                {.argument = "rectangle",
                 .got = fmt::format("[{}, {}) x [{}, {})", q_begin, q_end, k_begin, k_end),
                 .expected = fmt::format("a part of [0, {}) x [0, {})", q_len, kv_len),
                 .nearest = ""});
  }
  HeadMask part{q_end - q_begin, k_end - k_begin, {}, {}, {}};
  part.q_padding = std::clamp(q_padding, q_begin, q_end) - q_begin;
  part.k_padding = std::clamp(k_padding, k_begin, k_end) - k_begin;
  for (const Slice& s : slices) {
    const auto inside = tighten(clip(s, {q_begin, q_end, k_begin, k_end}));
    if (inside) part.slices.push_back(shift(*inside, q_begin, k_begin));
  }
  if (q_breaks.size() == k_breaks.size()) {
    // Boundaries of documents that the rectangle touches; those of others lie outside on both axes.
    for (size_t i = 0; i < q_breaks.size(); ++i) {
      const int64_t q = q_breaks[i], k = k_breaks[i];
      if ((q <= q_begin && k <= k_begin) || (q >= q_end && k >= k_end)) continue;
      part.q_breaks.push_back(std::clamp(q, q_begin, q_end) - q_begin);
      part.k_breaks.push_back(std::clamp(k, k_begin, k_end) - k_begin);
    }
    return part;
  }
  for (const int64_t edge : q_breaks) {
    if (q_begin < edge && edge < q_end) part.q_breaks.push_back(edge - q_begin);
  }
  for (const int64_t edge : k_breaks) {
    if (k_begin < edge && edge < k_end) part.k_breaks.push_back(edge - k_begin);
  }
  return part;
}

HeadMask HeadMask::intersect(const HeadMask& other) const {
  if (q_len != other.q_len || kv_len != other.kv_len) {
    throw Error(ErrorCode::invalid_argument, "mask.intersect", "the masks differ in size",
                {.argument = "other",
                 .got = fmt::format("{} x {}", other.q_len, other.kv_len),
                 .expected = fmt::format("{} x {}", q_len, kv_len),
                 .nearest = ""});
  }
  HeadMask both{q_len, kv_len, {}, {}, {}};
  both.q_padding = std::max(q_padding, other.q_padding);
  both.k_padding = std::max(k_padding, other.k_padding);
  join_breaks(*this, other, both);

  // Slices enter in the order of their first row and meet the other mask's slices still alive.
  struct Entry {
    const Slice* slice;
    int side;
  };
  std::vector<Entry> entries;
  for (const Slice& s : slices) entries.push_back({&s, 0});
  for (const Slice& s : other.slices) entries.push_back({&s, 1});
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.slice->q_begin < b.slice->q_begin;
  });
  std::vector<const Slice*> alive[2];
  for (const Entry& entry : entries) {
    const Slice* slice = entry.slice;
    const int side = entry.side;
    std::erase_if(alive[1 - side], [&](const Slice* s) { return s->q_end <= slice->q_begin; });
    for (const Slice* s : alive[1 - side]) {
      if (const auto common = tighten(clip(*slice, *s))) both.slices.push_back(*common);
    }
    alive[side].push_back(slice);
  }
  std::sort(both.slices.begin(), both.slices.end(), [](const Slice& a, const Slice& b) {
    return std::tie(a.q_begin, a.k_begin, a.lo) < std::tie(b.q_begin, b.k_begin, b.lo);
  });
  return both;
}

void HeadMask::validate() const {
  const std::string lengths = fmt::format("0 to {}", kMaxLength);
  require(0 <= q_len && q_len <= kMaxLength, "q_len", fmt::to_string(q_len), lengths);
  require(0 <= kv_len && kv_len <= kMaxLength, "kv_len", fmt::to_string(kv_len), lengths);
  require(0 <= q_padding && q_padding <= q_len, "q_padding", fmt::to_string(q_padding),
          fmt::format("0 to {}", q_len));
  require(0 <= k_padding && k_padding <= kv_len, "k_padding", fmt::to_string(k_padding),
          fmt::format("0 to {}", kv_len));
  check_breaks(q_breaks, q_len, "q_breaks");
  check_breaks(k_breaks, kv_len, "k_breaks");
  for (const Slice& s : slices) {
    const bool inside = 0 <= s.q_begin && s.q_begin <= s.q_end && s.q_end <= q_len &&
                        0 <= s.k_begin && s.k_begin <= s.k_end && s.k_end <= kv_len;
    const bool band = s.lo >= Slice::kNoLow && s.hi <= Slice::kNoHigh && s.lo <= s.hi;
    const bool empty = s.q_begin == s.q_end || s.k_begin == s.k_end;
    const bool padded = !empty && (s.q_begin < q_padding || s.k_begin < k_padding);
    if (inside && band && !padded) continue;  // texts are made of the wrong ones only
    require(inside, "slices", to_string(s),
            fmt::format("a part of [0, {}) x [0, {})", q_len, kv_len));
    require(
        !padded, "slices", to_string(s),
        fmt::format("nothing before row {} and key {}, where padding ends", q_padding, k_padding));
    require(band, "slices", to_string(s), "a band lo <= hi within [kNoLow, kNoHigh]");
  }
  check_disjoint(slices);
}

}  // namespace verbatim
