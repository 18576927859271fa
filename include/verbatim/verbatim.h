// The facade: make an Attention once, run it many times.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "verbatim/error.h"
#include "verbatim/mask.h"
#include "verbatim/plan.h"
#include "verbatim/problem.h"
#include "verbatim/run.h"
#include "verbatim/schedule.h"

namespace verbatim {

/// How an Attention is planned, and on what it runs.
struct AttentionOptions {
  PlanOptions plan;  // plan.pass is set for each pass
  std::string forward_order = "auto";
  std::string device = "cpu";  // "cpu", "cuda" or "cuda:N"
  /// At most one a pass, in place of the device's own kernels: on a CPU texts of TL code
  /// (verbatim/tl.h), which it interprets, on a GPU paths of libraries that tl::build() made. Their
  /// tiles are the plan's.
  std::vector<std::string> kernels{};
  /// At most one a pass, in place of the plan that the options above describe: orders of your own,
  /// as edited or read (plan_from_json). The constructor proves them again, and that they are of
  /// the problem under the mask. What is named above is of passes without one. What rules promise
  /// of other problems none of them does: their level is at most gpu_to_gpu.
  std::vector<std::shared_ptr<const Plan>> plans{};
  /// Plans the backward when it is first needed, not in the constructor, if all of it is by rule:
  /// of what is named by these options some might be refused.
  bool defer_backward = false;
};

/// Throws Error(device) naming the tile when a call on `device` ("cpu", "cuda", "cuda:N") gave up
/// because one of its waits expired: all results of that call are NaN, in eager work and in replays
/// of graphs. The next call on the device throws the same; it is told once. Waits for nothing:
/// after a synchronization it has seen all that was before.
void check(std::string_view device);

/// Forward and backward of one problem under one mask. Planning happens here, once
/// (cached_plan: making one again for an equal problem is cheap); forward() and backward() allocate
/// only their workspace and may be called from several threads. On a CUDA stream that can use fewer
/// multiprocessors than the plan needs at once (a green context, an MPS share) a call runs the same
/// orders in pieces, with the same bits; what cannot be cut throws Error(unsupported) before it
/// starts.
class Attention {
 public:
  /// Throws Error as make_plan(), and Error(unsupported), naming the nearest that runs, for what no
  /// kernel of the device does.
  Attention(const Problem& problem, Mask mask, const AttentionOptions& options = {});
  ~Attention();
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;

  /// Throw Error naming the tensor, what it is and what it has to be. On a GPU, tensors in its
  /// memory are read and written in sequence with the work on run.stream, which no call waits for;
  /// those of the host are copied there and back before a call returns.
  void forward(const ForwardTensors& tensors, const RunOptions& run = {}) const;
  void backward(const BackwardTensors& tensors, const RunOptions& run = {}) const;

  /// False for e4m3, and where AttentionOptions::kernels are a forward alone and no kernel of the
  /// device runs the backward: backward() then throws Error(unsupported). In all other cases the
  /// constructor has thrown it, or with AttentionOptions::defer_backward the first call that needs
  /// the backward's plan does.
  bool has_backward() const;
  const Problem& problem() const;
  const Mask& mask() const;
  const Plan& plan(Pass pass) const;
  /// Bytes that one call of forward() or backward() allocates besides the caller's tensors.
  int64_t workspace_bytes(Pass pass) const;
  /// RunOptions::workspace_bytes that a call with `run` needs; 0 on a CPU, which takes none.
  int64_t workspace_bytes(Pass pass, const RunOptions& run) const;
  /// On the host, of the mask and both passes; one that is not planned yet counts as the other.
  int64_t bytes() const;
  /// The compiled code that runs a pass: "cpu.avx2", "sm90.backward".
  std::string kernel(Pass pass) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbatim
