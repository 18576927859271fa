// The sum of dK and dV of a KV tile whose parts other ranks may have made.
#include <utility>

#include "backend/cpu/passes.h"
#include "backend/cpu/workspace.h"

namespace verbatim::cpu {

void add_tile_sums(const Plan& plan, const TileSums& sums, const BackwardTensors& tensors,
                   const PieceMemory& memory, const KernelTable& kernels) {
  const Problem& problem = plan.problem;
  const std::vector<int64_t>& edges = plan.order(sums.head).tiles->kv_edges;
  const int64_t first = edges[sums.kv_tile], rows = edges[sums.kv_tile + 1] - first;
  const int64_t b = sums.head / problem.kv_heads, kv_head = sums.head % problem.kv_heads;
  const Place place{0, memory.kv_rows.at(b, first), kv_head - memory.first_kv_head};
  const ScoreScalars scalars = score_scalars(problem);
  int64_t offset = 0;  // of dK, then dV, in a block
  for (const auto& [out, scale] :
       {std::pair{&tensors.dk, scalars.scale}, std::pair{&tensors.dv, scalars.keep_scale}}) {
    const int64_t dim = out->shape[3], ld = leading_dim(dim);
    Arena arena(round_up(rows, kRowGroup) * ld);
    float* tile = arena.take(round_up(rows, kRowGroup) * ld);
    float* total = memory.block(sums.blocks.front()) + offset;
    for (size_t part = 0; part < sums.blocks.size(); ++part) {
      const bool last = part + 1 == sums.blocks.size();
      kernels.load_rows(memory.block(sums.blocks[part]) + offset, Dtype::f32, dim,
                        static_cast<int32_t>(rows), static_cast<int32_t>(dim), tile, ld);
      kernels.add_rows(tile, ld, static_cast<int32_t>(rows), static_cast<int32_t>(dim),
                       part > 0 ? total : nullptr, dim, last ? scale : 1.0f,
                       last ? rows_out(*out, place) : RowsOut{total, Dtype::f32, dim});
    }
    offset += rows * dim;
  }
}

}  // namespace verbatim::cpu
