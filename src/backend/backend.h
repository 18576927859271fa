// What every backend does: run a plan on tensors. Backends register by name in backend.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dropout.h"
#include "verbatim/error.h"
#include "verbatim/piece.h"
#include "verbatim/plan.h"
#include "verbatim/run.h"
#include "verbatim/schedule.h"

namespace verbatim {

/// The memory that pieces of a plan run in. Its tensors have batch 1; their length is the number of
/// rows held, of all batch entries, and their heads are some of the problem's.
struct PieceMemory {
  const HeldRows& q_rows;  // of q, o, dout, lse, dq
  const HeldRows& kv_rows;
  int64_t first_q_head = 0, first_kv_head = 0;  // the problem's heads that come first
  float* dq_sums = nullptr;  // Backend::dq_sum_floats() that later pieces go on with
  float* blocks = nullptr;   // of Carry: dK, then dV of one KV tile, rows without gaps
  int64_t block_floats = 0;  // from block to block

  float* block(int32_t number) const { return blocks + number * block_floats; }
};

/// Rows of bytes, `apart` bytes from one to the next.
struct ByteRows {
  std::byte* at;
  int64_t bytes, rows = 1, apart = 0;
};

/// From rows to others, as many and as long.
struct RowCopy {
  ByteRows to, from;
};

/// A launch of a rank with all that a backend makes of it before tensors come: made once, to be
/// launched any number of times. It needs the plan that it is of, and the backend that made it.
class ReadyLaunch {
 public:
  virtual ~ReadyLaunch() = default;
};

/// When the work is over that run.stream had been given before this was made.
class Moment {
 public:
  virtual ~Moment() = default;
  /// From an earlier moment of the same stream to this one. Waits for both.
  virtual double seconds_since(const Moment& earlier) const = 0;
};

/// Throws Error(unsupported): this backend runs whole plans only.
[[noreturn]] void refuse_pieces(std::string_view backend);

/// A compiled-in way to execute plans. Stateless: all state is in the plan and the workspace. What
/// runs a whole plan takes a pointer that owns it, by which a device finds the plan again; what the
/// device holds of it goes with its owners.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  /// Throws Error(unsupported) naming the nearest supported value when this backend cannot run it.
  virtual void check(const Problem& problem) const = 0;
  /// The same for a mask.
  virtual void check_mask(const Mask&) const {}
  /// Whether the caller brought a kernel of the forward alone: that nothing here runs the backward
  /// of a problem is then no error before somebody asks for it.
  virtual bool forward_alone() const { return false; }
  /// PlanOptions::arithmetic that runs here when nobody asks for another: "cpu", "sm80", "sm90".
  virtual std::string_view arithmetic() const = 0;
  /// The same of one pass, where passes differ.
  virtual std::string arithmetic_of(Pass) const { return std::string(arithmetic()); }
  /// The only tiles that run here in a pass; 0: any.
  virtual TileShape own_tile(Pass) const { return {0, 0}; }
  /// The same for a plan that is too large.
  virtual void check_plan(const Plan&) const {}
  /// Throws Error(device) when a wait of an earlier call has expired, as verbatim::check().
  virtual void check_waits() const {}
  /// PlanOptions::residents of this backend: workers that it runs at once; 0: any number.
  virtual int32_t residents() const = 0;
  /// Of make_machine(): what plans that run here are placed for.
  virtual std::string machine() const = 0;
  /// Workers that a call with `run` can have at once: plans that need more have to be cut for them.
  virtual int32_t available(const RunOptions&) const { return INT32_MAX; }
  virtual int64_t workspace_bytes(const Plan& plan) const = 0;
  /// What of it the caller may bring (RunOptions::workspace).
  virtual int64_t callers_workspace_bytes(const Plan&) const { return 0; }
  /// The compiled code that runs `plan`, "backend.what".
  virtual std::string kernel_name(const Plan& plan) const = 0;
  virtual void forward(const std::shared_ptr<const Plan>& plan, const ForwardTensors& tensors,
                       const RunOptions& run) const = 0;
  virtual void backward(const std::shared_ptr<const Plan>& plan, const BackwardTensors& tensors,
                        const RunOptions& run) const = 0;

