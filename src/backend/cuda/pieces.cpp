// Pieces of a plan: what a rank launches.
#include "backend/cuda/add_sums.h"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/executor.h"
#include "backend/cuda/run_plan.h"
#include "backend/local_piece.h"

namespace verbatim::cuda {
namespace {

/// A piece as a plan of its memory, on the device.
struct CudaPiece final : ReadyPiece {
  CudaPiece(const Device& device, LocalPiece piece)
      : local(std::move(piece)), held(device, local) {}

  LocalPiece local;
  DevicePlan held;
};

class StreamWatch final : public Watch {
 public:
  StreamWatch(int device, cudaStream_t stream) : device_(device), stopwatch_(stream) {}
  void stop() override { stopwatch_.stop(); }
  double seconds() const override {
    const DeviceGuard guard(device_);
    return stopwatch_.seconds();
  }

 private:
  int device_;
  Stopwatch stopwatch_;
};

}  // namespace

std::unique_ptr<const ReadyPiece> CudaBackend::ready(const Plan& whole, const Piece& piece,
                                                     const PieceMemory& memory, int64_t q_heads,
                                                     const RunOptions& run) const {
  LocalPiece local(whole, piece, memory, q_heads);
  check_limits(kernel(local.plan).limits, local.plan.problem, counts_of(local.plan));
  auto ready = std::make_unique<CudaPiece>(device_, std::move(local));
  const DeviceGuard guard(device_.index);
  ready->held.before_launch(static_cast<cudaStream_t>(run.stream), nullptr);
  return ready;
}

void CudaBackend::forward_piece(const ReadyPiece& ready, const ForwardTensors& tensors,
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
  held.before_launch(static_cast<cudaStream_t>(run.stream), nullptr);
  run_plan(device_, chosen, chosen.forward, local.plan, held, run, wait_limit, params);
}

void CudaBackend::backward_piece(const ReadyPiece& ready, const BackwardTensors& tensors,
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
  const auto q_tiles = static_cast<int32_t>(local.q_rows.size());
  params.carried = {
      memory.dq_sums + local.q_head_at * chosen.dq_sum_floats(local.plan.problem, q_tiles),
      memory.blocks, memory.block_floats};
  held.before_launch(static_cast<cudaStream_t>(run.stream), nullptr);
  run_plan(device_, chosen, chosen.backward, local.plan, held, run, wait_limit, params);
}

void CudaBackend::add(const Plan& whole, std::span<const TileSums> tiles,
                      const BackwardTensors& tensors, const PieceMemory& memory,
                      const RunOptions& run) const {
  const Problem& problem = whole.problem;
  const Kernel& chosen = kernel(whole);
  const auto stream = static_cast<cudaStream_t>(run.stream);
  const DeviceGuard guard(device_.index);
  const Scalars scalars = scalars_of(problem, run);
  const TensorRef dk = ref("dk", tensors.dk), dv = ref("dv", tensors.dv);
  for (const TileSums& sums : tiles) {
    const auto edge = whole.order(sums.head).tiles->kv_edges.begin() + sums.kv_tile;
    const int64_t row = memory.kv_rows.at(sums.head / problem.kv_heads, edge[0]);
    const int64_t head = sums.head % problem.kv_heads - memory.first_kv_head;
    add_tile_sums({.dtype = problem.dtype,
                   .blocks = {nullptr, memory.blocks, memory.block_floats},
                   .rows = static_cast<int32_t>(edge[1] - edge[0]),
                   .outputs = {{dk.at<uint16_t>(0, row, head), dk.row,
                                static_cast<int32_t>(problem.head_dim), scalars.scale},
                               {dv.at<uint16_t>(0, row, head), dv.row,
                                static_cast<int32_t>(problem.head_dim_v),
                                chosen.scales_dv ? scalars.dropout.scale : 1}}},
                  sums.blocks, stream);
  }
}

std::unique_ptr<Watch> CudaBackend::watch(const RunOptions& run) const {
  const DeviceGuard guard(device_.index);
  return std::make_unique<StreamWatch>(device_.index, static_cast<cudaStream_t>(run.stream));
}

int64_t CudaBackend::dq_sum_floats(const Plan& whole, const HeldRows& q_rows,
                                   int64_t q_heads) const {
  Problem local = whole.problem;
  local.q_len = q_rows.size();
  return q_heads *
         kernel(whole).dq_sum_floats(local, local_q_tiles(whole, q_rows, whole.problem.batch));
}

}  // namespace verbatim::cuda
