// Memory for the tensors of one problem, and the names of their bits.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "verbatim/verbatim.h"

namespace verbatim::app {

/// Which passes a command runs.
enum class Passes { forward, backward, both };
Passes passes_from_string(const std::string& name, const Problem& problem);
/// The outputs of `passes` in the order of reports: o, lse, dq, dk, dv.
std::vector<std::string> output_names(Passes passes);

/// Throws Error unless this machine can hold the Tensors of every process of this world that is on
/// it: what it cannot, the system would kill where it is first touched, without a word.
void require_memory(const Problem& problem);

/// A dense tensor that owns its memory.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Dtype dtype, std::array<int64_t, 4> shape);
  const TensorView& view() const { return view_; }
  /// Sets every byte to 0xFF, which is a NaN in every dtype: what is not written shows.
  void poison();
  /// One a head.
  void set_scales(std::vector<float> scales);

 private:
  std::vector<std::byte> bytes_;
  std::vector<float> scales_;
  TensorView view_;
};

/// A box of one problem's positions: a batch entry, KV heads with their groups, a document.
struct Part {
  int64_t batch_begin = 0, batch_end = 1;
  int64_t head_begin = 0, head_end = 1;  // KV heads
  int64_t q_begin = 0, q_end = 0;
  int64_t k_begin = 0, k_end = 0;

  static Part all(const Problem& problem);
};

/// Q, K, V, dO and everything computed from them.
struct Tensors {
  Tensor q, k, v, dout;
  Tensor o, dq, dk, dv;
  std::vector<float> lse;
  RowView lse_view;

  /// Inputs from the normal distribution N(0, 1) of `seed`. As require_memory().
  Tensors(const Problem& problem, uint64_t seed);
  /// Inputs of NaN, infinities and large numbers.
  static Tensors garbage(const Problem& problem);
  ForwardTensors forward() const;
  BackwardTensors backward() const;
  int64_t group() const { return q.view().shape[2] / k.view().shape[2]; }
  /// Fills what `passes` writes with NaN.
  void poison_outputs(Passes passes);
};

/// What the simulator predicts of a pass, and, where the device can tell, what one more run did.
std::vector<Timeline> record(const Attention& attention, const Tensors& tensors,
                             const Machine& machine, Pass pass, RunOptions options);

/// Copies the inputs of a part of `from` over a part of `to` of the same size.
void copy_inputs(const Tensors& from, const Part& source, Tensors& to, const Part& target);

/// sha256 of every output, by name; of a part: as if the part were a problem of its own.
using Hashes = std::map<std::string, std::string>;
Hashes hash_outputs(const Tensors& tensors, Passes passes);
Hashes hash_outputs(const Tensors& tensors, const Part& part, Passes passes);
/// One hash over several, for tables with little room.
std::string digest(const Hashes& hashes);

}  // namespace verbatim::app