  /// Pieces of `whole` (verbatim/piece.h), to be launched one after another those of a rank, in
  /// memory of allocate() with these rows and `q_heads` query heads; what run.stream is given from
  /// now on finds it on the device. Throws Error(unsupported) where that is not built.
  virtual std::unique_ptr<const ReadyLaunch> ready_piece(const Plan&, const Piece&,
                                                         const PieceMemory&, int64_t /*q_heads*/,
                                                         const RunOptions&) const {
    refuse_pieces(name());
  }
  /// Launches a piece, which uses only rows of the tiles that it visits. A GPU is not waited for:
  /// the work is in sequence with that on run.stream.
  virtual void forward_piece(const ReadyLaunch&, const ForwardTensors&, const PieceMemory&,
                             const RunOptions&) const {
    refuse_pieces(name());
  }
  virtual void backward_piece(const ReadyLaunch&, const BackwardTensors&, const PieceMemory&,
                              const RunOptions&) const {
    refuse_pieces(name());
  }
  /// Additions of the same rank, as ready_piece().
  virtual std::unique_ptr<const ReadyLaunch> ready_sums(const Plan&, std::span<const TileSums>,
                                                        const PieceMemory&,
                                                        const RunOptions&) const {
    refuse_pieces(name());
  }
  /// Adds the parts of each tile in their order, scales, rounds and writes dk and dv: one launch,
  /// as of a piece.
  virtual void add(const ReadyLaunch&, const BackwardTensors&, const PieceMemory&,
                   const RunOptions&) const {
    refuse_pieces(name());
  }
  virtual std::unique_ptr<Moment> moment(const RunOptions& run) const;
  /// Of PieceMemory::dq_sums for these rows and so many query heads.
  virtual int64_t dq_sum_floats(const Plan&, const HeldRows&, int64_t) const {
    refuse_pieces(name());
  }

  /// Memory that pieces run in, given back with the last copy of the pointer. It, and what follows,
  /// is in sequence with the work on run.stream.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes, const RunOptions& run) const;
  virtual void fill(const ByteRows& rows, uint8_t value, const RunOptions& run) const;
  /// Between rows of its own memory and of the host, as many and as long on both sides.
  virtual void copy(const ByteRows& to, const ByteRows& from, const RunOptions& run) const;
  /// Between rows of its own memory, none of which overlap.
  virtual void copy(std::span<const RowCopy> copies, const RunOptions& run) const;
  /// Whether that memory is the host's.
  virtual bool is_on_host() const { return true; }
  /// Memory of the host that is quick to copy from and to.
  virtual std::shared_ptr<std::byte> allocate_on_host(int64_t bytes) const;
  /// Waits for all work on run.stream; throws Error(device) for what it or earlier work met.
  virtual void synchronize(const RunOptions&) const {}
};

/// The CPU executor: threads follow the plan (src/backend/cpu).
std::unique_ptr<Backend> make_cpu_backend();
/// The interpreter of TL (src/backend/tl): runs each pass that has a program by it, the other as
/// the CPU does. `programs` is TL code, at most one a pass. Throws Error with the described faults
/// of one that is refused at `level`, or is a sketch.
std::unique_ptr<Backend> make_tl_backend(const std::vector<std::string>& programs, Level level);
/// The CUDA executor on device `index`; throws Error(unsupported) when built without CUDA.
/// `libraries` (verbatim tl build), at most one a pass, run in place of its own kernels.
std::unique_ptr<Backend> make_cuda_backend(int index,
                                           const std::vector<std::string>& libraries = {});
/// CUDA devices of this machine that the process may use; 0 when built without CUDA.
int32_t cuda_devices();
/// -1 of "cpu", 0 of "cuda", N of "cuda:N"; throws Error(invalid_argument) for any other name.
int device_index(std::string_view device);
/// The backend of such a name.
std::unique_ptr<Backend> make_backend(std::string_view device);
/// The same with kernels of the caller in place of its own: on a CPU texts of programs, on a GPU
/// paths of libraries.
std::unique_ptr<Backend> make_backend(std::string_view device,
                                      const std::vector<std::string>& kernels, Level level);

/// What nobody asked for in another way follows from the backend: arithmetic and tiles.
void complete(PlanOptions& options, const Backend& backend);

/// The dropout of one run: the plan is the same for every seed.
inline Dropout dropout_of(const Problem& problem, const RunOptions& run) {
  Dropout dropout = Dropout::make(problem.dropout, run.seed.value_or(problem.seed));
  dropout.seed_at = run.seed_at;
  return dropout;
}

/// Throws Error: a backend that runs `known` was given a plan of another arithmetic.
[[noreturn]] void refuse_arithmetic(const Plan& plan, const std::string& known,
                                    const char* operation);

/// What all kernels of TL refuse: a second one of a pass, and segments of rows in a forward.
[[noreturn]] void refuse_second_kernel(Pass pass, const char* operation);
void check_whole_rows(const Plan& plan, const char* operation);

/// Throws Error naming the tensor, the shape it has and the shape it should have.
void check_tensors(const Problem& problem, const ForwardTensors& tensors);
void check_tensors(const Problem& problem, const BackwardTensors& tensors);

}  // namespace verbatim
