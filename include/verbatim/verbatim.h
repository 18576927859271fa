// The facade: make an Attention once, run it many times.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "verbatim/error.h"
#include "verbatim/mask.h"
#include "verbatim/plan.h"
#include "verbatim/problem.h"
#include "verbatim/schedule.h"
#include "verbatim/tensor.h"
#include "verbatim/timeline.h"

namespace verbatim {

/// Tensors of a forward pass, in (batch, length, heads, dim) layout.
struct ForwardTensors {
  TensorView q;  // [batch, q_len, q_heads, head_dim]
  TensorView k;  // [batch, kv_len, kv_heads, head_dim]
  TensorView v;  // [batch, kv_len, kv_heads, head_dim_v]
  TensorView o;  // out [batch, q_len, q_heads, head_dim_v]; rows without a key: 0
  RowView lse;   // out [batch, q_heads, q_len], natural log; rows without a key: -inf
};

/// Tensors of a backward pass. o and lse are the forward's.
struct BackwardTensors {
  TensorView q, k, v, o, dout;  // shapes as in ForwardTensors; dout like o
  RowView lse;
  TensorView dq, dk, dv;  // out, shaped like q, k, v; written whole, whatever they held
};

struct RunOptions {
  int threads = 0;                 // CPU: 0 = all cores; never changes the result
  Timeline* timeline = nullptr;    // filled with what each worker did when; stays empty where the
                                   // device's kernel cannot record
  void* stream = nullptr;          // CUDA: the cudaStream_t to run on; null = the default stream
  std::optional<uint64_t> seed{};  // of the dropout, when it is not the problem's
  const uint64_t* seed_at = nullptr;  // instead: its address on the device, read when the work
                                      // runs, so that a CUDA graph replays with what is there then
};

struct AttentionOptions {
  PlanOptions plan;  // plan.pass is set for each pass
  std::string forward_order = "auto";
  std::string device = "cpu";  // "cpu", "cuda" or "cuda:N"
};

/// Forward and backward of one problem under one mask. Planning happens here, once
/// (cached_plan: making one again for an equal problem is cheap); forward() and backward() allocate
/// only their workspace and may be called from several threads.
class Attention {
 public:
  Attention(const Problem& problem, Mask mask, const AttentionOptions& options = {});
  ~Attention();
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;

  void forward(const ForwardTensors& tensors, const RunOptions& run = {}) const;
  void backward(const BackwardTensors& tensors, const RunOptions& run = {}) const;

  const Problem& problem() const;
  const Mask& mask() const;
  const Plan& plan(Pass pass) const;
  /// Bytes that one call of forward() or backward() allocates besides the caller's tensors.
  int64_t workspace_bytes(Pass pass) const;
  /// The compiled code that runs a pass: "cpu.avx2", "sm90.backward".
  std::string kernel(Pass pass) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbatim
