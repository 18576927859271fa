#include "backend/cuda/status.h"

#include <fmt/format.h>

#include <algorithm>

namespace verbatim::cuda {

void check(cudaError_t status, const char* operation) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // it is told here, and must not be told of the caller's next launch
  throw Error(ErrorCode::device, operation,
              fmt::format("{} ({}); detected here, it may stem from earlier work on this device",
                          cudaGetErrorString(status), cudaGetErrorName(status)));
}

void check_residency(int64_t needed, int64_t resident, const char* operation) {
  if (resident >= std::max<int64_t>(needed, 1)) return;
  throw Error(ErrorCode::unsupported, operation, "the plan needs more workers at once than fit",
              {"order", fmt::format("{} workers at once", needed),
               fmt::format("at most {}", resident), "descending, which needs one"});
}

std::string tiles_of(const TileShape& tile) {
  return fmt::format("tiles of {} x {}", tile.q, tile.kv);
}

}  // namespace verbatim::cuda
