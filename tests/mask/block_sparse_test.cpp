#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "random_mask.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using test::Rng;
using test::uniform;
using Lists = std::vector<std::vector<masks::Block>>;
using Grid = std::set<std::pair<int64_t, int64_t>>;

std::vector<int64_t> random_edges(Rng& rng, int64_t length) {
  std::vector<int64_t> edges{0};
  while (edges.back() < length) {
    edges.push_back(uniform(rng, edges.back() + 1, std::min(length, edges.back() + 20)));
  }
  return edges;
}

int64_t block_of(const std::vector<int64_t>& edges, int64_t x) {
  int64_t block = 0;
  while (edges[block + 1] <= x) ++block;
  return block;
}

/// Lists with random blocks in random order.
Lists random_lists(Rng& rng, int64_t q_blocks, int64_t k_blocks, int64_t heads) {
  Lists lists(heads);
  for (auto& list : lists) {
    for (int64_t q = 0; q < q_blocks; ++q) {
      for (int64_t k = 0; k < k_blocks; ++k) {
        if (uniform(rng, 0, 2) == 0) list.push_back({q, k});
      }
    }
    std::shuffle(list.begin(), list.end(), rng);
  }
  return lists;
}

void expect_selected(const Mask& mask, const Lists& lists, const std::vector<int64_t>& q_edges,
                     const std::vector<int64_t>& k_edges) {
  ASSERT_EQ(mask.kv_heads(), std::ssize(lists));
  ASSERT_EQ(mask.q_len(), q_edges.back());
  ASSERT_EQ(mask.kv_len(), k_edges.back());
  for (size_t h = 0; h < lists.size(); ++h) {
    const HeadMask& head = mask.head(0, h);
    Grid selected;
    for (const masks::Block& b : lists[h]) selected.emplace(b.q_block, b.k_block);
    for (int64_t q = 0; q < head.q_len; ++q) {
      for (int64_t k = 0; k < head.kv_len; ++k) {
        ASSERT_EQ(head.contains(q, k),
                  selected.contains({block_of(q_edges, q), block_of(k_edges, k)}))
            << "head " << h << " q " << q << " k " << k;
      }
    }
    ASSERT_TRUE(head.q_breaks.empty() && head.k_breaks.empty());
    for (size_t i = 1; i < head.slices.size(); ++i) {
      const Slice &a = head.slices[i - 1], &b = head.slices[i];
      ASSERT_FALSE(a.q_begin == b.q_begin && a.k_end == b.k_begin) << "neighbours not merged";
    }
  }
}

TEST(BlockSparse, VariableListsSelectTheirBlocks) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    const auto q_edges = random_edges(rng, uniform(rng, 0, 60));
    const auto k_edges = random_edges(rng, uniform(rng, 0, 60));
    const Lists lists =
        random_lists(rng, std::ssize(q_edges) - 1, std::ssize(k_edges) - 1, uniform(rng, 1, 3));
    SCOPED_TRACE(fmt::format("seed {}", seed));
    expect_selected(masks::variable_block_sparse(q_edges, k_edges, lists), lists, q_edges, k_edges);
    if (HasFatalFailure()) return;
  }
}

TEST(BlockSparse, UniformListsSelectTheirBlocks) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    const int64_t q_len = uniform(rng, 0, 60), kv_len = uniform(rng, 0, 60);
    const int64_t block_q = uniform(rng, 1, 20), block_k = uniform(rng, 1, 70);
    std::vector<int64_t> q_edges{0}, k_edges{0};
    for (int64_t x = 1; x <= q_len; ++x) {
      if (x % block_q == 0 || x == q_len) q_edges.push_back(x);
    }
    for (int64_t x = 1; x <= kv_len; ++x) {
      if (x % block_k == 0 || x == kv_len) k_edges.push_back(x);
    }
    const Lists lists =
        random_lists(rng, std::ssize(q_edges) - 1, std::ssize(k_edges) - 1, uniform(rng, 1, 3));
    SCOPED_TRACE(fmt::format("seed {}: {}x{} blocks {}x{}", seed, q_len, kv_len, block_q, block_k));
    expect_selected(masks::uniform_block_sparse(q_len, kv_len, block_q, block_k, lists), lists,
                    q_edges, k_edges);
    if (HasFatalFailure()) return;
  }
}

// The definition of docs/masks.md, written with a full sort.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

