// Times forward and deterministic backward on a GPU, beside the same backward without order and
// the card's own matrix product, and writes JSON. Nothing is timed whose bits do not repeat.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>

#include "backend/backend.h"
#include "backend/cuda/status.h"
#include "bench/cuda/cases.h"
#include "bench/cuda/kernels.h"
#include "bench/cuda/yardstick.h"
#include "core/sha256.h"
#include "verbatim/schedule.h"

namespace verbatim::bench {
namespace {

using Json = nlohmann::ordered_json;

void check(cudaError_t status) { cuda::check(status, "bench"); }

/// Device memory that starts as NaN.
struct Buffer {
  void* data = nullptr;
  size_t bytes;
  explicit Buffer(size_t size) : bytes(std::max<size_t>(size, 16)) {
    check(cudaMalloc(&data, bytes));
    check(cudaMemset(data, 0xff, bytes));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data); }
};

struct Timing {
  double ms, noise;  // median, and the middle half's spread over it
};

/// Rested: 0.5 s idle, 3 warm-ups, median of 10 calls. Sustained: 0.6 s of the same work first,
/// then the median over 0.3 s.
Timing time_calls(const std::string& protocol, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  const auto once = [&] {
    check(cudaEventRecord(begin));
    call();
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float ms;
    check(cudaEventElapsedTime(&ms, begin, end));
    return ms;
  };
  std::vector<float> times;
  const auto seconds = [](Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  };
  if (protocol == "rested") {
    usleep(500000);
    for (int i = 0; i < 3; ++i) call();
    for (int i = 0; i < 10; ++i) times.push_back(once());
  } else {
    for (const auto start = Clock::now(); seconds(start) < 0.6;) once();
    for (const auto start = Clock::now(); seconds(start) < 0.3;) times.push_back(once());
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  const double median = (times[(n - 1) / 2] + times[n / 2]) / 2.0;
  return {median, (times[n * 3 / 4] - times[n / 4]) / median};
}

struct Options {
  std::string sets = "dense,gqa,masks", match = ".*", protocol = "rested", order = "auto";
  std::string placement = "auto", json, commit = "unknown";
  int repeats = 10;
};

/// The tensors of one case.
struct Tensors {
  Buffer q, k, v, o, dout, dq, dk, dv, lse;
  ForwardTensors forward;
  BackwardTensors backward;

  explicit Tensors(const Problem& p)
      : q(2 * p.batch * p.q_len * p.q_heads * p.head_dim),
        k(2 * p.batch * p.kv_len * p.kv_heads * p.head_dim),
        v(2 * p.batch * p.kv_len * p.kv_heads * p.head_dim_v),
        o(2 * p.batch * p.q_len * p.q_heads * p.head_dim_v),
        dout(o.bytes),
        dq(q.bytes),
        dk(k.bytes),
        dv(v.bytes),
        lse(4 * p.batch * p.q_heads * p.q_len) {
    uint64_t seed = 1;
    for (const Buffer* input : {&q, &k, &v, &dout}) {
      fill_normal(input->data, input->bytes / 2, seed++);
    }
    const auto view = [&](const Buffer& buffer, int64_t len, int64_t heads, int64_t dim) {
      return TensorView::dense(buffer.data, p.dtype, {p.batch, len, heads, dim});
    };
    const TensorView vq = view(q, p.q_len, p.q_heads, p.head_dim);
    const TensorView vk = view(k, p.kv_len, p.kv_heads, p.head_dim);
    const TensorView vv = view(v, p.kv_len, p.kv_heads, p.head_dim_v);
    const TensorView vo = view(o, p.q_len, p.q_heads, p.head_dim_v);
    const RowView rows{static_cast<float*>(lse.data), {p.batch, p.q_heads, p.q_len}};
    forward = {vq, vk, vv, vo, rows};
    backward = {vq,
                vk,
                vv,
                vo,
                view(dout, p.q_len, p.q_heads, p.head_dim_v),
                rows,
                view(dq, p.q_len, p.q_heads, p.head_dim),
                view(dk, p.kv_len, p.kv_heads, p.head_dim),
                view(dv, p.kv_len, p.kv_heads, p.head_dim_v)};
  }
};

std::string hash(const Buffer& buffer) {
  std::vector<std::byte> host(buffer.bytes);
  check(cudaMemcpy(host.data(), buffer.data, buffer.bytes, cudaMemcpyDeviceToHost));
  return sha256(host);
}

Json run_case(const Backend& backend, const Case& c, const Options& options) {
  const Problem& p = c.problem;
  PlanOptions wanted;
  wanted.machine = make_machine("h200");
  wanted.order = options.order;
  wanted.placement = options.placement;
  const auto planned = std::chrono::steady_clock::now();
  const Plan backward = make_plan(p, c.mask, wanted);
  const double plan_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - planned).count();
  wanted.pass = Pass::forward;
  wanted.order = wanted.placement = "auto";
  const Plan forward = make_plan(p, c.mask, wanted);
  Plan unordered = backward;
  unordered.level = Level::not_guaranteed;

  Tensors t(p);
  backend.forward(forward, t.forward, {});
  backend.backward(backward, t.backward, {});
  const std::vector<std::pair<const char*, const Buffer*>> outputs{
      {"o", &t.o}, {"dq", &t.dq}, {"dk", &t.dk}, {"dv", &t.dv}};
  Json hashes;
  std::vector<std::unique_ptr<Buffer>> first;
  for (const auto& [name, buffer] : outputs) {
    hashes[name] = hash(*buffer);
    first.push_back(std::make_unique<Buffer>(buffer->bytes));
    check(cudaMemcpy(first.back()->data, buffer->data, buffer->bytes, cudaMemcpyDeviceToDevice));
  }
  Buffer differences(8);
  check(cudaMemset(differences.data, 0, 8));
  const auto compare = [&] {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Buffer& now = *outputs[i].second;
      count_differences(now.data, first[i]->data, now.bytes / 4, differences.data);
    }
  };
  for (int i = 0; i < options.repeats; ++i) {
    for (const auto& [name, buffer] : outputs) {
      check(cudaMemset(buffer->data, 0xff, buffer->bytes));
    }
    backend.forward(forward, t.forward, {});
    backend.backward(backward, t.backward, {});
    compare();
  }
  const double area = static_cast<double>(c.mask.area(p.batch, p.q_heads, p.kv_heads));
  const double flops = 4 * area * static_cast<double>(p.head_dim);
  const auto timed = [&](double work, const std::function<void()>& call) {
    const Timing timing = time_calls(options.protocol, call);
    return Json{{"ms", timing.ms}, {"noise", timing.noise}, {"tflops", work / timing.ms * 1e-9}};
  };
  Json result = {
      {"set", c.set},
      {"name", c.name},
      {"problem", Json::parse(to_json(p))},
      {"mask",
       {{"name", c.mask.name()}, {"params", Json::parse(c.mask.params_json())}, {"area", area}}}};
  result["plan"] = {{"order", backward.orders.front()->name},
                    {"placement", backward.placement.name},
                    {"level", to_string(backward.level)},
                    {"fingerprint", backward.fingerprint()},
                    {"residency", backward.residency},
                    {"bytes", backward.bytes()},
                    {"ms", plan_ms}};
  result["forward"] = timed(flops, [&] { backend.forward(forward, t.forward, {}); });
  result["unordered"] = timed(2.5 * flops, [&] { backend.backward(unordered, t.backward, {}); });
  result["backward"] = timed(2.5 * flops, [&] { backend.backward(backward, t.backward, {}); });
  compare();  // the last timed call is checked too
  unsigned long long count = 0;
  check(cudaMemcpy(&count, differences.data, 8, cudaMemcpyDeviceToHost));
  result["bits"] = {{"repeats", options.repeats}, {"differing_words", count}, {"sha256", hashes}};
  result["workspace_bytes"] = backend.workspace_bytes(backward);
  return result;
}

Json describe_device() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0));
  int driver = 0, runtime = 0, clock = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0);
  return {{"name", properties.name},
          {"multiprocessors", properties.multiProcessorCount},
          {"l2_bytes", properties.l2CacheSize},
          {"max_clock_mhz", clock / 1000},
          {"driver_cuda", driver},
          {"runtime_cuda", runtime}};
}

int run(const Options& options) {
  const auto backend = make_backend("cuda");
  Json out = {{"schema", "verbatim.bench_cuda.v1"},
              {"device", describe_device()},
              {"commit", options.commit},
              {"protocol", options.protocol}};
  const Matmul matmul;
  constexpr int kSize = 8192;
  const auto measure_matmul = [&] {
    if (!matmul.available()) return 0.0;
    Buffer a(2ull * kSize * kSize), b(a.bytes), c(a.bytes);
    fill_normal(a.data, a.bytes / 2, 7);
    fill_normal(b.data, b.bytes / 2, 8);
    const Timing timing =
        time_calls(options.protocol, [&] { matmul.run(a.data, b.data, c.data, kSize, nullptr); });
    return 2.0 * kSize * kSize * kSize / timing.ms * 1e-9;
  };
  const double before = measure_matmul();
  out["matmul_tflops"] = {{"before", before}, {"after", nullptr}};
  bool same = true;
  Json& results = out["results"] = Json::array();
  const auto save = [&] {
    if (!options.json.empty()) std::ofstream(options.json) << out.dump(1) << "\n";
  };
  fmt::print("{:<28} {:>8} {:>16} {:>16} {:>7}  {}\n", "case", "fwd TF/s", "bwd ms (TF/s)",
             "unordered", "ratio", "order, placement, bits");
  for (const Case& c : cases()) {
    if (options.sets.find(c.set) == std::string::npos) continue;
    if (!std::regex_search(c.name, std::regex(options.match))) continue;
    Json r = run_case(*backend, c, options);
    const auto number = [&](const char* part, const char* key) {
      return r[part][key].get<double>();
    };
    same &= r["bits"]["differing_words"] == 0;
    fmt::print("{:<28} {:>8.0f} {:>9.3f} ({:>4.0f}) {:>9.3f} ({:>4.0f}) {:>7.3f}  {}, {}, {}\n",
               c.name, number("forward", "tflops"), number("backward", "ms"),
               number("backward", "tflops"), number("unordered", "ms"),
               number("unordered", "tflops"), number("unordered", "ms") / number("backward", "ms"),
               r["plan"]["order"].get<std::string>(), r["plan"]["placement"].get<std::string>(),
               r["bits"]["differing_words"] == 0 ? "equal" : "DIFFER");
    std::fflush(stdout);
    results.push_back(std::move(r));
    save();  // a run that is cut keeps what it has
  }
  const double after = measure_matmul();
  out["matmul_tflops"]["after"] = after;
  fmt::print("matmul 8192^3 bf16: {:.0f} TFLOP/s before, {:.0f} after\n", before, after);
  save();
  return same ? 0 : 1;
}

}  // namespace
}  // namespace verbatim::bench

int main(int argc, char** argv) {
  verbatim::bench::Options options;
  CLI::App app{"Times Verbatim's GPU kernels; exit code 1 when bits differ between repeats"};
  app.add_option("--sets", options.sets, "Of dense, gqa, masks");
  app.add_option("--match", options.match, "Only cases whose name matches this regular expression");
  app.add_option("--protocol", options.protocol, "rested or sustained")
      ->check(CLI::IsMember({"rested", "sustained"}));
  app.add_option("--order", options.order, "Backward order");
  app.add_option("--placement", options.placement, "Backward placement");
  app.add_option("--repeats", options.repeats, "Runs whose bits are compared before timing");
  app.add_option("--commit", options.commit, "Recorded in the results: what was built");
  app.add_option("--json", options.json, "Write the results here");
  CLI11_PARSE(app, argc, argv);
  try {
    return verbatim::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
