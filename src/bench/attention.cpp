#include "bench/attention.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "backend/reference/compare.h"
#include "core/sha256.h"

namespace verbatim::bench {
namespace {

constexpr double kAllowedRatio = 2;
constexpr int64_t kCheckedPositions = 1 << 20;  // seconds of the reference at most

int64_t bytes_of(const TensorView& v) {
  return v.shape[0] * v.shape[1] * v.shape[2] * v.shape[3] * size_of(v.dtype);
}

/// Copies of dense tensors in host memory.
class HostCopies {
 public:
  explicit HostCopies(const Device& device) : device_(device) {}

  TensorView of(TensorView view) {
    view.data = copy(view.data, bytes_of(view));
    return view;
  }
  RowView of(RowView rows) {
    rows.data = static_cast<float*>(
        copy(rows.data, rows.shape[0] * rows.shape[1] * rows.shape[2] * int64_t{sizeof(float)}));
    return rows;
  }

 private:
  void* copy(const void* from, int64_t bytes) {
    void* to = copies_.emplace_back(new std::byte[bytes]).get();
    device_.copy(to, from, bytes);
    return to;
  }
  const Device& device_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
};

/// Compares sampled rows with the reference.
Check check(const Device& device, const Problem& problem, const Mask& mask,
            const BackwardTensors& t) {
  HostCopies host(device);
  const BackwardTensors copies{host.of(t.q),  host.of(t.k),    host.of(t.v),
                               host.of(t.o),  host.of(t.dout), host.of(t.lse),
                               host.of(t.dq), host.of(t.dk),   host.of(t.dv)};
  const Selection rows = Selection::sample(problem, mask, problem.seed, kCheckedPositions);
  return check_backward(problem, mask, copies, rows);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Fills in what calls cost the host.
void time_calls(const Device& device, const Plan& plan,
                const std::function<void(const std::shared_ptr<const Plan>&)>& enqueue,
                Result& result) {
  constexpr int kLeast = 8, kMost = 80;  // plans, each of which is run twice
  constexpr double kLasts = 1000;        // ms that all of them take, if they are not too few
  std::vector<double> first, second;
  const auto microseconds = [&](const std::shared_ptr<const Plan>& fresh) {
    const auto start = std::chrono::steady_clock::now();
    enqueue(fresh);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  };
  const double ms = device.time([&] { enqueue(std::make_shared<const Plan>(plan)); });
  const double plans = std::clamp<double>(kLasts / (2 * std::max(ms, 1e-3)), kLeast, kMost);
  for (int i = 0; i < static_cast<int>(plans); ++i) {
    const auto fresh = std::make_shared<const Plan>(plan);
    first.push_back(microseconds(fresh));
    second.push_back(microseconds(fresh));
    // So that no call waits for room in the queue of launches.
    if (i % 8 == 7) device.time([] {});
  }
  result.new_plan_us = median(first);
  result.known_plan_us = median(second);
}

/// The backward, in turn with the one without turns where there is one.
void time_backward(const Passes& passes, const Device& device, Protocol protocol, Result& result) {
  if (!passes.unordered) {
    result.backward = measure(device, protocol, passes.backward);
    return;
  }
  const std::array calls{passes.unordered, passes.backward};  // the last call's bits are compared
  const auto found = measure_in_turn(device, protocol, calls);
  result.unordered = found[0];
  result.backward = found[1];
}

/// `more` measures what is ours alone, before the backward.
Result run_passes(const Passes& passes, const Device& device, const Problem& problem,
                  const Mask& mask, const Tensors& tensors, const Settings& settings,
                  const std::function<void(Result&)>& more) {
  Result result;
  passes.forward();
  passes.backward();
  if (settings.check) {
    const Check found = check(device, problem, mask, tensors.backward);
    result.error_ratio = found.worst_ratio();
    result.correct = found.within(kAllowedRatio);
    if (!result.correct) return result;
  }

  std::vector<std::shared_ptr<void>> first;
  for (const auto& [name, data, bytes] : tensors.outputs) {
    first.push_back(device.allocate(bytes));
    device.copy(first.back().get(), data, bytes);
    std::vector<std::byte> host(bytes);
    device.copy(host.data(), data, bytes);
    result.sha256[name] = sha256(host);
  }
  const auto compare = [&] {
    for (size_t i = 0; i < first.size(); ++i) {
      const auto& output = tensors.outputs[i];
      result.differing_words += device.count_differences(output.data, first[i].get(), output.bytes);
    }
  };
  for (int i = 0; i < settings.repeats; ++i) {
    for (const auto& output : tensors.outputs) device.poison(output.data, output.bytes);
    passes.forward();
    passes.backward();
    compare();
  }

  result.forward = measure(device, settings.protocol, passes.forward);
  more(result);
  time_backward(passes, device, settings.protocol, result);
  compare();

  const auto& out = tensors.outputs;
  result.forward_bytes = passes.forward_workspace + out[0].bytes + out[1].bytes;
  result.backward_bytes = passes.backward_workspace + out[2].bytes + out[3].bytes + out[4].bytes;
  return result;
}

}  // namespace

TensorView Tensors::add(const Device& device, Dtype dtype, std::array<int64_t, 4> shape) {
  const int64_t bytes = bytes_of(TensorView::dense(nullptr, dtype, shape));
  return TensorView::dense(memory_.emplace_back(device.allocate(bytes)).get(), dtype, shape);
}

Tensors::Tensors(const Device& device, const Problem& p) {
  const TensorView q = add(device, p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim});
  const TensorView k = add(device, p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim});
  const TensorView v = add(device, p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim_v});
  const TensorView o = add(device, p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim_v});
  const TensorView dout = add(device, p.dtype, o.shape);
  const TensorView dq = add(device, p.dtype, q.shape);
  const TensorView dk = add(device, p.dtype, k.shape);
  const TensorView dv = add(device, p.dtype, v.shape);
  const TensorView rows = add(device, Dtype::f32, {p.batch, p.q_heads, p.q_len, 1});
  const RowView lse{static_cast<float*>(rows.data), {p.batch, p.q_heads, p.q_len}};
  uint64_t stream = 4 * p.seed;
  for (const TensorView& input : {q, k, v, dout}) device.fill_normal(input, stream++);
  forward = {q, k, v, o, lse};
  backward = {q, k, v, o, dout, lse, dq, dk, dv};
  outputs = {{"o", o.data, bytes_of(o)},
             {"lse", rows.data, bytes_of(rows)},
             {"dq", dq.data, bytes_of(dq)},
             {"dk", dk.data, bytes_of(dk)},
             {"dv", dv.data, bytes_of(dv)}};
}