TEST(BlockSparse, DensityTakesTheLargestScores) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    const auto q_edges = random_edges(rng, uniform(rng, 0, 60));
    const auto k_edges = random_edges(rng, uniform(rng, 0, 60));
    const int64_t q_blocks = std::ssize(q_edges) - 1, k_blocks = std::ssize(k_edges) - 1;
    const double density = static_cast<double>(uniform(rng, 0, 100)) / 100;
    const int64_t kv_heads = uniform(rng, 1, 3);
    Lists lists(kv_heads);
    for (int64_t h = 0; h < kv_heads; ++h) {
      for (int64_t q = 0; q < q_blocks; ++q) {
        std::vector<std::pair<uint64_t, int64_t>> scored;  // ~score, block: ties to smaller index
        for (int64_t k = 0; k < k_blocks; ++k) {
          scored.emplace_back(~mix(mix(mix(mix(seed) + h) + q) + k), k);
        }
        std::sort(scored.begin(), scored.end());
        const auto count = std::max<int64_t>(1, static_cast<int64_t>(density * k_blocks));
        for (int64_t i = 0; i < std::min(count, k_blocks); ++i) {
          lists[h].push_back({q, scored[i].second});
        }
      }
    }
    SCOPED_TRACE(fmt::format("seed {} density {}", seed, density));
    expect_selected(masks::variable_block_sparse(q_edges, k_edges, density, seed, kv_heads), lists,
                    q_edges, k_edges);
    if (HasFatalFailure()) return;
  }
}

TEST(BlockSparse, UniformDensityIsVariableDensityOnUniformEdges) {
  const std::vector<int64_t> q_edges{0, 16, 32, 40}, k_edges{0, 8, 16, 24, 32, 40, 44};
  const Mask uniform_mask = masks::uniform_block_sparse(40, 44, 16, 8, 0.5, 7, 4);
  EXPECT_EQ(uniform_mask.variants(),
            masks::variable_block_sparse(q_edges, k_edges, 0.5, 7, 4).variants());
  EXPECT_EQ(uniform_mask.variants().size(), 4u);
  EXPECT_NE(uniform_mask.variants(),
            masks::variable_block_sparse(q_edges, k_edges, 0.5, 8, 4).variants());
}

TEST(BlockSparse, EqualHeadsShareAVariant) {
  const Mask mask = masks::uniform_block_sparse(40, 40, 8, 8, 1.0, 7, 4);
  EXPECT_EQ(mask.variants().size(), 1u);
  EXPECT_EQ(mask.head(0, 3).area(), 1600);
}

TEST(BlockSparse, RefusesWhatDoesNotFit) {
  const std::vector<int64_t> edges{0, 4, 8}, late{1, 4}, flat{0, 4, 4};
  const Lists outside{{{0, 2}}}, twice{{{1, 1}, {0, 0}, {1, 1}}}, none;
  EXPECT_THROW(masks::variable_block_sparse(edges, edges, outside), Error);
  EXPECT_THROW(masks::variable_block_sparse(edges, edges, twice), Error);
  EXPECT_THROW(masks::variable_block_sparse(edges, edges, none), Error);
  EXPECT_THROW(masks::variable_block_sparse(late, edges, 0.5, 1, 1), Error);
  EXPECT_THROW(masks::variable_block_sparse(edges, flat, 0.5, 1, 1), Error);
  EXPECT_THROW(masks::variable_block_sparse({}, edges, 0.5, 1, 1), Error);
  EXPECT_THROW(masks::variable_block_sparse(edges, edges, 1.5, 1, 1), Error);
  EXPECT_THROW(masks::variable_block_sparse(edges, edges, -0.1, 1, 1), Error);
  EXPECT_THROW(masks::variable_block_sparse(edges, edges, std::nan(""), 1, 1), Error);
  EXPECT_THROW(masks::variable_block_sparse(edges, edges, 0.5, 1, 0), Error);
  EXPECT_THROW(masks::uniform_block_sparse(8, 8, 0, 4, 0.5, 1, 1), Error);
  EXPECT_THROW(masks::uniform_block_sparse(8, 8, 4, -4, 0.5, 1, 1), Error);
  EXPECT_THROW(masks::uniform_block_sparse(-8, 8, 4, 4, 0.5, 1, 1), Error);
}

}  // namespace
}  // namespace verbatim
