// What a compiled kernel can do and how it is started.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

#include "backend/cuda/device/params.h"
#include "backend/cuda/device/record.h"
#include "backend/cuda/limits.h"
#include "plan/live_heads.h"
#include "verbatim/plan.h"

namespace verbatim::cuda {

/// Where and how large a launch may be.
struct LaunchContext {
  cudaStream_t stream;
  int32_t multiprocessors;  // that the stream can use
  int32_t residency;        // CTAs that must run at once (Plan::residency)
  bool together;            // all CTAs start at once or not yet
  Dtype dtype;
  TileShape tile;
  int32_t tile_sums;       // of a kept tile, in progress (chain_sums.h)
  LiveHeads live_heads;    // backward: places for sums of dQ
  bool empty_rows;         // backward: some query tile has no addend: the launch zeroes its dQ
  bool ordered;            // backward: false adds to dQ in any order, the price list of determinism
  double shown_by_blocks;  // of TileMap, mean of orders: below 1 many visits show half a tile
  bool heads_in_pairs;     // forward under blocks: tasks 2 i and 2 i + 1 of the queue are
                           // neighbouring query heads of a group with the same visits
  RecordView record{};     // without memory: nothing is recorded
};

/// What a plan's orders need of a kernel's workspace.
struct PlanExtent {
  int32_t max_q_tiles, max_kv_tiles;  // most of any order
  int32_t tile_sums;                  // as in LaunchContext
  LiveHeads live_heads;               // as in LaunchContext
  bool piece = false;                 // sums are carried: CarriedSums
};

/// A compiled kernel. Its functions are pure, except for the launches; a launch enqueues all it
/// needs on the stream, allocates nothing, waits for nothing and throws Error(device).
struct Kernel {
  const char* name;      // "sm80.backward"
  const char* summary;   // one line for `verbatim info`
  int32_t arch, family;  // least compute capability and first one too new: 80 and 1000
  Pass pass;
  const char* arithmetic;  // id of arithmetics(): of the plans that it runs
  Limits limits{};         // of its own fields
  /// Empty when it can run the problem in these tiles; else what would work, for the error.
  std::function<std::string(const Problem& problem, const TileShape& tile)> lacks;
  /// Shared memory of one CTA: a device that has less cannot run it.
  std::function<int64_t(const Problem& problem, const TileShape& tile)> shared_bytes;
  /// Bytes of Params::workspace.
  std::function<int64_t(const Problem& problem, const PlanExtent& extent)> workspace_bytes;
  /// Backward: P has no scale of dropout, dV gets it where it is rounded.
  bool scales_dv = false;
  /// Backward: floats of CarriedSums::dq for each query head of `problem` and so many tiles; null:
  /// it runs no pieces.
  int64_t (*dq_sum_floats)(const Problem& problem, int32_t q_tiles) = nullptr;
  /// Whether it fills LaunchContext::record when that has memory; null: never.
  bool (*records)(const Problem& problem) = nullptr;
  std::function<void(const ForwardParams& params, const LaunchContext& context)> forward;    // or
  std::function<void(const BackwardParams& params, const LaunchContext& context)> backward;  // null
};

/// The sizes of a validated problem.
Sizes sizes_of(const Problem& problem);

}  // namespace verbatim::cuda
