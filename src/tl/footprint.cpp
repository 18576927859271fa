// What a kernel needs of a multiprocessor.
#include <algorithm>
#include <set>

#include "tl/kernel.h"

namespace verbatim::tl {
namespace {

constexpr int64_t kOverhead = 40;  // registers of a thread for addresses, counters and fragments

std::vector<int> reads(const Step& step) {
  std::vector<int> all = step.rescaled;
  for (const int v : {step.a, step.b, step.c})
    if (v >= 0) all.push_back(v);
  if (step.accumulate) all.push_back(step.out);
  return all;
}

/// Walks steps backwards with the set of variables whose values are still read.
class Liveness {
 public:
  Liveness(const Kernel& kernel, int64_t threads) : kernel_(kernel), threads_(threads) {}

  void walk(const std::vector<Step>& steps) {
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      note(*step);
      if (step->out >= 0 && !step->accumulate) live_.erase(step->out);
      for (const int v : reads(*step)) live_.insert(v);
      note(*step);
    }
  }
  const RegisterUse& most() const { return most_; }

 private:
  void note(const Step& step) {
    int64_t words = 0;
    for (const int v : live_)
      if (kernel_.variables[v].memory == Memory::registers)
        words += kernel_.variables[v].rows * kernel_.variables[v].cols;
    const int64_t per_thread = (words + threads_ - 1) / threads_ + kOverhead;
    if (per_thread > most_.per_thread) most_ = {per_thread, step.at};
  }

  const Kernel& kernel_;
  int64_t threads_;
  std::set<int> live_;
  RegisterUse most_;
};

}  // namespace

int64_t bytes_of(const Kernel& kernel, const Variable& v) {
  const bool in_dtype = v.memory == Memory::shared && v.cols > 1;
  return v.rows * v.cols * (in_dtype ? size_of(kernel.dtype) : 4) * (v.staged ? kernel.stages : 1);
}

int64_t turned_bytes(const Kernel& kernel, const Variable& v) {
  if (kernel.dtype != Dtype::e4m3 || find_target(kernel.target).mma.warps == 1) return 0;
  const bool turned = std::ranges::any_of(kernel.visit, [&](const Step& s) {
    return s.kind == Step::Kind::compute && s.operation == Operation::gemm && !s.b_transposed &&
           &kernel.variables[s.b] == &v;
  });
  return turned ? kTurnedBuffers * v.rows * v.cols : 0;
}

int64_t shared_bytes(const Kernel& kernel) {
  int64_t bytes = kPlaceBytes;
  for (const Variable& v : kernel.variables)
    if (v.memory == Memory::shared) bytes += bytes_of(kernel, v) + turned_bytes(kernel, v);
  return bytes;
}

int64_t ctas_in_roles(const Kernel& kernel) {
  const int64_t own = shared_bytes(kernel) + kWalkBytes + kReserved;
  const bool fits = 2 * own <= find_target(kernel.target).shared_bytes + kReserved;
  return !kernel.index.empty() && kernel.warps == 4 && fits ? 2 : 1;
}

VisitWork visit_work(const Kernel& kernel) {
  VisitWork work;
  for (const Step& step : kernel.visit) {
    if (step.kind == Step::Kind::compute && step.operation == Operation::gemm) {
      const Variable &a = kernel.variables[step.a], &out = kernel.variables[step.out];
      work.flops += 2 * out.rows * out.cols * (step.a_transposed ? a.rows : a.cols);
    } else if (step.kind == Step::Kind::load) {
      const Variable& v = kernel.variables[step.out];
      work.bytes += bytes_of(kernel, v) / (v.staged ? kernel.stages : 1);
    } else if (step.kind == Step::Kind::reduce) {
      work.bytes += 2 * bytes_of(kernel, kernel.variables[step.a]);  // f32, read and written
    }
  }
  return work;
}

RegisterUse register_use(const Kernel& kernel, int64_t warps) {
  Liveness liveness(kernel, 32 * warps);
  liveness.walk(kernel.after);
  liveness.walk(kernel.visit);
  liveness.walk(kernel.visit);  // what the next visit reads is live at the end of one
  liveness.walk(kernel.before);
  return liveness.most();
}

}  // namespace verbatim::tl
