// The three branches of native sparse attention (Yuan et al. 2025) as forwards of the one sketch
// under masks: what each sees by its definition, and O and LSE against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "backend/cpu/cases.h"
#include "mask/random_mask.h"
#include "tl/programs.h"
#include "verbatim/verbatim.h"

namespace verbatim::test {
namespace {

/// Keys of blocks of `block` that each block of queries selects, a list a KV head.
struct Selected {
  int64_t rows;  // queries that share a list
  int64_t block;
  std::vector<int64_t> row_begin;
  std::vector<int32_t> columns;

  Selected(Rng& rng, int64_t length, int64_t kv_heads, int64_t rows, int64_t block, int64_t most)
      : rows(rows), block(block) {
    const int64_t q_blocks = (length + rows - 1) / rows;
    for (int64_t list = 0; list < kv_heads; ++list) {
      for (int64_t row = 0; row < q_blocks; ++row) {
        row_begin.push_back(std::ssize(columns));
        const int64_t last = row * rows / block;  // the block that the queries lie in
        std::set<int64_t> chosen{last};
        for (int64_t i = 1; i < most; ++i) chosen.insert(uniform(rng, 0, last));
        columns.insert(columns.end(), chosen.begin(), chosen.end());
        std::shuffle(columns.begin() + row_begin.back(), columns.end(), rng);
      }
      row_begin.push_back(std::ssize(columns));
    }
  }
  bool has(int64_t length, int64_t kv_head, int64_t q, int64_t k) const {
    const int64_t at = kv_head * ((length + rows - 1) / rows + 1) + q / rows;
    const auto begin = columns.begin() + row_begin[at],
               end = columns.begin() + row_begin[static_cast<size_t>(at) + 1];
    return std::find(begin, end, k / block) != end;
  }
};

using Sees = std::function<bool(int64_t kv_head, int64_t q, int64_t k)>;

void expect_forward(const Problem& p, const Mask& mask, const Sees& sees) {
  for (int64_t h = 0; h < p.kv_heads; ++h)
    for (int64_t q = 0; q < p.q_len; ++q)
      for (int64_t k = 0; k < p.kv_len; ++k)
        ASSERT_EQ(mask.head(0, h).contains(q, k), sees(h, q, k)) << h << " " << q << " " << k;
  const std::string program =
      tl::reason(sketch("forward"), "forward", {.problem = p, .tile = {64, 32}, .target = "a100"});
  AttentionOptions options;
  options.kernels = {program};
  Case c(p, mask);
  Attention(p, mask, options).forward(c.forward(), {.threads = 2});
  EXPECT_TRUE(check_forward(p, mask, c.forward(), Selection::all(p)).within(2));
}

Problem problem_of(int64_t q_len, int64_t kv_len) {
  return {.q_heads = 8, .kv_heads = 2, .q_len = q_len, .kv_len = kv_len, .dtype = Dtype::bf16};
}

TEST(Nsa, SelectedBlocksAreListsOfTheirKvHead) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    const int64_t n = uniform(rng, 1, 300);
    const Problem p = problem_of(n, n);
    const Selected s(rng, n, p.kv_heads, seed % 2 ? 1 : 64, 32, 4);
    const masks::BlockLists lists{1, p.kv_heads, s.row_begin, s.columns};
    const Mask mask =
        masks::uniform_block_sparse(n, n, s.rows, s.block, lists).intersect(masks::causal(n, n));
    expect_forward(p, mask,
                   [&](int64_t h, int64_t q, int64_t k) { return k <= q && s.has(n, h, q, k); });
  }
}

TEST(Nsa, TheWindowIsAMask) {
  for (const int64_t window : {0, 40, 500})  // keys besides the query's own
    expect_forward(problem_of(150, 150), masks::causal_sliding_window(150, 150, window),
                   [&](int64_t, int64_t q, int64_t k) { return k <= q && q - k <= window; });
}

/// Query q sees compressed key j when all that it stands for is not behind q.
TEST(Nsa, CompressedKeysAreVisibleWhenTheirBlockHasEnded) {
  constexpr int64_t kBlock = 16;
  for (const int64_t n : {160, 250, 300}) {
    const int64_t keys = n / kBlock;
    std::vector<int64_t> q_edges{0}, k_edges{0};
    std::vector<masks::Block> blocks;
    for (int64_t j = 0; j < keys; ++j) {
      q_edges.push_back((j + 1) * kBlock - 1);
      k_edges.push_back(j + 1);
      for (int64_t row = j + 1; row <= keys; ++row) blocks.push_back({row, j});
    }
    q_edges.push_back(n);
    const std::vector<std::vector<masks::Block>> of_all{blocks};
    expect_forward(problem_of(n, keys), masks::variable_block_sparse(q_edges, k_edges, of_all),
                   [&](int64_t, int64_t q, int64_t j) { return (j + 1) * kBlock - 1 <= q; });
  }
}

}  // namespace
}  // namespace verbatim::test
