// Libraries that `verbatim tl build` made: random problems against the double reference, long ones,
// and their bits beside other work. A pass runs alone: a backward is given the CPU's O and LSE.
//
// VERBATIM_TL_LIBRARIES: PASS:DTYPE:HEAD_DIM:FILE,.. (as in cli_tl_gpu_test.py; here FILE says all)
// VERBATIM_TL_FIRST, VERBATIM_TL_CASES: random problems of each library (0, 20)
// VERBATIM_TL_REPEATS: runs whose bits are compared (100)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <thread>

#include "backend/cuda/gpu_case.h"
#include "backend/cuda/load.h"
#include "backend/cuda/random_problem.h"
#include "verbatim/verbatim.h"

namespace verbatim::test {
namespace {

constexpr const char* kLibraries = "VERBATIM_TL_LIBRARIES";

int64_t environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

struct Loaded {
  std::string file;
  const cuda::Library* library;
  std::unique_ptr<cuda::CudaBackend> backend;

  bool forward() const { return library->pass == Pass::forward; }
};

std::vector<Loaded> load() {
  std::vector<Loaded> all;
  const char* named = std::getenv(kLibraries);
  std::istringstream entries(named && gpu() ? named : "");
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (entry.starts_with("selected:")) continue;  // without a plan
    const std::string file = entry.substr(entry.rfind(':') + 1);
    all.push_back({file, cuda::load_kernel(file).library,
                   std::make_unique<cuda::CudaBackend>(0, std::vector{file})});
    all.back().backend->set_wait_limit(2);
  }
  return all;
}

class Libraries : public testing::Test {
 protected:
  void SetUp() override {
    if (libraries().empty()) GTEST_SKIP() << "no GPU, or " << kLibraries << " names none";
  }
  static const std::vector<Loaded>& libraries() {
    static const std::vector<Loaded> all = load();
    return all;
  }
};

/// What a library can run of a problem.
Problem suited(const Loaded& of, Problem problem) {
  problem.dtype = of.library->dtype;
  problem.head_dim = of.library->head_dim;
  problem.head_dim_v = of.library->head_dim_v;
  problem.softcap = problem.dropout = 0;
  return problem;
}

std::vector<GpuTensor*> outputs_of(const Loaded& of, GpuCase& c) {
  if (of.forward()) return {&c.o, &c.lse};
  return {&c.dq, &c.dk, &c.dv};
}

/// What the library's pass reads is on the device.
void upload_inputs(const Loaded& of, GpuCase& c) {
  if (!of.forward())
    Attention(c.problem, c.mask)
        .forward({c.q.host.view(), c.k.host.view(), c.v.host.view(), c.o.host.view(),
                  c.lse.host.row_view()});
  for (GpuTensor* input : {&c.q, &c.k, &c.v}) input->upload();
  if (!of.forward())
    for (GpuTensor* made : {&c.o, &c.lse}) made->upload();
}

/// The bytes of the outputs, which held NaN before.
std::vector<std::vector<uint8_t>> run(const Loaded& of, GpuCase& c, const SharedPlan& plan,
                                      void* stream) {
  for (GpuTensor* output : outputs_of(of, c)) {
    output->host.poison();
    output->upload();
  }
  const RunOptions options{.stream = stream};
  if (of.forward())
    of.backend->forward(plan, c.forward(), options);
  else
    of.backend->backward(plan, c.backward(), options);
  of.backend->synchronize(options);
  std::vector<std::vector<uint8_t>> bits;
  for (GpuTensor* output : outputs_of(of, c)) {
    output->download();
    bits.push_back(output->host.bytes());
  }
  return bits;
}

/// What is wrong with a random problem; empty when nothing is.
std::string run_case(const Loaded& of, uint64_t number, void* stream, double& ratio) try {
  RandomProblem r = random_problem(number);
  r.problem = suited(of, r.problem);
  r.backward_tile = of.library->tile;
  // As many bytes as gaps of two-byte elements have: TMA asks for multiples of 16.
  GpuCase c(r.problem, r.mask, number, r.gap * 2 / size_of(r.problem.dtype));
  const int64_t q = r.problem.q_len, keys = r.problem.kv_len;
  // Larger scores leave zeros in P (of f16 below 2^-25), which count as hidden keys' where they
  // meet a NaN.
  const double most = r.problem.dtype == Dtype::f16 ? 0.125 : 1;
  const bool no_zeros = std::abs(r.problem.softmax_scale()) <= most;
  if (number % 10 == 0 && keys > 0 && no_zeros) c.v.host.set(0, keys / 2, 0, 3, NAN);
  if (number % 10 == 5 && q > 0) c.q.host.set(0, q / 2, 0, 3, NAN);
  upload_inputs(of, c);
  const std::string whole_rows = r.forward_order.substr(0, r.forward_order.find('/'));
  const SharedPlan plan = of.forward() ? c.plan(Pass::forward, whole_rows, of.library->tile, "auto",
                                                132, of.library->arithmetic)
                                       : backward_plan(r, c, of.library->arithmetic);
  const auto first = run(of, c, plan, stream);
  std::string wrong = c.examine(ratio, of.library->pass);
  if (run(of, c, plan, stream) != first) wrong += "other bits the second time; ";
  return wrong.empty() ? "" : wrong + r.text();
} catch (const std::exception& e) {
  return fmt::format("threw: {}", e.what());
}

TEST_F(Libraries, AForwardAloneNeedsNoBackward) {
  for (const Loaded& of : libraries()) {
    if (!of.forward()) continue;
    const Problem problem = suited(of, {.q_len = 100, .kv_len = 100});
    AttentionOptions options;
    options.device = "cuda";
    options.kernels = {of.file};
    const Attention attention(problem, masks::causal(100, 100), options);
    EXPECT_EQ(attention.kernel(Pass::forward), of.library->name);
    if (attention.has_backward()) {
      attention.kernel(Pass::backward);
    } else {
      EXPECT_THROW(attention.kernel(Pass::backward), Error);
    }
    if (problem.head_dim == problem.head_dim_v && problem.head_dim <= 128) {
      EXPECT_EQ(attention.has_backward(), problem.has_backward());
    }
  }
}

TEST_F(Libraries, RandomProblems) {
  const int64_t first = environment("VERBATIM_TL_FIRST", 0);
  const int64_t cases = environment("VERBATIM_TL_CASES", 20);
  for (const Loaded& of : libraries()) {
    std::atomic<int64_t> next{first};
    std::mutex mutex;
    int64_t mismatches = 0;
    double worst = 0;
    const auto work = [&] {
      cudaStream_t stream = nullptr;
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      for (int64_t number; (number = next++) < first + cases;) {
        double ratio = 0;
        const std::string wrong = run_case(of, static_cast<uint64_t>(number), stream, ratio);
        const std::lock_guard lock(mutex);
        worst = std::max(worst, ratio);
        if (!wrong.empty() && ++mismatches <= 5)
          ADD_FAILURE() << wrong
                        << fmt::format("\n  {}={} VERBATIM_TL_FIRST={} VERBATIM_TL_CASES=1",
                                       kLibraries, of.file, number);
      }
      cudaStreamDestroy(stream);
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
      threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(mismatches, 0) << of.file;
    fmt::print("{}: {} random problems, {} mismatches, worst error ratio {:.2f}\n", of.file, cases,
               mismatches, worst);
    std::fflush(stdout);
  }
}

TEST_F(Libraries, LongSequences) {
  constexpr int64_t kPositions = int64_t{1} << 21;  // that the checked keys' rows may hold
  for (const Loaded& of : libraries())
    for (const int64_t length : {8192, 16384}) {
      const Mask mask = masks::causal(length, length);
      const Problem sizes{.q_heads = 2, .kv_heads = 1, .q_len = length, .kv_len = length};
      GpuCase c(suited(of, sizes), mask, 3);
      upload_inputs(of, c);
      run(of, c,
          c.plan(of.library->pass, "auto", of.library->tile, "auto", 132, of.library->arithmetic),
          nullptr);
      const Check check =
          c.check(of.library->pass, Selection::sample(c.problem, mask, 1, kPositions));
      EXPECT_TRUE(check.within(2)) << of.file << " " << length << " " << check.lse.ratio;
      fmt::print("{}: {} tokens, error ratio {:.2f}\n", of.file, length, check.worst_ratio());
      std::fflush(stdout);
    }
}

/// O and LSE of every third row.
std::vector<std::byte> third_rows(GpuCase& c) {
  std::vector<std::byte> bytes;
  const TensorView o = c.o.host.view(), lse = c.lse.host.view();
  const auto add = [&](const TensorView& of, int64_t first, int64_t count) {
    const auto* at = static_cast<const std::byte*>(of.data) + first * size_of(of.dtype);
    bytes.insert(bytes.end(), at, at + count * size_of(of.dtype));
  };
  for (int64_t b = 0; b < o.shape[0]; ++b)
    for (int64_t row = 0; row < o.shape[1]; row += 3)
      for (int64_t head = 0; head < o.shape[2]; ++head) {
        add(o, o.offset(b, row, head), o.shape[3]);
        add(lse, lse.offset(0, b, head) + row, 1);
      }
  return bytes;
}

TEST_F(Libraries, ARowDecidesAlone) {
  for (const Loaded& of : libraries())
    for (const auto& [name, mask] : patterns(1500, 2)) {
      if (!of.forward()) continue;
      GpuCase c(suited(of, problem_of(mask, 64)), mask, 5);
      upload_inputs(of, c);
      const SharedPlan plan =
          c.plan(Pass::forward, "auto", of.library->tile, "auto", 132, of.library->arithmetic);
      const auto all = run(of, c, plan, nullptr);
      const std::vector<std::byte> third = third_rows(c);
      for (int64_t b = 0; b < c.problem.batch; ++b)
        for (int64_t row = 0; row < c.problem.q_len; ++row)
          for (int64_t head = 0; head < c.problem.q_heads && row % 3 > 0; ++head)
            for (int64_t d = 0; d < c.problem.head_dim; ++d)
              c.q.host.set(b, row, head, d, 8.0f * static_cast<float>((row * d + head) % 5 - 2));
      c.q.upload();
      EXPECT_NE(run(of, c, plan, nullptr), all) << of.file << " " << name;
      EXPECT_TRUE(third_rows(c) == third) << of.file << " " << name;
    }
}

TEST_F(Libraries, TheSameBitsBesideALoad) {
  const int64_t repeats = environment("VERBATIM_TL_REPEATS", 100);
  cudaStream_t stream, load[2];
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  for (auto& s : load) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  for (const Loaded& of : libraries())
    for (const auto& [name, mask] : patterns(1500, 2)) {
      if (name != "causal" && name != "full" && name != "causal_document") continue;
      for (const std::string order : {"descending", "shift"}) {
        if (of.forward() && order == "shift") continue;
        GpuCase c(suited(of, problem_of(mask, 64)), mask, 11);
        upload_inputs(of, c);
        const SharedPlan plan =
            c.plan(of.library->pass, order, of.library->tile, "auto", 132, of.library->arithmetic);
        const auto first = run(of, c, plan, stream);
        int64_t differing = 0;
        for (int64_t i = 0; i < repeats; ++i) {
          for (auto& s : load)
            if (i % 2 == 1)
              start_load(static_cast<int>(1 + i * 37 % 120), static_cast<unsigned>(i), s);
          differing += run(of, c, plan, stream) != first;
        }
        EXPECT_EQ(differing, 0) << of.file << " " << name << " " << order;
      }
    }
  cudaDeviceSynchronize();
}

}  // namespace
}  // namespace verbatim::test
