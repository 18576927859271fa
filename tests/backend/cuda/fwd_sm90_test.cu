// Checks the Hopper forward kernel against a naive double-precision one on random problems (NaN in
// every byte that must not be read or must be written, guard bands, repeats), then times the dense
// shapes. `fwd_sm90_test [cases] [rounds] [shapes]`: random problems for each of the first tile
// shapes of kShapes; 0 rounds: no timing.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numbers>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/fwd_sm90_case.cuh"
#include "backend/cuda/sm90/fwd/fwd.h"
#include "core/dtype.h"

namespace verbatim::cuda {
namespace {

struct Case {
  Problem problem;
  Mask mask = masks::full(1, 1);
  std::vector<int64_t> key_lengths;  // empty: all keys
  TileShape tile;
  Walk walk = Walk::leftwards;
  int64_t gap = 0;
  float spread = 1;
};

ForwardParams params_of(const Case& c, const PlanView& plan, Tensor& q, Tensor& k, Tensor& v,
                        Tensor& o, float* lse, int32_t* ticket) {
  const Problem& p = c.problem;
  const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
  ForwardParams params{};
  params.plan = plan;
  params.sizes = {narrow(p.batch),  narrow(p.q_heads),  narrow(p.kv_heads),  narrow(p.q_len),
                  narrow(p.kv_len), narrow(p.head_dim), narrow(p.head_dim_v)};
  params.scalars = {static_cast<float>(p.softmax_scale()),
                    static_cast<float>(p.softmax_scale() * std::numbers::log2e),
                    static_cast<float>(p.softcap), Dropout::make(p.dropout, p.seed)};
  params.q = q.ref();
  params.k = k.ref();
  params.v = v.ref();
  params.o = o.ref();
  params.lse = lse;
  params.hand_off.ticket = ticket;
  return params;
}

LaunchContext context_of(const Case& c) {
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  LaunchContext context{};
  context.multiprocessors = multiprocessors;
  context.dtype = c.problem.dtype;
  context.tile = c.tile;
  return context;
}

std::string describe(const Case& c) {
  const Problem& p = c.problem;
  char text[512];
  std::snprintf(text, sizeof text,
                "%s b%d h%d:%d q%d k%d d%d %s %s tile %dx%d gap %d cap %g drop %g spread %g %s",
                std::string(to_string(p.dtype)).c_str(), int(p.batch), int(p.q_heads),
                int(p.kv_heads), int(p.q_len), int(p.kv_len), int(p.head_dim),
                c.mask.name().c_str(), c.mask.params_json().substr(0, 120).c_str(), int(c.tile.q),
                int(c.tile.kv), int(c.gap), p.softcap, p.dropout, c.spread,
                c.walk == Walk::leftwards ? "leftwards" : "rightwards");
  return text;
}

/// Runs the case; returns what is wrong, or nothing. `ratio`: our error over the error of rounding.
std::string run_case(const Case& c, uint32_t seed, double& ratio) {
  const Problem& p = c.problem;
  const bool bf16 = p.dtype == Dtype::bf16;
  Tensor q(p.batch, p.q_len, p.q_heads, p.head_dim, c.gap);
  Tensor k(p.batch, p.kv_len, p.kv_heads, p.head_dim, c.gap);
  Tensor v(p.batch, p.kv_len, p.kv_heads, p.head_dim, 2 * c.gap);
  Tensor o(p.batch, p.q_len, p.q_heads, p.head_dim, c.gap);
  const std::vector<int64_t> all_q(p.batch, p.q_len);
  const auto all_k =
      c.key_lengths.empty() ? std::vector<int64_t>(p.batch, p.kv_len) : c.key_lengths;
  q.randomize(seed, c.spread, bf16, all_q);
  k.randomize(seed + 1, 1, bf16, all_k);
  v.randomize(seed + 2, 1, bf16, all_k);

  const int64_t rows = p.batch * p.q_heads * p.q_len;
  Device<float> lse(rows + 2);
  Device<int32_t> ticket(1);
  const DevicePlan plan(p, c.mask, c.tile, c.walk);
  const ForwardParams params = params_of(c, plan.view(), q, k, v, o, lse.get() + 1, ticket.get());
  const auto run = [&] {
    o.memory().poison();
    lse.poison();
    check(cudaMemset(ticket.get(), 0, sizeof(int32_t)));
    sm90::forward_kernel().forward(params, context_of(c));
    check(cudaDeviceSynchronize());
  };
  run();
  const auto got_o = o.memory().host();
  const auto got_lse = lse.host();
  for (int repeat = 0; repeat < 2; ++repeat) {
    run();
    const auto again_o = o.memory().host();
    const auto again_lse = lse.host();
    if (std::memcmp(again_o.data(), got_o.data(), got_o.size() * 2) != 0 ||
        std::memcmp(again_lse.data(), got_lse.data(), got_lse.size() * 4) != 0) {
      return "other bits in a repeat";
    }
  }

  std::vector<Slice> slices;
  std::vector<int32_t> begin{0}, variant_of;
  for (const HeadMask& head : c.mask.variants()) {
    slices.insert(slices.end(), head.slices.begin(), head.slices.end());
    begin.push_back(static_cast<int32_t>(slices.size()));
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.kv_heads; ++h) variant_of.push_back(c.mask.variant(b, h));
  }
  const Device<Slice> d_slices(slices);
  const Device<int32_t> d_begin(begin), d_variant(variant_of);
  Device<double> exact(rows * p.head_dim), base(rows * p.head_dim), exact_lse(rows);
  const dim3 grid(p.q_len, p.q_heads, p.batch);
  naive<<<grid, 128, p.kv_len * sizeof(double)>>>(params.sizes, params.scalars, p.softmax_scale(),
                                                  {d_slices.get(), d_begin.get(), d_variant.get()},
                                                  params.q, params.k, params.v, bf16, exact.get(),
                                                  base.get(), exact_lse.get());
  check(cudaDeviceSynchronize());
  const auto want = exact.host(), coarse = base.host(), want_lse = exact_lse.host();

  auto untouched = got_o;  // what is left after taking the tensor out must be poison
  double error = 0, base_error = 0, size = 0;
  char text[256];
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.q_heads; ++h) {
      for (int64_t l = 0; l < p.q_len; ++l) {
        const int64_t row = params.sizes.row_index(b, h, l);
        const double seen = got_lse[1 + row], expected = want_lse[row];
        if (!(seen == expected ||
              std::abs(seen - expected) < 2e-5 * (1 + std::abs(expected)) + 2e-4 * c.spread)) {
          std::snprintf(text, sizeof text, "LSE(%d,%d,%d) is %g, not %g", int(b), int(h), int(l),
                        seen, expected);
          return text;
        }
        for (int64_t i = 0; i < p.head_dim; ++i) {
          uint16_t& bits = untouched[o.offset(b, l, h) + i];
          const double x = bf16 ? to_f32(Bf16{bits}) : to_f32(F16{bits});
          bits = 0xffff;
          const int64_t at = row * p.head_dim + i;
          const double off = std::abs(x - want[at]);
          if (!(off <= 1e300)) {
            std::snprintf(text, sizeof text, "O(%d,%d,%d,%d) is %g, not %g", int(b), int(l), int(h),
                          int(i), x, want[at]);
            return text;
          }
          error = std::max(error, off);
          base_error = std::max(base_error, std::abs(coarse[at] - want[at]));
          size = std::max(size, std::abs(want[at]));
        }
      }
    }
  }
  if (std::any_of(untouched.begin(), untouched.end(), [](uint16_t x) { return x != 0xffff; })) {
    return "wrote outside O";
  }
  uint32_t guard[2];
  std::memcpy(&guard[0], &got_lse.front(), 4);
  std::memcpy(&guard[1], &got_lse.back(), 4);
  if (guard[0] != ~0u || guard[1] != ~0u) return "wrote outside LSE";
  ratio = error / std::max(base_error, 1e-6 + 1e-5 * size);
  if (ratio > 2) {
    std::snprintf(text, sizeof text, "error %g is %.2f times that of rounding, %g", error, ratio,
                  base_error);
    return text;
  }
  return {};
}

std::vector<int64_t> random_lengths(std::mt19937& random, int64_t total) {
  std::vector<int64_t> lengths;
  while (total > 0) {
    const int64_t length = std::min<int64_t>(total, random() % 8 == 0 ? 0 : random() % 200 + 1);
    lengths.push_back(length);
    total -= length;
  }
  if (lengths.empty()) lengths.push_back(0);
  return lengths;
}

Case random_case(std::mt19937& random, int64_t head_dim, TileShape tile) {
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % (high - low + 1));
  };
  Case c;
  Problem& p = c.problem;
  c.tile = tile;
  p.head_dim = p.head_dim_v = head_dim;
  p.dtype = pick(0, 1) ? Dtype::bf16 : Dtype::f16;
  p.batch = pick(1, 3);
  p.kv_heads = pick(1, 3);
  p.q_heads = p.kv_heads * pick(1, 3);
  const int64_t length = pick(1, pick(0, 1) ? 700 : 300);
  p.q_len = p.kv_len = length;
  const auto lengths = random_lengths(random, length);
  const int64_t window = pick(0, length);
  switch (pick(0, 12)) {
    case 0:
    case 1:
      p.kv_len = pick(1, 700);
      c.mask = masks::full(length, p.kv_len);
      break;
    case 2:
    case 3:
      p.kv_len = pick(1, 700);
      c.mask = masks::causal(length, p.kv_len);
      break;
    case 4:
      c.mask = masks::full_sliding_window(length, length, window);
      break;
    case 5:
      p.kv_len = pick(1, 700);
      c.mask = masks::causal_sliding_window(length, p.kv_len, window);
      break;
    case 6:
      c.mask = masks::full_document(lengths);
      break;
    case 7:
      c.mask = masks::causal_document(lengths);
      break;
    case 8:
      c.mask = masks::share_question(lengths);
      break;
    case 9:
      c.mask = masks::causal_blockwise(lengths);
      break;
    case 10:
      c.mask = masks::global_sliding(length, pick(0, length), window);
      break;
    case 11:
      c.mask = masks::prefix_lm_causal(length, pick(0, length));
      break;
    case 12:
      c.mask = masks::block_causal_document(lengths, pick(1, 128));
      break;
  }
  if (pick(0, 3) == 0) {
    for (int64_t b = 0; b < p.batch; ++b) c.key_lengths.push_back(pick(0, p.kv_len));
    c.mask = c.mask.with_key_lengths(c.key_lengths);
  }
  c.walk = pick(0, 1) ? Walk::leftwards : Walk::rightwards;
  c.gap = 8 * pick(0, 2);
  c.spread = pick(0, 4) == 0 ? 20.0f : 1.0f;
  if (pick(0, 5) == 0) p.softcap = pick(1, 50);
  if (pick(0, 5) == 0) p.dropout = 0.05 * pick(1, 10);
  p.seed = random();
  return c;
}

/// TFLOP/s, rested: 0.5 s idle, 3 warm-ups, median of 10 calls.
double time_case(const Case& c, double& milliseconds) {
  const Problem& p = c.problem;
  const bool bf16 = p.dtype == Dtype::bf16;
  Tensor q(p.batch, p.q_len, p.q_heads, p.head_dim, 0),
      k(p.batch, p.kv_len, p.kv_heads, p.head_dim, 0);
  Tensor v(p.batch, p.kv_len, p.kv_heads, p.head_dim, 0),
      o(p.batch, p.q_len, p.q_heads, p.head_dim, 0);
  uint32_t seed = 1;
  for (Tensor* tensor : {&q, &k, &v}) {
    fill<<<1024, 256>>>(tensor->memory().get(), tensor->memory().size(), seed++, 1, bf16);
  }
  Device<float> lse(p.batch * p.q_heads * p.q_len);
  Device<int32_t> ticket(1);
  const DevicePlan plan(p, c.mask, c.tile, c.walk);
  const ForwardParams params = params_of(c, plan.view(), q, k, v, o, lse.get(), ticket.get());
  const LaunchContext context = context_of(c);
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start));
  check(cudaEventCreate(&stop));
  check(cudaDeviceSynchronize());
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::vector<float> times;
  for (int i = 0; i < 13; ++i) {
    check(cudaEventRecord(start));
    check(cudaMemsetAsync(ticket.get(), 0, sizeof(int32_t)));
    sm90::forward_kernel().forward(params, context);
    check(cudaEventRecord(stop));
    check(cudaEventSynchronize(stop));
    float time = 0;
    check(cudaEventElapsedTime(&time, start, stop));
    if (i >= 3) times.push_back(time);
  }
  check(cudaEventDestroy(start));
  check(cudaEventDestroy(stop));
  std::sort(times.begin(), times.end());
  milliseconds = times[times.size() / 2];
  const double area = static_cast<double>(c.mask.area(p.batch, p.q_heads, p.kv_heads));
  return 4 * area * p.head_dim / (milliseconds * 1e9);
}

