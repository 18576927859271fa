// Every entry of a padded or packed batch has the bits that it has alone, whatever the padding and
// its neighbours hold.
#include "backend/composition.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "backend/cuda/gpu_case.h"

namespace verbatim::test {
namespace {

int64_t cases() {
  const char* value = std::getenv("VERBATIM_COMPOSITION_CASES");
  return value ? std::atoll(value) : 60;
}

/// Both passes on the device and back, `between` them what happens to their tensors here.
template <class Between>
void run(const std::string& arithmetic, const Problem& problem, const Mask& mask,
         const std::string& order, int32_t workers, HostTensors& t, void* stream, Between between) {
  const auto plan_of = [&](Pass pass) {
    PlanOptions options;
    options.pass = pass;
    options.order = pass == Pass::forward ? "auto" : order;
    options.workers = pass == Pass::forward ? 132 : workers;
    options.arithmetic = arithmetic;
    return share(make_plan(problem, mask, options));
  };
  for (GuardedTensor* output : {&t.o, &t.lse, &t.dq, &t.dk, &t.dv}) output->poison();
  gpu()->forward(plan_of(Pass::forward), t.forward(), {.stream = stream});
  between();
  gpu()->backward(plan_of(Pass::backward), t.backward(), {.stream = stream});
}

/// What is wrong with a composition; empty when nothing is.
std::string examine(int64_t number, void* stream) {
  const CompositionCaps caps{.q_len = 3000, .kv_len = 8000, .work = 2e10, .elements = 1.5e7};
  const Composition c = Composition::draw(static_cast<uint64_t>(number), caps);
  HostTensors all = tensors_of(c);
  std::vector<HostTensors> alone;
  for (size_t i = 0; i < c.entries.size(); ++i) alone.push_back(tensors_of(c, i));
  std::string wrong;
  const std::vector<std::string> named{
      "descending",          "ascending/split", "shift", "right_to_left/split:2",
      "descending/rows:512", "matched/split"};
  const int32_t workers = number % 2 == 0 ? 132 : 3;  // whole chains, and pieces
  for (const std::string arithmetic : {"sm90", "sm80"}) {
    if (arithmetic == "sm90" && gpu()->arithmetic() != "sm90") continue;
    for (const std::string& order : {std::string("auto"), named[number % named.size()]}) {
      const auto note = [&](const std::string& what) {
        if (!what.empty()) wrong += fmt::format("{} with {} on {}; ", what, order, arithmetic);
      };
      run(arithmetic, c.problem, c.mask, order, workers, all, stream, [&] {
        note(leak(c, all, Pass::forward));
        spoil_padding(c, all);
      });
      note(leak(c, all, Pass::backward));
      for (size_t i = 0; i < alone.size(); ++i) {
        const auto& entry = c.entries[i];
        run(arithmetic, entry.problem, entry.mask, order, 132, alone[i], stream, [] {});
        const std::string found = difference(c, i, alone[i], all);
        if (!found.empty()) note(fmt::format("entry {}: {}", i, found));
      }
    }
  }
  return wrong.empty() ? wrong : wrong + "\n  " + c.text();
}

// VERBATIM_COMPOSITION_CASES=500 for a long run.
TEST(Bits, Composition) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  std::atomic<int64_t> next{1};
  std::mutex mutex;
  int64_t failures = 0;
  const auto work = [&] {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int64_t number; (number = next++) <= cases();) {
      std::string wrong;
      try {
        wrong = examine(number, stream);
      } catch (const std::exception& e) {
        wrong = fmt::format("case {} threw: {}", number, e.what());
      }
      const std::lock_guard lock(mutex);
      if (!wrong.empty() && ++failures <= 12) ADD_FAILURE() << wrong;
    }
    cudaStreamDestroy(stream);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1u, 8u); ++i) {
    threads.emplace_back(work);
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace verbatim::test