Result run_case(const Backend& backend, const Device& device, const Mask& mask,
                const std::shared_ptr<const Plan>& forward,
                const std::shared_ptr<const Plan>& backward, const Settings& settings) {
  const Problem& problem = backward->problem;
  const Tensors tensors(device, problem);
  const auto run_backward = [&](const std::shared_ptr<const Plan>& plan) {
    backend.backward(plan, tensors.backward, settings.run);
  };
  const bool on_gpu = backend.name() == "cuda";
  const auto free = std::make_shared<Plan>(*backward);
  free->level = Level::not_guaranteed;
  std::function<void()> unordered;
  if (on_gpu && backward->level != Level::not_guaranteed) unordered = [&] { run_backward(free); };
  const Passes ours{.forward = [&] { backend.forward(forward, tensors.forward, settings.run); },
                    .backward = [&] { run_backward(backward); },
                    .unordered = unordered,
                    .forward_workspace = backend.workspace_bytes(*forward),
                    .backward_workspace = backend.workspace_bytes(*backward)};
  return run_passes(ours, device, problem, mask, tensors, settings, [&](Result& result) {
    if (on_gpu) time_calls(device, *backward, run_backward, result);
  });
}

Result run_peer(const Passes& passes, const Device& device, const Problem& problem,
                const Mask& mask, const Tensors& tensors, const Settings& settings) {
  return run_passes(passes, device, problem, mask, tensors, settings, [](Result&) {});
}

}  // namespace verbatim::bench
