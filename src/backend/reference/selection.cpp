#include "backend/reference/selection.h"

#include <algorithm>
#include <set>

#include "core/random.h"

namespace verbatim {
namespace {

std::vector<RowIndex> all_rows(int64_t batch, int64_t length, int64_t heads) {
  std::vector<RowIndex> rows;
  rows.reserve(batch * length * heads);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t l = 0; l < length; ++l)
      for (int64_t h = 0; h < heads; ++h) rows.push_back({b, l, h});
  return rows;
}

// Queries that attend to key k.
std::vector<int64_t> queries_of(const HeadMask& mask, int64_t k) {
  std::vector<int64_t> queries;
  for (const Slice& slice : mask.slices) {
    if (k < slice.k_begin || k >= slice.k_end) continue;
    const int64_t begin = std::max(slice.q_begin, k - slice.hi);
    const int64_t end = std::min(slice.q_end, k - slice.lo + 1);
    for (int64_t q = begin; q < end; ++q) queries.push_back(q);
  }
  return queries;
}

int64_t visible_keys(const HeadMask& mask, int64_t q) {
  int64_t count = 0;
  for (const Interval& keys : mask.row(q)) count += keys.end - keys.begin;
  return count;
}

}  // namespace

Selection Selection::all(const Problem& p) {
  return {all_rows(p.batch, p.q_len, p.q_heads), all_rows(p.batch, p.kv_len, p.kv_heads)};
}

Selection Selection::sample(const Problem& p, const Mask& mask, uint64_t seed,
                            int64_t max_positions) {
  Random random(seed);
  std::set<RowIndex> queries, keys;
  for (int i = 0; i < 48 && p.q_len > 0; ++i) {
    const int64_t q = i == 0 ? 0 : i == 1 ? p.q_len - 1 : random.between(0, p.q_len - 1);
    queries.insert({random.between(0, p.batch - 1), q, random.between(0, p.q_heads - 1)});
  }

  const int64_t b = random.between(0, p.batch - 1), h = random.between(0, p.kv_heads - 1);
  const HeadMask& head = mask.head(b, h);
  std::vector<int64_t> cost(p.q_len, -1);  // of rows looked at; 0 once taken
  int64_t left = max_positions;
  for (int i = 0; i < 256 && keys.size() < 32 && p.kv_len > 0; ++i) {
    // Half of the candidates come from the last keys, which few queries see under causal masks.
    const int64_t low = i % 2 == 0 ? 0 : std::max<int64_t>(0, p.kv_len - 256);
    const int64_t k = i == 0 ? p.kv_len - 1 : random.between(low, p.kv_len - 1);
    const std::vector<int64_t> rows = queries_of(head, k);
    int64_t positions = 0;
    for (int64_t q : rows) {
      if (cost[q] < 0) cost[q] = visible_keys(head, q) * p.group();
      positions += cost[q];
      if (positions > left) break;
    }
    if (positions > left) continue;
    left -= positions;
    for (int64_t q : rows) cost[q] = 0;
    keys.insert({b, k, h});
  }
  return {{queries.begin(), queries.end()}, {keys.begin(), keys.end()}};
}

}  // namespace verbatim
