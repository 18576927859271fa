// The same bits while others hold multiprocessors, and in other processes.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "backend/cuda/gpu_case.h"
#include "backend/cuda/load.h"
#include "backend/cuda/repeat.h"
#include "core/sha256.h"

namespace verbatim::test {
namespace {

/// Ends the process when a test hangs.
struct Watchdog {
  explicit Watchdog(unsigned seconds) { alarm(seconds); }
  ~Watchdog() { alarm(0); }
};

TEST(Bits, OtherMultiprocessorsTaken) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Watchdog watchdog(300);
  const int all = cuda::device(0).multiprocessors;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const Mask full = masks::full(4096, 4096);  // whose 32 chains of a head rotate
  for (const HeadDims& dims : every_head_dims()) {
    auto masks = patterns(700, 2);
    if (dims.qk == 128) masks.emplace_back("rotating", full);
    for (const auto& [name, mask] : masks) {
      GpuCase c(problem_of(mask, dims), mask, 11);
      const SharedPlan forward = c.plan(Pass::forward, "descending");
      const SharedPlan backward = name == "rotating"
                                      ? c.plan(Pass::backward, "shift", {0, 0}, "queue")
                                      : c.plan(Pass::backward, "descending");
      ASSERT_EQ(backward->residency, name == "rotating" ? 32 : 1);
      c.run(*gpu(), forward, backward, stream);
      Repeats repeats(c);
      const auto differing = [&] {
        return repeats.differing(*gpu(), forward, backward, stream, 5);
      };
      EXPECT_EQ(differing(), 0);  // loads what will run beside others
      ASSERT_TRUE(kernels_run());
      for (const int taken : {1, 8, 40, 100}) {
        if (taken >= all) continue;
        const Occupied occupied(taken);
        if (!kernels_run()) {
          GTEST_SKIP() << "no kernel starts here beside one that holds " << taken
                       << " multiprocessors";
        }
        const auto where = fmt::format("{} head dims {}, {} taken", name, to_string(dims), taken);
        EXPECT_EQ(differing(), 0) << where;
        ASSERT_TRUE(occupied.holds()) << where << ": ended only when all were free again";
      }
    }
  }
  cudaStreamDestroy(stream);
}

/// SHA-256 of all outputs of every mask at the head dims of the Hopper kernels.
std::string hashes() {
  std::string text;
  for (const HeadDims& dims : hopper_head_dims()) {
    for (const auto& [name, mask] : patterns(700, 2)) {
      GpuCase c(problem_of(mask, dims), mask, 21);
      c.run(*gpu(), c.plan(Pass::forward, "ascending"), c.plan(Pass::backward, "descending"));
      Sha256 sha;
      for (const auto& bytes : c.bits()) sha.update(std::as_bytes(std::span(bytes)));
      text += fmt::format("{} {} {}\n", name, to_string(dims), sha.hex());
    }
  }
  return text;
}

constexpr const char* kMark = "hashes of this process:\n";

// What OtherProcesses runs.
TEST(Bits, DISABLED_Hashes) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  fmt::print("{}{}", kMark, hashes());
}

TEST(Bits, OtherProcesses) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const std::string expected = hashes();
  const std::string command =
      "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX " +
      std::filesystem::read_symlink("/proc/self/exe").string() +
      " --gtest_also_run_disabled_tests --gtest_filter=Bits.DISABLED_Hashes";
  for (int process = 0; process < 3; ++process) {
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
    ASSERT_NE(pipe, nullptr);
    std::string said;
    for (int c; (c = std::fgetc(pipe.get())) != EOF;) said += static_cast<char>(c);
    EXPECT_NE(said.find(kMark + expected), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace verbatim::test
