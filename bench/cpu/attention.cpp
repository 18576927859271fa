// Forward and backward on the CPU against the machine's own float32 matrix product, measured in
// turns in one process: the minimum of many calls each. FLOPs count the mask's exact area.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "core/random.h"
#include "yardstick.h"

namespace {

using namespace verbatim;
using bench::Cost;

struct Options {
  std::vector<int64_t> lengths{512, 2048, 8192};
  std::vector<int64_t> head_dims{64, 128};
  std::vector<std::string> masks{"causal", "full"};
  std::vector<int> threads{1, 2};
  std::string dtype = "f32", layout = "blhd", order = "auto";
  int64_t heads = 8;
  double seconds = 2;
  bool json = false;
};

const char* const kStaticMasks[] = {
    "full",           "causal",           "full_sliding_window", "causal_sliding_window",
    "full_document",  "causal_document",  "share_question",      "causal_blockwise",
    "global_sliding", "prefix_lm_causal", "prefix_lm_document",  "block_causal_document"};

/// A static mask with parameters in proportion to the length.
Mask make_mask(const std::string& name, int64_t n) {
  std::vector<int64_t> docs;  // lengths from 1/32 to 1/4 of the whole
  Random random(7);
  for (int64_t left = n; left > 0; left -= docs.back())
    docs.push_back(std::min(left, random.between(n / 32, n / 4)));
  const int64_t prefix[] = {docs.front() / 2};
  if (name == "full") return masks::full(n, n);
  if (name == "causal") return masks::causal(n, n);
  if (name == "full_sliding_window") return masks::full_sliding_window(n, n, n / 8);
  if (name == "causal_sliding_window") return masks::causal_sliding_window(n, n, n / 8);
  if (name == "full_document") return masks::full_document(docs);
  if (name == "causal_document") return masks::causal_document(docs);
  if (name == "share_question") return masks::share_question(docs);
  if (name == "causal_blockwise") return masks::causal_blockwise(docs);
  if (name == "global_sliding") return masks::global_sliding(n, n / 8, n / 8);
  if (name == "prefix_lm_causal") return masks::prefix_lm_causal(n, n / 3);
  if (name == "prefix_lm_document") return masks::prefix_lm_document(docs, prefix);
  if (name == "block_causal_document") return masks::block_causal_document(docs, n / 8);
  throw Error(ErrorCode::invalid_argument, "bench", "no such mask: " + name);
}

/// A tensor of random numbers, (batch 1, length, heads, dim), in one of two memory layouts.
struct Storage {
  std::vector<char> bytes;
  TensorView view;
  Storage(const Problem& p, int64_t heads, int64_t dim, bool heads_first, uint64_t seed) {
    bytes.resize(p.q_len * heads * dim * size_of(p.dtype));
    view = TensorView::dense(bytes.data(), p.dtype, {1, p.q_len, heads, dim});
    if (heads_first) view.stride = {p.q_len * heads * dim, dim, p.q_len * dim, 1};
    fill_uniform(view, seed, -1, 1);
  }
};

template <class F>
void measure(Cost& best, F&& f) {
  const Cost begin = bench::now();
  f();
  const Cost end = bench::now();
  best = {std::min(best.wall, end.wall - begin.wall), std::min(best.cpu, end.cpu - begin.cpu)};
}

void run_case(const Options& options, const std::string& mask_name, int64_t length, int64_t dim,
              int threads) {
  Problem p{.q_heads = options.heads,
            .kv_heads = options.heads,
            .q_len = length,
            .kv_len = length,
            .head_dim = dim,
            .head_dim_v = dim,
            .dtype = dtype_from_string(options.dtype)};
  const Mask mask = make_mask(mask_name, length);
  PlanOptions plan_options;
  plan_options.workers = threads;
  plan_options.pass = Pass::forward;
  const auto forward = std::make_shared<const Plan>(make_plan(p, mask, plan_options));
  plan_options.pass = Pass::backward;
  plan_options.order = options.order;
  const auto backward = std::make_shared<const Plan>(make_plan(p, mask, plan_options));

  const bool heads_first = options.layout == "bhld";
  const auto storage = [&](uint64_t seed) {
    return Storage(p, options.heads, dim, heads_first, seed);
  };
  const Storage q = storage(1), k = storage(2), v = storage(3), dout = storage(4), o = storage(5),
                dq = storage(6), dk = storage(7), dv = storage(8);
  std::vector<float> lse_rows(length * options.heads);
  const RowView lse{lse_rows.data(), {1, options.heads, length}};
  const ForwardTensors f{q.view, k.view, v.view, o.view, lse};
  const BackwardTensors b{q.view, k.view,  v.view,  o.view, dout.view,
                          lse,    dq.view, dk.view, dv.view};
  const auto backend = make_cpu_backend();
  RunOptions run;
  run.threads = threads;

  bench::Yardstick yardstick(threads);
  Cost gemm{1e9, 1e9}, fwd = gemm, bwd = gemm;
  const double end = bench::now().wall + options.seconds;
  for (int round = 0; round < 3 || bench::now().wall < end; ++round) {
    measure(gemm, [&] { yardstick.run(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // OpenMP's threads spin on
    measure(fwd, [&] { backend->forward(forward, f, run); });
    measure(bwd, [&] { backend->backward(backward, b, run); });
  }

  const double flops = 4.0 * mask.area(1, p.q_heads, p.kv_heads) * dim;
  // On a machine that others use, CPU time tells what the program needs; wall time what it got.
  const auto rates = [&](double Cost::*t) {
    const double yard = yardstick.flops() / (gemm.*t), both = 3.5 * flops / (fwd.*t + bwd.*t);
    const bool honest = yard > 0.5 * bench::core_peak();
    nlohmann::ordered_json row{{"gemm", yard * 1e-9},
                               {"forward", flops / (fwd.*t) * 1e-9},
                               {"backward", 2.5 * flops / (bwd.*t) * 1e-9},
                               {"both", both * 1e-9}};
    row["ratio"] = honest ? nlohmann::ordered_json(both / yard) : nullptr;
    return row;
  };
  const nlohmann::ordered_json wall = rates(&Cost::wall), cpu = rates(&Cost::cpu);
  if (options.json) {
    const nlohmann::ordered_json row{{"mask", mask_name},
                                     {"length", length},
                                     {"head_dim", dim},
                                     {"dtype", options.dtype},
                                     {"threads", threads},
                                     {"layout", options.layout},
                                     {"order", backward.orders[0]->name},
                                     {"wall_gflops", wall},
                                     {"cpu_gflops", cpu}};
    std::cout << row.dump() << std::endl;
    return;
  }
  const auto text = [](const nlohmann::ordered_json& r) {
    const std::string ratio =
        r["ratio"].is_null() ? "-" : fmt::format("{:.2f}", r["ratio"].get<double>());
    return fmt::format("{:5.0f} {:5.0f} {:5.0f} {:5.0f} {:>5}", r["gemm"].get<double>(),
                       r["forward"].get<double>(), r["backward"].get<double>(),
                       r["both"].get<double>(), ratio);
  };
  std::cout << fmt::format("{:22} {:6} {:4} {:5} {:2}  {}  {}\n", mask_name, length, dim,
                           options.dtype, threads, text(wall), text(cpu))
            << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Attention on the CPU beside oneDNN's sgemm. GFLOP/s; ratio: both over gemm.");
  app.add_option("--seqlen", options.lengths, "lengths")->delimiter(',');
  app.add_option("--head-dim", options.head_dims, "head dims")->delimiter(',');
  app.add_option("--mask", options.masks, "static masks, or 'all'")->delimiter(',');
  app.add_option("--threads", options.threads, "thread counts")->delimiter(',');
  app.add_option("--dtype", options.dtype, "f32, bf16 or f16");
  app.add_option("--layout", options.layout, "memory: blhd, or bhld (one head's rows adjacent)")
      ->check(CLI::IsMember({"blhd", "bhld"}));
  app.add_option("--order", options.order, "order of the backward");
  app.add_option("--heads", options.heads, "query and KV heads");
  app.add_option("--seconds", options.seconds, "time per case");
  app.add_flag("--json", options.json, "one JSON object per line");
  CLI11_PARSE(app, argc, argv);
  try {
    if (options.masks == std::vector<std::string>{"all"})
      options.masks.assign(std::begin(kStaticMasks), std::end(kStaticMasks));
    if (!options.json)
      std::cout << fmt::format("{:43} {:^29}  {:^29}\n{:22} {:>6} {:>4} {:5} {:2}  {}  {}\n", "",
                               "by wall time", "by CPU time", "mask", "length", "hd", "dtype", "th",
                               " gemm   fwd   bwd  both ratio", " gemm   fwd   bwd  both ratio");
    for (const std::string& mask : options.masks)
      for (const int64_t length : options.lengths)
        for (const int64_t dim : options.head_dims)
          for (const int threads : options.threads) run_case(options, mask, length, dim, threads);
  } catch (const Error& e) {
    std::cerr << e.what() << "\n";
    return 2;
  }
}
