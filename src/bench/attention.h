// One case of a benchmark: checked, compared bit by bit, timed, compared again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "bench/device.h"
#include "bench/measure.h"
#include "verbatim/verbatim.h"

namespace verbatim::bench {

/// The tensors of one problem on a device: inputs N(0, 1), outputs NaN.
class Tensors {
 public:
  Tensors(const Device& device, const Problem& problem);

  struct Output {
    const char* name;  // "o", "lse", "dq", "dk", "dv"
    void* data;
    int64_t bytes;
  };
  ForwardTensors forward;
  BackwardTensors backward;
  std::vector<Output> outputs;

 private:
  TensorView add(const Device& device, Dtype dtype, std::array<int64_t, 4> shape);
  std::vector<std::shared_ptr<void>> memory_;
};

/// Somebody's attention of one problem, on the tensors that it was made for.
struct Passes {
  std::function<void()> forward, backward;
  std::function<void()> unordered;  // the backward without turns; empty: there is none
  int64_t forward_workspace = 0, backward_workspace = 0;  // bytes, besides the tensors
};

struct Settings {
  Protocol protocol = Protocol::rested;
  int repeats = 10;   // runs whose bits are compared before timing
  bool check = true;  // compare samples with the reference first
  RunOptions run;
};

struct Result {
  Timing forward, backward;
  std::optional<Timing> unordered;            // in turn with the backward, where there is one
  bool correct = true;                        // false: nothing was timed
  double error_ratio = 0;                     // largest of the sampled check; 0 without
  int64_t differing_words = 0;                // of all repeats and of the last timed call
  std::map<std::string, std::string> sha256;  // of each output's bytes
  /// Host time of enqueuing a backward whose plan the device has not seen, and of the same again:
  /// medians in microseconds; 0 where a call runs the work itself.
  double new_plan_us = 0, known_plan_us = 0;
  /// Bytes that a call needs besides its inputs: its outputs and its workspace.
  int64_t forward_bytes = 0, backward_bytes = 0;
};

/// Runs both passes of one problem; times only what the check has found correct.
Result run_case(const Backend& backend, const Device& device, const Mask& mask,
                const std::shared_ptr<const Plan>& forward,
                const std::shared_ptr<const Plan>& backward, const Settings& settings);
/// The same for a peer of ours, whose passes write into `tensors`.
Result run_peer(const Passes& passes, const Device& device, const Problem& problem,
                const Mask& mask, const Tensors& tensors, const Settings& settings);

}  // namespace verbatim::bench
