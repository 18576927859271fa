// Lists of blocks that lie on the device: checked there, before a kernel without a plan reads them.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/report.h"

namespace verbatim::cuda {

struct CheckLists {
  const int32_t* given;  // [lists, room]
  int32_t* checked;      // the same; a list with a wrong entry ends in front of its first
  const int32_t* seen;   // [q_tiles, 2]: seen_by()
  int64_t lists;         // [batch, kv_heads, q_tiles]
  int32_t kv_heads, q_tiles, room, blocks;
  ListReport* report;  // of one wrong entry, unless the host has not read an earlier one
};

/// Throws Error(device) when the launch fails.
void check_lists(const CheckLists& lists, cudaStream_t stream);

/// Behind the kernel: O and LSE of the queries whose list has a wrong entry become NaN. Of `params`
/// o, of 16 bits an element, and lse as they are for lists of tiles.
void refuse_lists(const SelectedParams& params, cudaStream_t stream);

}  // namespace verbatim::cuda
