// Dense matrices, FlashMask columns and packed sequences, to and from slices.
#include <fmt/format.h>

#include <algorithm>

#include "mask/lines.h"
#include "mask/row_intervals.h"
#include "mask/slice.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr int64_t kMaxDense = int64_t{1} << 28;

[[noreturn]] void fail(const char* operation, std::string argument, std::string got,
                       std::string expected) {
  throw Error(ErrorCode::invalid_argument, operation, fmt::format("{} is out of range", argument),
              {argument, std::move(got), std::move(expected), ""});
}

void require(bool ok, const char* operation, std::string argument, std::string got,
             std::string expected) {
  if (!ok) fail(operation, std::move(argument), std::move(got), std::move(expected));
}

void check_plane(const char* operation, int64_t q_len, int64_t kv_len) {
  require(0 <= q_len && q_len <= kMaxLength, operation, "q_len", fmt::to_string(q_len),
          fmt::format("0 to {}", kMaxLength));
  require(0 <= kv_len && kv_len <= kMaxLength, operation, "kv_len", fmt::to_string(kv_len),
          fmt::format("0 to {}", kMaxLength));
}

}  // namespace

namespace masks {

Mask from_dense(std::span<const uint8_t> dense, int64_t q_len, int64_t kv_len) {
  const char* operation = "mask.from_dense";
  check_plane(operation, q_len, kv_len);
  require(std::ssize(dense) == q_len * kv_len, operation, "dense",
          fmt::format("{} positions", dense.size()), fmt::format("{} x {}", q_len, kv_len));
  SliceBuilder builder;
  std::vector<Interval> keys;
  for (int64_t q = 0; q < q_len; ++q) {
    const auto row = dense.subspan(q * kv_len, kv_len);
    keys.clear();
    for (int64_t k = 0; k < kv_len; ++k) {
      if (row[k] == 0) continue;
      if (k == 0 || row[k - 1] == 0) keys.push_back({k, k});
      keys.back().end = k + 1;
    }
    builder.add_row(keys);
  }
  return Mask("dense", "{}", {q_len, kv_len, builder.finish(), {}, {}});
}

Mask from_row_intervals(const RowIntervals& rows, int64_t kv_len) {
  const char* operation = "mask.from_row_intervals";
  const int64_t q_len = std::ssize(rows.row_begin) - 1, count = std::ssize(rows.begins);
  check_plane(operation, q_len, kv_len);
  require(std::ssize(rows.ends) == count, operation, "ends",
          fmt::format("{} intervals", rows.ends.size()), fmt::to_string(count));
  SliceBuilder builder;
  std::vector<Interval> keys;
  for (int64_t q = 0; q < q_len; ++q) {
    const int64_t begin = rows.row_begin[q], end = rows.row_begin[q + 1];
    require(0 <= begin && begin <= end && end <= count, operation,
            fmt::format("row_begin[{}]", q + 1), fmt::format("intervals [{}, {})", begin, end),
            fmt::format("a part of [0, {})", count));
    keys.clear();
    for (int64_t i = begin; i < end; ++i) {
      const Interval seen{rows.begins[i], rows.ends[i]};
      const int64_t least = keys.empty() ? 0 : keys.back().end + 1;
      require(least <= seen.begin && seen.begin < seen.end && seen.end <= kv_len, operation,
              fmt::format("interval {} of row {}", i - begin, q),
              fmt::format("keys [{}, {})", seen.begin, seen.end),
              fmt::format("some of [{}, {})", least, kv_len));
      keys.push_back(seen);
    }
    builder.add_row(keys);
  }
  return Mask("dense", "{}", {q_len, kv_len, builder.finish(), {}, {}});
}

Mask from_column_intervals(const ColumnIntervals& columns, int64_t q_len) {
  const char* operation = "mask.from_column_intervals";
  const int64_t kv_len = std::ssize(columns.lower_start);
  check_plane(operation, q_len, kv_len);
  for (const auto* list : {&columns.lower_end, &columns.upper_start, &columns.upper_end}) {
    require(std::ssize(*list) == kv_len, operation, "columns",
            fmt::format("lists of {} and {} keys", kv_len, list->size()),
            "four lists of equal length");
  }
  SliceBuilder builder;
  std::vector<Interval> rows;
  for (int64_t k = 0; k < kv_len; ++k) {
    Interval hidden[] = {{columns.lower_start[k], columns.lower_end[k]},
                         {columns.upper_start[k], columns.upper_end[k]}};
    for (const Interval& h : hidden) {
      if (0 <= h.begin && h.begin <= h.end && h.end <= q_len) continue;
      fail(operation, fmt::format("columns[{}]", k), fmt::format("rows [{}, {})", h.begin, h.end),
           fmt::format("a part of [0, {})", q_len));
    }
    if (hidden[1].begin < hidden[0].begin) std::swap(hidden[0], hidden[1]);
    rows.clear();
    int64_t visible = 0;
    for (const Interval& h : hidden) {
      if (h.begin == h.end) continue;
      if (visible < h.begin) rows.push_back({visible, h.begin});
      visible = std::max(visible, h.end);
    }
    if (visible < q_len) rows.push_back({visible, q_len});
    builder.add_row(rows);
  }
  HeadMask head{q_len, kv_len, {}, {}, {}};
  for (const Slice& s : builder.finish()) head.slices.push_back(*tighten(transpose(s)));
  return Mask("column_intervals", "{}", std::move(head));
}

}  // namespace masks

