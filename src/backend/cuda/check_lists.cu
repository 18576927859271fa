#include "backend/cuda/check_lists.h"

#include "backend/cuda/launch.cuh"

namespace verbatim::cuda {
namespace {

constexpr int32_t kRefused = -2;  // where a list with a wrong entry begins
constexpr int kThreads = 256, kWarps = kThreads / 32;

__device__ void publish(ListReport& report, const WrongEntry& entry, int32_t blocks) {
  if (atomicCAS_system(&report.state, WaitReport::free, WaitReport::claimed) != WaitReport::free)
    return;
  report.entry = entry;
  report.blocks = blocks;
  __threadfence_system();  // whole before it is published
  *static_cast<volatile int32_t*>(&report.state) = WaitReport::published;
}

/// A warp for each list, a lane for each of 32 entries.
__global__ void __launch_bounds__(kThreads) check_entries(const __grid_constant__ CheckLists p) {
  const int64_t list = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (list >= p.lists) return;
  const int lane = threadIdx.x % 32;
  const uint32_t lower = (1u << lane) - 1;
  const auto tile = static_cast<int32_t>(list % p.q_tiles);
  const int32_t first = p.seen[2 * tile], last = p.seen[2 * tile + 1];
  const int32_t* given = p.given + list * p.room;
  int32_t* checked = p.checked + list * p.room;
  bool ended = false;  // by an entry of an earlier 32
  for (int32_t begin = 0; begin < p.room; begin += 32) {
    const int32_t at = begin + lane;
    const int32_t block = at < p.room ? given[at] : kNoBlock;
    const uint32_t none = __ballot_sync(~0u, block == kNoBlock);
    bool twice = (__match_any_sync(~0u, block) & lower) != 0;
    for (int32_t earlier = 0; earlier < begin; earlier += 32) {
      const int32_t other = given[earlier + lane];
      for (int i = 0; i < 32; ++i) twice |= __shfl_sync(~0u, other, i) == block;
    }
    const ListFault fault = block == kNoBlock                ? ListFault::none
                            : ended || (none & lower)        ? ListFault::behind_end
                            : block < 0 || block >= p.blocks ? ListFault::no_block
                            : block < first || block >= last ? ListFault::hidden
                            : twice                          ? ListFault::twice
                                                             : ListFault::none;
    const uint32_t wrong = __ballot_sync(~0u, fault != ListFault::none);
    if (wrong) {
      if (lane == 0) checked[0] = kRefused;
      if (lane == __ffs(static_cast<int>(wrong)) - 1) {
        const auto head = static_cast<int32_t>(list / p.q_tiles);
        publish(*p.report,
                {fault, head / p.kv_heads, head % p.kv_heads, tile, at, block, first, last},
                p.blocks);
      }
      return;
    }
    if (at < p.room) checked[at] = block;
    ended |= none != 0;
  }
}

/// A warp for each list.
__global__ void __launch_bounds__(kThreads) write_nan(const __grid_constant__ SelectedParams p) {
  const int64_t list = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t heads = int64_t{p.sizes.batch} * p.sizes.kv_heads;
  if (p.room == 0 || list >= heads * p.q_tiles || p.blocks[list * p.room] != kRefused) return;
  const auto tile = static_cast<int32_t>(list % p.q_tiles);
  const auto head = static_cast<int32_t>(list / p.q_tiles);
  const int32_t b = head / p.sizes.kv_heads, first = head % p.sizes.kv_heads * p.group();
  for (int32_t h = first; h < first + p.group(); ++h) {
    for (int32_t row = p.q_edges[tile]; row < p.q_edges[tile + 1]; ++row) {
      uint16_t* o = p.o.at<uint16_t>(b, row, h);
      for (int32_t d = threadIdx.x % 32; d < p.sizes.head_dim_v; d += 32) o[d] = 0x7fff;
      if (threadIdx.x % 32 == 0) *p.lse.at<float>(b, row, h) = NAN;
    }
  }
}

}  // namespace

void check_lists(const CheckLists& lists, cudaStream_t stream) {
  check(launch_blocks(check_entries, (lists.lists + kWarps - 1) / kWarps, kThreads, 0, false,
                      stream, lists),
        "cuda.check_lists");
}

void refuse_lists(const SelectedParams& params, cudaStream_t stream) {
  const int64_t lists = int64_t{params.sizes.batch} * params.sizes.kv_heads * params.q_tiles;
  check(launch_blocks(write_nan, (lists + kWarps - 1) / kWarps, kThreads, 0, false, stream, params),
        "cuda.refuse_lists");
}

}  // namespace verbatim::cuda
