// What a rank launches: pieces of a plan, and additions.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/add_sums.h"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/executor.h"
#include "backend/cuda/run_plan.h"
#include "backend/local_piece.h"

namespace verbatim::cuda {
namespace {

/// A piece as a plan of its memory, on the device.
struct CudaPiece final : ReadyLaunch {
  CudaPiece(const Device& device, LocalPiece piece)
      : local(std::move(piece)), held(device, local) {}

  LocalPiece local;
  DevicePlan held;
};

/// Tiles to add and blocks of their parts, on the device.
struct CudaSums final : ReadyLaunch {
  CudaSums(const Device& device, const Plan& plan, const std::vector<SummedTile>& tiles,
           const std::vector<int32_t>& parts, int32_t most_rows)
      : whole(plan), held(device, std::span(tiles).size_bytes() + std::span(parts).size_bytes()) {
    const auto tile_bytes = std::as_bytes(std::span(tiles)),
               part_bytes = std::as_bytes(std::span(parts));
    std::vector<std::byte> bytes(tile_bytes.begin(), tile_bytes.end());
    bytes.insert(bytes.end(), part_bytes.begin(), part_bytes.end());
    held.copy(bytes);
    const auto* first = static_cast<const SummedTile*>(held.data());
    sums = {.dtype = plan.problem.dtype,
            .tiles = first,
            .parts = reinterpret_cast<const int32_t*>(first + tiles.size()),
            .count = static_cast<int32_t>(tiles.size()),
            .most_rows = most_rows};
  }

