// Block-sparse patterns: blocks picked by a counter-based generator, or given.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/random.h"
#include "core/threads.h"
#include "mask/blocks.h"
#include "mask/distinct.h"
#include "mask/slice.h"
#include "verbatim/error.h"

namespace verbatim::masks {
namespace {

using Json = nlohmann::json;
/// Key blocks of every query block, ascending: [q_blocks][selected].
using Selection = std::vector<std::vector<int64_t>>;

constexpr int64_t kBlocksWorthThreads = 65536;  // of all heads; fewer are drawn before threads wake

void require(bool ok, const char* mask, std::string argument, std::string got, std::string expected,
             std::string nearest = "") {
  if (!ok)
    refuse(mask, std::move(argument), std::move(got), std::move(expected), std::move(nearest));
}

/// The `count` key blocks of the greatest scores, the first of equal ones, ascending.
std::vector<int64_t> greatest(std::span<const uint64_t> score, int64_t count) {
  std::vector<uint64_t> ranked(score.begin(), score.end());
  const auto least = ranked.begin() + (count - 1);
  std::nth_element(ranked.begin(), least, ranked.end(), std::greater<>());
  int64_t equal = 1 + std::count(ranked.begin(), least, *least);  // of the least to be taken
  std::vector<int64_t> taken;
  taken.reserve(count);
  for (int64_t k = 0; k < std::ssize(score); ++k)
    if (score[k] > *least || (score[k] == *least && equal-- > 0)) taken.push_back(k);
  return taken;
}

Selection pick(int64_t q_blocks, int64_t k_blocks, double density, uint64_t seed, int64_t head) {
  if (k_blocks == 0) return Selection(q_blocks);
  const auto wanted = static_cast<int64_t>(density * static_cast<double>(k_blocks));
  const int64_t count = std::clamp<int64_t>(wanted, 1, k_blocks);
  const uint64_t head_key = splitmix64(splitmix64(seed) + static_cast<uint64_t>(head));
  std::vector<uint64_t> score(k_blocks);
  Selection selection(q_blocks);
  for (int64_t q = 0; q < q_blocks; ++q) {
    const uint64_t row_key = splitmix64(head_key + static_cast<uint64_t>(q));
    for (int64_t k = 0; k < k_blocks; ++k)
      score[k] = splitmix64(row_key + static_cast<uint64_t>(k));
    selection[q] = greatest(score, count);
  }
  return selection;
}

Selection listed(const char* mask, const std::vector<Block>& blocks, int64_t q_blocks,
                 int64_t k_blocks) {
  Selection selection(q_blocks);
  for (const Block& block : blocks) {
    if (block.q_block < 0 || block.q_block >= q_blocks || block.k_block < 0 ||
        block.k_block >= k_blocks) {
      refuse(mask, "blocks", fmt::format("({}, {})", block.q_block, block.k_block),
             fmt::format("blocks of a {} x {} grid", q_blocks, k_blocks));
    }
    selection[block.q_block].push_back(block.k_block);
  }
  for (int64_t q = 0; q < q_blocks; ++q) {
    auto& row = selection[q];
    std::sort(row.begin(), row.end());
    const auto twice = std::adjacent_find(row.begin(), row.end());
    if (twice != row.end()) {
      refuse(mask, "blocks", fmt::format("({}, {}) twice", q, *twice), "every block once");
    }
  }
  return selection;
}

HeadMask assemble(const Grid& grid, const Selection& selection) {
  HeadMask head{grid.q.back(), grid.k.back(), {}, {}, {}};
  for (size_t q = 0; q < selection.size(); ++q) append_row(head, grid, q, selection[q]);
  return head;
}

std::vector<int64_t> uniform_edges(const char* mask, const char* length_name, int64_t length,
                                   const char* block_name, int64_t block) {
  require(0 <= length && length <= kMaxLength, mask, length_name, fmt::to_string(length),
          fmt::format("0 to {}", kMaxLength), length < 0 ? "0" : fmt::to_string(kMaxLength));
  require(block >= 1, mask, block_name, fmt::to_string(block), "1 or more", "1");
  std::vector<int64_t> edges{0};
  while (edges.back() < length)
    edges.push_back(std::min(length, edges.back() + std::min(block, kMaxLength)));
  return edges;
}

void check_edges(const char* mask, const char* argument, Lengths edges) {
  require(!edges.empty() && edges[0] == 0 && edges.back() <= kMaxLength, mask, argument,
          edges.empty() ? "none" : fmt::format("{} to {}", edges[0], edges.back()),
          fmt::format("edges from 0 to a length of at most {}", kMaxLength));
  const auto stays = std::adjacent_find(edges.begin(), edges.end(), std::greater_equal<>());
  if (stays != edges.end()) {
    refuse(mask, argument, fmt::format("{} before {}", stays[0], stays[1]),
           "strictly increasing edges");
  }
}

Mask from_density(const char* name, Json params, const Grid& grid, double density, uint64_t seed,
                  int64_t kv_heads) {
  require(density >= 0 && density <= 1, name, "density", fmt::to_string(density), "0 to 1",
          density > 1 ? "1" : "0");
  require(kv_heads >= 1 && kv_heads <= kMaxHeads, name, "kv_heads", fmt::to_string(kv_heads),
          fmt::format("1 to {}", kMaxHeads), "1");
  params["density"] = density;
  params["seed"] = seed;
  std::vector<HeadMask> drawn(kv_heads);
  const bool few = grid.q_blocks() * grid.k_blocks() * kv_heads < kBlocksWorthThreads;
  for_each_in_parallel(few ? 1 : core_count(), kv_heads, [&](int64_t h) {
    drawn[h] = assemble(grid, pick(grid.q_blocks(), grid.k_blocks(), density, seed, h));
  });
  DistinctHeads heads;
  for (HeadMask& head : drawn) heads.variant_of.push_back(heads.id_of(std::move(head)));
  return Mask(name, params.dump(), std::move(heads.variants), std::move(heads.variant_of), 1,
              kv_heads);
}

Mask from_lists(const char* name, Json params, const Grid& grid,
                std::span<const std::vector<Block>> blocks_per_kv_head) {
  const int64_t kv_heads = std::ssize(blocks_per_kv_head);
  require(kv_heads >= 1 && kv_heads <= kMaxHeads, name, "blocks_per_kv_head",
          fmt::format("{} lists", kv_heads), "one list of blocks per KV head");
  DistinctHeads heads;
  Json lists = Json::array();
  for (const std::vector<Block>& blocks : blocks_per_kv_head) {
    const Selection selection = listed(name, blocks, grid.q_blocks(), grid.k_blocks());
    heads.variant_of.push_back(heads.id_of(assemble(grid, selection)));
    Json& list = lists.emplace_back(Json::array());
    for (const Block& block : blocks) list.push_back({block.q_block, block.k_block});
  }
  params["blocks"] = std::move(lists);
  return Mask(name, params.dump(), std::move(heads.variants), std::move(heads.variant_of), 1,
              kv_heads);
}

Json uniform_params(int64_t block_q, int64_t block_k) {
  return {{"block_q", block_q}, {"block_k", block_k}};
}

Json variable_params(const Grid& grid) { return {{"q_edges", grid.q}, {"k_edges", grid.k}}; }

}  // namespace

void refuse(const char* mask, std::string argument, std::string got, std::string expected,
            std::string nearest) {
  throw Error(ErrorCode::invalid_argument, std::string("mask.") + mask,
              fmt::format("{} is out of range", argument),
              {argument, std::move(got), std::move(expected), std::move(nearest)});
}

Grid uniform_grid(int64_t q_len, int64_t kv_len, int64_t block_q, int64_t block_k) {
  return {uniform_edges(kUniform, "q_len", q_len, "block_q", block_q),
          uniform_edges(kUniform, "kv_len", kv_len, "block_k", block_k)};
}

Grid variable_grid(Lengths q_edges, Lengths k_edges) {
  check_edges(kVariable, "q_edges", q_edges);
  check_edges(kVariable, "k_edges", k_edges);
  return {{q_edges.begin(), q_edges.end()}, {k_edges.begin(), k_edges.end()}};
}

Mask uniform_block_sparse(int64_t q_len, int64_t kv_len, int64_t block_q, int64_t block_k,
                          double density, uint64_t seed, int64_t kv_heads) {
  return from_density(kUniform, uniform_params(block_q, block_k),
                      uniform_grid(q_len, kv_len, block_q, block_k), density, seed, kv_heads);
}

Mask uniform_block_sparse(int64_t q_len, int64_t kv_len, int64_t block_q, int64_t block_k,
                          std::span<const std::vector<Block>> blocks_per_kv_head) {
  return from_lists(kUniform, uniform_params(block_q, block_k),
                    uniform_grid(q_len, kv_len, block_q, block_k), blocks_per_kv_head);
}

Mask variable_block_sparse(Lengths q_edges, Lengths k_edges, double density, uint64_t seed,
                           int64_t kv_heads) {
  const Grid grid = variable_grid(q_edges, k_edges);
  return from_density(kVariable, variable_params(grid), grid, density, seed, kv_heads);
}

Mask variable_block_sparse(Lengths q_edges, Lengths k_edges,
                           std::span<const std::vector<Block>> blocks_per_kv_head) {
  const Grid grid = variable_grid(q_edges, k_edges);
  return from_lists(kVariable, variable_params(grid), grid, blocks_per_kv_head);
}

}  // namespace verbatim::masks