std::vector<uint8_t> to_dense(const HeadMask& mask) {
  require(mask.q_len * mask.kv_len <= kMaxDense, "mask.to_dense", "mask",
          fmt::format("{} x {}", mask.q_len, mask.kv_len),
          fmt::format("at most {} positions", kMaxDense));
  std::vector<uint8_t> dense(mask.q_len * mask.kv_len, 0);
  for_each_row(mask.slices, mask.q_len, [&](int64_t q, std::span<const Interval> row) {
    for (const Interval& keys : row) {
      std::fill(dense.begin() + q * mask.kv_len + keys.begin,
                dense.begin() + q * mask.kv_len + keys.end, 1);
    }
  });
  return dense;
}

std::optional<masks::ColumnIntervals> to_column_intervals(const HeadMask& mask) {
  std::vector<Slice> transposed;
  for (const Slice& s : mask.slices) transposed.push_back(transpose(s));
  masks::ColumnIntervals columns;
  bool possible = true;
  std::vector<Interval> hidden;
  for_each_row(transposed, mask.kv_len, [&](int64_t, std::span<const Interval> rows) {
    hidden.clear();
    int64_t at = 0;
    for (const Interval& visible : rows) {
      if (at < visible.begin) hidden.push_back({at, visible.begin});
      at = visible.end;
    }
    if (at < mask.q_len) hidden.push_back({at, mask.q_len});
    possible = possible && hidden.size() <= 2;
    if (!possible) return;
    // A hidden interval at the top is FlashMask's upper one; unused ones are empty at the borders.
    Interval upper{0, 0}, lower{mask.q_len, mask.q_len};
    if (hidden.size() == 2) {
      upper = hidden[0];
      lower = hidden[1];
    } else if (hidden.size() == 1) {
      (hidden[0].begin == 0 ? upper : lower) = hidden[0];
    }
    columns.lower_start.push_back(lower.begin);
    columns.lower_end.push_back(lower.end);
    columns.upper_start.push_back(upper.begin);
    columns.upper_end.push_back(upper.end);
  });
  if (!possible) return std::nullopt;
  return columns;
}

std::optional<CuSeqlens> to_cu_seqlens(const HeadMask& mask) {
  CuSeqlens chain{{0}, {0}, false};
  bool possible = true, full = false;
  Interval last{0, 0};  // keys of the latest row of the sequence at hand
  const auto close = [&](int64_t q, int64_t k) {
    if (q == chain.q.back() && k == chain.k.back()) return;
    chain.q.push_back(q);
    chain.k.push_back(k);
  };
  for_each_row(mask.slices, mask.q_len, [&](int64_t q, std::span<const Interval> row) {
    possible = possible && row.size() <= 1;
    if (!possible) return;
    const bool empty = row.empty();
    const Interval keys = empty ? Interval{last.end, last.end} : row[0];
    const bool was_empty = last.begin == last.end;
    if (q > 0 && empty && was_empty) return;
    if (q > 0 && !empty && !was_empty && keys.begin == last.begin) {
      chain.causal = chain.causal || keys.end == last.end + 1;
      full = full || keys.end == last.end;
      possible = keys.end == last.end || keys.end == last.end + 1;
    } else {
      close(q, last.end);
      close(q, keys.begin);  // keys that nobody sees are a sequence without queries
      possible = keys.begin >= last.end;
    }
    last = keys;
  });
  if (!possible || (chain.causal && full)) return std::nullopt;
  close(mask.q_len, last.end);
  close(mask.q_len, mask.kv_len);
  return chain;
}

}  // namespace verbatim
