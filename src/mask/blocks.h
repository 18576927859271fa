// What the block-sparse patterns share: grids of blocks, and rows of them as slices.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "verbatim/mask.h"

namespace verbatim::masks {

constexpr const char* kUniform = "uniform_block_sparse";
constexpr const char* kVariable = "variable_block_sparse";

/// Throws Error(invalid_argument) in the name of `mask`.
[[noreturn]] void refuse(const char* mask, std::string argument, std::string got,
                         std::string expected, std::string nearest = "");

/// Edges of the blocks of both axes, from 0 to the length.
struct Grid {
  std::vector<int64_t> q, k;

  int64_t q_blocks() const { return std::ssize(q) - 1; }
  int64_t k_blocks() const { return std::ssize(k) - 1; }
};
Grid uniform_grid(int64_t q_len, int64_t kv_len, int64_t block_q, int64_t block_k);
Grid variable_grid(Lengths q_edges, Lengths k_edges);

/// Adds a row of blocks, ascending ones of the key axis: a slice for each stretch of neighbours.
template <class Columns>
void append_row(HeadMask& head, const Grid& grid, size_t row, const Columns& columns) {
  bool extends = false;
  for (const auto column : columns) {
    const auto k = static_cast<size_t>(column);
    if (extends && head.slices.back().k_end == grid.k[k]) {
      head.slices.back().k_end = grid.k[k + 1];
    } else {
      head.slices.push_back({grid.q[row], grid.q[row + 1], grid.k[k], grid.k[k + 1]});
    }
    extends = true;
  }
}

}  // namespace verbatim::masks
