// Random problems on the GPU against the double reference: values, NaN-filled outputs, guards.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "backend/cuda/gpu_case.h"
#include "backend/cuda/random_problem.h"

namespace verbatim::test {
namespace {

int64_t environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

struct Outcome {
  std::string text, wrong;
  double ratio = 0;
  bool hopper = false;  // its backward ran on the Hopper kernel
  bool extras = false;  // with softcap or dropout
};

Outcome run_case(uint64_t number, void* stream) {
  const RandomProblem r = random_problem(number);
  Outcome outcome;
  outcome.text = fmt::format("VERBATIM_GPU_FIRST={} VERBATIM_GPU_CASES=1: {}", number, r.text());
  try {
    GpuCase c(r.problem, r.mask, number, r.gap);
    const SharedPlan forward = c.plan(Pass::forward, r.forward_order, r.forward_tile);
    const SharedPlan backward = backward_plan(r, c);
    outcome.hopper = gpu()->kernel_name(*backward) == "sm90.backward";
    outcome.extras = r.problem.softcap != 0 || r.problem.dropout != 0;
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
  int64_t failures = 0, hopper = 0, hopper_extras = 0;
  const auto work = [&] {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int64_t number; (number = next++) < first + cases;) {
      const Outcome outcome = run_case(static_cast<uint64_t>(number), stream);
      const std::lock_guard lock(mutex);
      ratios.push_back(outcome.ratio);
      hopper += outcome.hopper;
      hopper_extras += outcome.hopper && outcome.extras;
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
  const double median = ratios[ratios.size() / 2];
  fmt::print(
      "{} random problems, {} of them on the Hopper backward ({} with softcap or dropout), {} "
      "mismatches, error ratio median {:.2f}, worst {:.2f}\n",
      ratios.size(), hopper, hopper_extras, failures, median, ratios.back());
  EXPECT_EQ(failures, 0);
  EXPECT_LE(median, 1.1);
}

// The reference drops the elements that the seed says: with others no gradient would be right.
TEST(Accuracy, SoftcapAndDropout) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const std::vector<int64_t> docs{130, 0, 61, 109};
  const std::pair<Mask, std::string> runs[] = {
      {masks::causal(300, 365), "descending"},
      {masks::causal_document(docs), "ascending/split"},
      // Documents that see one another are one sequence: KV tiles start anywhere in it.
      {masks::share_question(docs), "descending"}};
  const std::pair<double, double> kinds[] = {{1.5, 0}, {0, 0.3}, {1.5, 0.3}};
  for (const HeadDims& dims : hopper_head_dims()) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      for (const auto& [mask, order] : runs) {
        Problem p = problem_of(mask, dims);
        p.q_heads = 4;
        p.dtype = dtype;
        // The Hopper backward of MLA's head dims has neither.
        const auto without =
            dims.qk == 192 ? "sm80.backward"
                           : gpu()->kernel_name(*GpuCase(p, mask, 3).plan(Pass::backward, order));
        for (const auto& [softcap, dropout] : kinds) {
          p.softcap = softcap;
          p.dropout = dropout;
          const auto where = fmt::format("{} {} {}", to_json(p), mask.name(), order);
          GpuCase c(p, mask, 3);
          const SharedPlan forward = c.plan(Pass::forward, "ascending");
          const SharedPlan backward = c.plan(Pass::backward, order);
          EXPECT_EQ(gpu()->kernel_name(*backward), without) << where;
          c.run(*gpu(), forward, backward);
          const auto first = c.bits();
          double ratio = 0;
          EXPECT_EQ(c.examine(ratio), "") << where;
          c.run(*gpu(), forward, backward);
          EXPECT_EQ(c.bits(), first) << where;
        }
      }
    }
  }
}

// What 5,000 of them cover; needs no GPU.
TEST(Accuracy, RandomProblemsAreOfEveryKind) {
  std::set<std::string> patterns;
  std::set<int64_t> head_dims, groups, q_residues, kv_residues;
  int64_t tiny = 0, negative = 0, hopper_extras = 0;
  for (uint64_t number = 0; number < 5000; ++number) {
    const RandomProblem r = random_problem(number);
    patterns.emplace(r.mask.name());
    head_dims.insert(r.problem.head_dim);
    groups.insert(r.problem.group());
    q_residues.insert(r.problem.q_len % 128);
    kv_residues.insert(r.problem.kv_len % 128);
    tiny += std::abs(r.problem.softmax_scale()) < 1e-6;
    negative += r.problem.softmax_scale() < 0;
    hopper_extras +=
        r.backward_tile == TileShape{0, 0} && (r.problem.softcap != 0 || r.problem.dropout != 0);
  }
  EXPECT_EQ(patterns.size(), 16);  // masks::names() and cu_seqlens
  EXPECT_EQ(head_dims.size(), 32);
  EXPECT_EQ(groups, (std::set<int64_t>{1, 2, 3, 4, 8}));
  EXPECT_EQ(q_residues.size(), 128);
  EXPECT_EQ(kv_residues.size(), 128);
  EXPECT_GT(tiny, 100);
  EXPECT_GT(negative, 500);
  EXPECT_GT(hopper_extras, 500);
}

}  // namespace
}  // namespace verbatim::test
