// The facade where ranks are processes or threads: each makes one, over a transport of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "verbatim/dist.h"
#include "verbatim/transport.h"
#include "verbatim/verbatim.h"

namespace verbatim {

/// One rank's part of an attention that several ranks compute (docs/context-parallel.md), with the
/// bits of Attention for any world, strategy and sharding. All ranks make one and call its methods
/// in the same sequence; an object serves one call at a time. Everything a rank holds is its shard:
/// the rows of q_rows() and kv_rows(), whatever their batch entry, one behind the other.
///
/// A transfer that fails is an Error(device) that names rank and step; the other ranks then fail as
/// their transports give up.
class ContextParallel {
 public:
  /// `problem` and `mask` are the whole ones. Plans both passes, deals them, proves what was dealt
  /// and compares versions, problem, mask and options of all ranks over `transport`, which lasts as
  /// long as this. Throws Error at every rank: where two differ it names the first member and the
  /// rank ("problem.scale of rank 2 is another"), where one has bad input all say what. The number
  /// of a device ("cuda:1") is a rank's own, and so are machine, residents and memo of
  /// options.plan: they change no bit of a plan that is alike. Kernels of the caller
  /// (options.kernels) throw Error(unsupported).
  ContextParallel(const Problem& problem, Mask mask, const DistOptions& dist, int32_t rank,
                  Transport& transport, const AttentionOptions& options = {});
  ~ContextParallel();
  ContextParallel(ContextParallel&&) noexcept;
  ContextParallel& operator=(ContextParallel&&) noexcept;

  /// In place of the constructor, where a rank cannot say what it wants: its mask could not be
  /// made, its file not be read. Throws `error`, as Error(device) where it is none, and lets every
  /// other rank throw what it says.
  [[noreturn]] static void refuse(const std::exception& error, int32_t world, int32_t rank,
                                  Transport& transport);

  /// Both take tensors of this rank's shard, of the sizes of shard(), in memory of the device, the
  /// heads of a row behind each other. Throw Error naming the tensor, what it is and what it has to
  /// be. On a GPU they are read and written in sequence with the work on run.stream, which a call
  /// waits for only where bytes pass through the host's memory; a workspace is not used. The first
  /// call makes what launches need of their plan, the object keeps it. With dropout the forward
  /// first compares the seeds of all ranks.
  void forward(const ForwardTensors& shard, const RunOptions& run = {});
  void backward(const BackwardTensors& shard, const RunOptions& run = {});

  int32_t rank() const;
  /// The whole problem and mask, on one device: what is dealt.
  const Attention& attention() const;
  /// A pass as dealt: options as chosen, the rows of every rank; sent_bytes() and memory_bytes() of
  /// verbatim/dist.h say what a rank sends, comparisons apart, and holds.
  const DistPlan& plan(Pass pass) const;
  /// The problem with the sizes of this rank's tensors: batch 1, its rows as q_len and kv_len.
  const Problem& shard() const;
  /// Positions of the rows of q, o, lse, dout and dq, and of k, v, dk and dv, in their sequence; a
  /// rank may have none.
  const HeldRows& q_rows() const;
  const HeldRows& kv_rows() const;

  /// From here on calls note when they do what. Waits for run.stream.
  void record(const RunOptions& run = {});
  /// What calls did since record(), in its sequence, and no longer; empty where it was not called.
  /// Waits for the work.
  std::vector<StepTime> recorded();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbatim
