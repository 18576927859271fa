// Random problems on the GPU against the double reference: values, NaN-filled outputs, guards.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "backend/cuda/gpu_case.h"
#include "core/random.h"
#include "mask/random_mask.h"

namespace verbatim::test {
namespace {

int64_t environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

int64_t pick(Random& random, std::initializer_list<int64_t> values) {
  return values.begin()[random.between(0, static_cast<int64_t>(values.size()) - 1)];
}

std::string random_order(Random& random, Pass pass) {
  std::vector<std::string> names;
  for (const OrderInfo& info : orders()) {
    if (info.pass == pass && info.level > Level::not_guaranteed) names.emplace_back(info.name);
  }
  const auto last = static_cast<int64_t>(names.size()) - 1;
  return names[static_cast<size_t>(random.between(0, last))] + (random.chance(0.3) ? "/split" : "");
}

struct Outcome {
  std::string text, wrong;
  double ratio = 0;
};

Outcome run_case(uint64_t number, void* stream) {
  Random random(number);
  Rng rng(random.bits());
  Problem p;
  p.batch = pick(random, {1, 1, 2, 3});
  p.kv_heads = pick(random, {1, 1, 2});
  p.q_heads = p.kv_heads * pick(random, {1, 1, 2, 4});
  p.head_dim = pick(random, {64, 128, 8 * random.between(1, 16), 8 * random.between(1, 32)});
  p.head_dim_v = random.chance(0.6) ? p.head_dim : 8 * random.between(1, 32);
  p.dtype = random.chance(0.5) ? Dtype::bf16 : Dtype::f16;
  if (random.chance(0.3)) p.scale = static_cast<double>(random.between(-100, 100)) / 200 + 0.001;
  if (random.chance(0.08)) p.scale = static_cast<double>(random.between(5, 40));
  if (random.chance(0.25)) p.softcap = static_cast<double>(random.between(1, 30));
  if (random.chance(0.25)) p.dropout = static_cast<double>(random.between(1, 90)) / 100;
  p.seed = random.bits();

  const auto& patterns = static_patterns();
  const auto last = static_cast<int64_t>(patterns.size()) - 1;
  const int64_t longest = pick(random, {3, 70, 150, 300, 600});
  Mask mask = masks::full(1, 1);
  if (random.chance(0.15)) {
    mask = masks::uniform_block_sparse(random.between(1, longest), random.between(1, longest),
                                       random.between(1, longest), random.between(1, longest), 0.3,
                                       random.bits(), p.kv_heads);
  } else {
    mask = random_case(patterns[static_cast<size_t>(random.between(0, last))], rng, longest).mask;
  }
  if (random.chance(0.2)) {
    std::vector<int64_t> lengths(static_cast<size_t>(p.batch));
    for (int64_t& length : lengths) length = random.between(0, mask.kv_len());
    mask = mask.with_key_lengths(lengths);
  }
  p.q_len = mask.q_len();
  p.kv_len = mask.kv_len();

  const bool wide = std::max(p.head_dim, p.head_dim_v) > 128;
  TileShape forward_tile{pick(random, {64, 128, 80}), pick(random, {64, 128})};
  TileShape backward_tile{pick(random, {64, 128, 80}), wide ? 64 : pick(random, {64, 128})};
  if (random.chance(0.5)) {  // what the Hopper kernels take
    p.head_dim = p.head_dim_v = pick(random, {64, 128});
    if (random.chance(0.7)) p.softcap = p.dropout = 0;
    forward_tile = backward_tile = {0, 0};
  }
  const std::string forward_order = random_order(random, Pass::forward);
  const std::string backward_order = random_order(random, Pass::backward);
  const std::string placement = random.chance(0.5) ? "auto" : "longest_first";

  Outcome outcome;
  outcome.text = fmt::format("VERBATIM_GPU_FIRST={} VERBATIM_GPU_CASES=1: {} {} {} {} {}", number,
                             to_json(p), mask.name(), forward_order, backward_order, placement);
  try {
    GpuCase c(p, mask, number, random.chance(0.3) ? 8 * random.between(1, 3) : 0);
    const Plan forward = c.plan(Pass::forward, forward_order, forward_tile);
    const Plan backward = [&] {
      try {
        const Plan plan = c.plan(Pass::backward, backward_order, backward_tile, placement);
        if (plan.residency <= 64) return plan;
      } catch (const Error&) {  // this placement needs more workers at once than there are
      }
      return c.plan(Pass::backward, backward_order, backward_tile);
    }();
    c.run(*gpu(), forward, backward, stream);
    const auto first = c.bits();
    outcome.wrong = c.examine(outcome.ratio);
    c.run(*gpu(), forward, backward, stream);
    if (c.bits() != first) outcome.wrong += "other bits the second time; ";
  } catch (const std::exception& e) {
    outcome.wrong += fmt::format("threw: {}; ", e.what());
  }
  return outcome;
}

TEST(Accuracy, RandomProblems) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const int64_t first = environment("VERBATIM_GPU_FIRST", 0);
  const int64_t cases = environment("VERBATIM_GPU_CASES", 300);
  std::atomic<int64_t> next{first};
  std::mutex mutex;
  std::vector<double> ratios;
  int64_t failures = 0;
  const auto work = [&] {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int64_t number; (number = next++) < first + cases;) {
      const Outcome outcome = run_case(static_cast<uint64_t>(number), stream);
      const std::lock_guard lock(mutex);
      ratios.push_back(outcome.ratio);
      if (outcome.wrong.empty()) continue;
      ++failures;
      if (failures <= 12) ADD_FAILURE() << outcome.wrong << "\n  " << outcome.text;
    }
    cudaStreamDestroy(stream);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back(work);
  }
  for (auto& thread : threads) thread.join();
  std::ranges::sort(ratios);
  fmt::print("{} random problems, {} mismatches, error ratio median {:.2f}, worst {:.2f}\n",
             ratios.size(), failures, ratios[ratios.size() / 2], ratios.back());
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace verbatim::test