  const Plan& whole;
  Upload held;
  AddSums sums{};
};

class StreamMoment final : public Moment {
 public:
  StreamMoment(int device, cudaStream_t stream) : device_(device) {
    check(cudaEventCreate(&event_), "cuda.event");
    const cudaError_t status = cudaEventRecord(event_, stream);
    if (status != cudaSuccess) cudaEventDestroy(event_);
    check(status, "cuda.event");
  }
  ~StreamMoment() override { cudaEventDestroy(event_); }
  double seconds_since(const Moment& earlier) const override {
    const DeviceGuard guard(device_);
    float milliseconds = 0;
    check(cudaEventSynchronize(event_), "cuda.event");
    check(cudaEventElapsedTime(&milliseconds, static_cast<const StreamMoment&>(earlier).event_,
                               event_),
          "cuda.event");
    return milliseconds / 1e3;
  }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::unique_ptr<const ReadyLaunch> CudaBackend::ready_piece(const Plan& whole, const Piece& piece,
                                                            const PieceMemory& memory,
                                                            int64_t q_heads,
                                                            const RunOptions& run) const {
  LocalPiece local(whole, piece, memory, q_heads);
  check_limits(kernel(local.plan).limits, local.plan.problem, counts_of(local.plan));
  auto ready = std::make_unique<CudaPiece>(device_, std::move(local));
  const DeviceGuard guard(device_.index);
  ready->held.upload().before_launch(static_cast<cudaStream_t>(run.stream));
  return ready;
}

void CudaBackend::forward_piece(const ReadyLaunch& ready, const ForwardTensors& tensors,
                                const PieceMemory&, const RunOptions& run) const {
  const auto& [local, held] = static_cast<const CudaPiece&>(ready);
  const Kernel& chosen = kernel(local.plan);
  const int64_t wait_limit = wait_limit_ns(run);
  check_waits();
  const DeviceGuard guard(device_.index);
  ForwardParams params;
  params.q = ref("q", local.q_side(tensors.q));
  params.k = ref("k", local.kv_side(tensors.k));
  params.v = ref("v", local.kv_side(tensors.v));
  params.o = ref("o", local.q_side(tensors.o));
  params.lse = local.q_side(tensors.lse).data;
  held.upload().before_launch(static_cast<cudaStream_t>(run.stream));
  run_plan(device_, chosen, chosen.forward, local.plan, held, run, wait_limit, params);
}

void CudaBackend::backward_piece(const ReadyLaunch& ready, const BackwardTensors& tensors,
                                 const PieceMemory& memory, const RunOptions& run) const {
  const auto& [local, held] = static_cast<const CudaPiece&>(ready);
  const Kernel& chosen = kernel(local.plan);
  const int64_t wait_limit = wait_limit_ns(run);
  check_waits();
  const DeviceGuard guard(device_.index);
  BackwardParams params;
  params.q = ref("q", local.q_side(tensors.q));
  params.k = ref("k", local.kv_side(tensors.k));
  params.v = ref("v", local.kv_side(tensors.v));
  params.o = ref("o", local.q_side(tensors.o));
  params.dout = ref("dout", local.q_side(tensors.dout));
  params.lse = local.q_side(tensors.lse).data;
  params.dq = ref("dq", local.q_side(tensors.dq));
  params.dk = ref("dk", local.kv_side(tensors.dk));
  params.dv = ref("dv", local.kv_side(tensors.dv));
  const auto q_tiles = static_cast<int32_t>(local.heads.front().q_rows.size());
  // Kernels know a piece by its blocks; one whose chains all end in it may have none.
  float* const blocks = memory.blocks ? memory.blocks : memory.dq_sums;
  params.carried = {
      memory.dq_sums + local.q_head_at * chosen.dq_sum_floats(local.plan.problem, q_tiles), blocks,
      memory.block_floats};
  held.upload().before_launch(static_cast<cudaStream_t>(run.stream));
  run_plan(device_, chosen, chosen.backward, local.plan, held, run, wait_limit, params);
}

std::unique_ptr<const ReadyLaunch> CudaBackend::ready_sums(const Plan& whole,
                                                           std::span<const TileSums> tiles,
                                                           const PieceMemory& memory,
                                                           const RunOptions& run) const {
  const Problem& problem = whole.problem;
  std::vector<SummedTile> summed;
  std::vector<int32_t> parts;
  int32_t most_rows = 0;
  for (const TileSums& sums : tiles) {
    const auto edge = whole.order(sums.head).tiles->kv_edges.begin() + sums.kv_tile;
    const auto rows = static_cast<int32_t>(edge[1] - edge[0]);
    most_rows = std::max(most_rows, rows);
    summed.push_back(
        {.row = memory.kv_rows.at(sums.head / problem.kv_heads, edge[0]),
         .head = static_cast<int32_t>(sums.head % problem.kv_heads - memory.first_kv_head),
         .rows = rows,
         .first = static_cast<int32_t>(parts.size()),
         .parts = static_cast<int32_t>(sums.blocks.size())});
    parts.insert(parts.end(), sums.blocks.begin(), sums.blocks.end());
  }
  const DeviceGuard guard(device_.index);
  auto ready = std::make_unique<CudaSums>(device_, whole, summed, parts, most_rows);
  ready->held.before_launch(static_cast<cudaStream_t>(run.stream));
  return ready;
}

void CudaBackend::add(const ReadyLaunch& ready, const BackwardTensors& tensors,
                      const PieceMemory& memory, const RunOptions& run) const {
  const auto& own = static_cast<const CudaSums&>(ready);
  const Problem& problem = own.whole.problem;
  const auto stream = static_cast<cudaStream_t>(run.stream);
  const DeviceGuard guard(device_.index);
  const Scalars scalars = scalars_of(problem, run);
  AddSums sums = own.sums;
  sums.carried = {nullptr, memory.blocks, memory.block_floats};
  sums.outputs[0] = {ref("dk", tensors.dk), static_cast<int32_t>(problem.head_dim), scalars.scale};
  sums.outputs[1] = {ref("dv", tensors.dv), static_cast<int32_t>(problem.head_dim_v),
                     kernel(own.whole).scales_dv ? scalars.dropout.scale : 1};
  own.held.before_launch(stream);
  add_tile_sums(sums, stream);
  own.held.in_use_until(std::make_shared<const End>(device_, stream));
}

std::unique_ptr<Moment> CudaBackend::moment(const RunOptions& run) const {
  const DeviceGuard guard(device_.index);
  return std::make_unique<StreamMoment>(device_.index, static_cast<cudaStream_t>(run.stream));
}

int64_t CudaBackend::dq_sum_floats(const Plan& whole, const HeldRows& q_rows,
                                   int64_t q_heads) const {
  Problem local = whole.problem;
  local.q_len = q_rows.size();
  return q_heads *
         kernel(whole).dq_sum_floats(local, local_q_tiles(whole, q_rows, whole.problem.batch));
}

}  // namespace verbatim::cuda
