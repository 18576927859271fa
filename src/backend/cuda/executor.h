// Runs plans on a GPU: picks a kernel, lays out its memory, launches it.
#pragma once

#include "backend/backend.h"
#include "backend/cuda/library.h"
#include "backend/cuda/registry.h"
#include "backend/cuda/runtime.h"

namespace verbatim::cuda {

/// With tensors on the device, calls only enqueue work on RunOptions::stream: they never wait for
/// the device, may be captured into a graph, and fail either at once or, when the work itself
/// failed, at a later call on the device, in check_waits() or in synchronize(). Host tensors are
/// copied there and back, and waited for.
class CudaBackend : public Backend {
 public:
  /// `libraries` run in place of the kernels of their pass.
  explicit CudaBackend(int index, const std::vector<std::string>& libraries = {});

  std::string_view name() const override { return "cuda"; }
  std::string_view arithmetic() const override;
  std::string arithmetic_of(Pass pass) const override;
  TileShape own_tile(Pass pass) const override;
  void check(const Problem& problem) const override;
  void check_mask(const Mask& mask) const override;
  bool forward_alone() const override { return loaded(Pass::forward) && !loaded(Pass::backward); }
  void check_plan(const Plan& plan) const override;
  void check_waits() const override;
  int32_t residents() const override { return device_.multiprocessors; }
  std::string machine() const override;
  /// Those of run.stream's green context or MPS share: one CTA of the Hopper kernels fills each.
  int32_t available(const RunOptions& run) const override;
  int64_t workspace_bytes(const Plan& plan) const override;
  int64_t callers_workspace_bytes(const Plan& plan) const override { return workspace_bytes(plan); }
  std::string kernel_name(const Plan& plan) const override;
  void forward(const std::shared_ptr<const Plan>& plan, const ForwardTensors& tensors,
               const RunOptions& run) const override;
  void backward(const std::shared_ptr<const Plan>& plan, const BackwardTensors& tensors,
                const RunOptions& run) const override;

  std::unique_ptr<const ReadyLaunch> ready_piece(const Plan& whole, const Piece& piece,
                                                 const PieceMemory& memory, int64_t q_heads,
                                                 const RunOptions& run) const override;
  void forward_piece(const ReadyLaunch& ready, const ForwardTensors& tensors,
                     const PieceMemory& memory, const RunOptions& run) const override;
  void backward_piece(const ReadyLaunch& ready, const BackwardTensors& tensors,
                      const PieceMemory& memory, const RunOptions& run) const override;
  std::unique_ptr<const ReadyLaunch> ready_sums(const Plan& whole, std::span<const TileSums> tiles,
                                                const PieceMemory& memory,
                                                const RunOptions& run) const override;
  void add(const ReadyLaunch& ready, const BackwardTensors& tensors, const PieceMemory& memory,
           const RunOptions& run) const override;
  std::unique_ptr<Moment> moment(const RunOptions& run) const override;
  int64_t dq_sum_floats(const Plan& whole, const HeldRows& q_rows, int64_t q_heads) const override;
  std::shared_ptr<std::byte> allocate(int64_t bytes, const RunOptions& run) const override;
  void fill(const ByteRows& rows, uint8_t value, const RunOptions& run) const override;
  void copy(const ByteRows& to, const ByteRows& from, const RunOptions& run) const override;
  void copy(std::span<const RowCopy> copies, const RunOptions& run) const override;
  bool is_on_host() const override { return false; }
  std::shared_ptr<std::byte> allocate_on_host(int64_t bytes) const override;
  void synchronize(const RunOptions& run) const override;

  /// The wait limit of calls whose RunOptions name none; 10 seconds at first.
  void set_wait_limit(double seconds) { wait_limit_ns_ = static_cast<int64_t>(seconds * 1e9); }

  /// The kernel of the plan's arithmetic. Throws Error(unsupported) when this device or the kernel
  /// cannot run it.
  const Kernel& kernel(const Plan& plan) const;

 private:
  const Kernel& kernel(Pass pass, const std::string& arithmetic, const Problem& problem,
                       const TileShape& tile) const;
  int64_t wait_limit_ns(const RunOptions& run) const;
  /// The one of a pass, or null.
  const LoadedKernel* loaded(Pass pass) const;

  const Device& device_;
  std::vector<LoadedKernel> loaded_;
  int64_t wait_limit_ns_ = 10'000'000'000;
};

}  // namespace verbatim::cuda