struct Shape {
  int64_t head_dim;
  TileShape tile;
};
constexpr Shape kShapes[] = {{64, {192, 128}}, {128, {128, 128}}};

int check_shapes(std::span<const Shape> shapes, int cases) {
  int failures = 0;
  for (const Shape& shape : shapes) {
    std::mt19937 random(static_cast<uint32_t>(shape.head_dim + shape.tile.kv));
    std::vector<double> ratios;
    for (int i = 0; i < cases; ++i) {
      const Case c = random_case(random, shape.head_dim, shape.tile);
      double ratio = 0;
      const std::string wrong = run_case(c, 3 * i, ratio);
      ratios.push_back(ratio);
      if (wrong.empty()) continue;
      if (++failures <= 20)
        std::printf("FAILED %d: %s\n  %s\n", i, describe(c).c_str(), wrong.c_str());
    }
    if (ratios.empty()) continue;
    std::sort(ratios.begin(), ratios.end());
    std::printf("hd %d tile %dx%d: %d cases, error ratio median %.3f max %.3f\n",
                int(shape.head_dim), int(shape.tile.q), int(shape.tile.kv), cases,
                ratios[ratios.size() / 2], ratios.back());
    std::fflush(stdout);
  }
  std::printf("%d failures\n", failures);
  return failures;
}

void time_shapes(std::span<const Shape> shapes) {
  std::printf(
      "\nTFLOP/s, bf16, 16384 tokens, hidden 2048   512     1k     2k     4k     8k    16k\n");
  for (const Shape& shape : shapes) {
    for (const bool causal : {false, true}) {
      std::printf("hd %-3d tile %dx%d %-6s                  ", int(shape.head_dim),
                  int(shape.tile.q), int(shape.tile.kv), causal ? "causal" : "full");
      for (int64_t length = 512; length <= 16384; length *= 2) {
        Case c;
        c.tile = shape.tile;
        c.problem = {.batch = 16384 / length,
                     .q_heads = 2048 / shape.head_dim,
                     .kv_heads = 2048 / shape.head_dim,
                     .q_len = length,
                     .kv_len = length,
                     .head_dim = shape.head_dim,
                     .head_dim_v = shape.head_dim,
                     .dtype = Dtype::bf16};
        c.mask = causal ? masks::causal(length, length) : masks::full(length, length);
        double milliseconds = 0;
        std::printf("%6.0f ", time_case(c, milliseconds));
        std::fflush(stdout);
      }
      std::printf("\n");
    }
  }
}

}  // namespace
}  // namespace verbatim::cuda

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 200;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 1;
  int devices = 0;
  cudaDeviceProp properties{};
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 ||
      cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9) {
    std::printf("skipped: no Hopper GPU\n");
    return 77;
  }
  try {
    const auto shapes = std::span(verbatim::cuda::kShapes).first(argc > 3 ? std::atoi(argv[3]) : 3);
    const int failures = verbatim::cuda::check_shapes(shapes, cases);
    for (int round = 0; round < rounds; ++round) verbatim::cuda::time_shapes(shapes);
    return failures == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
