// What a backward takes besides its tensors, beside FlashAttention-3's. Needs no GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "backend/cuda/executor.h"
#include "backend/cuda/run_plan.h"
#include "verbatim/schedule.h"

namespace verbatim::test {
namespace {

int64_t rounded(int64_t length) { return (length + 127) / 128 * 128; }

/// Workspace of FlashAttention-3's non-deterministic backward (hopper/flash_api.cpp, mha_bwd): dQ
/// in f32, rowsum(dO * O) and LSE * log2(e), padded to tiles; with groups, dK and dV in f32.
int64_t flash_attention_3(const Problem& p) {
  const int64_t rows = p.batch * p.q_heads * rounded(p.q_len);
  const int64_t keys = p.group() == 1 ? 0 : p.batch * p.kv_heads * rounded(p.kv_len);
  return 4 * (rows * (p.head_dim + 2) + 2 * keys * p.head_dim);
}

int64_t ours(const Problem& p, const Mask& mask) {
  PlanOptions options;
  options.machine = make_machine("h200");  // 132 workers, and an L2 that decides the placement
  const Plan plan = make_plan(p, mask, options);
  for (const cuda::Kernel& kernel : cuda::kernels()) {
    if (std::string_view(kernel.name) != "sm90.backward") continue;
    EXPECT_EQ(kernel.lacks(p, plan.orders.front()->tiles->shape), "");
    return cuda::launch_bytes(kernel, plan) + plan.bytes();
  }
  ADD_FAILURE() << "no sm90.backward";
  return 0;
}

Problem problem(int64_t head_dim, int64_t length, int64_t q_heads, int64_t kv_heads) {
  Problem p;
  p.batch = 16384 / length;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.q_len = p.kv_len = length;
  p.head_dim = p.head_dim_v = head_dim;
  p.dtype = Dtype::bf16;
  return p;
}

// Both keep sums of dQ in f32, FlashAttention-3 for all heads and we for those under way, and with
// split groups sums of dK and dV, of which half of ours lie in the results.
TEST(Memory, OfTheBackwardIsAtMostFlashAttention3s) {
  for (const auto& [head_dim, q_heads, kv_heads] :
       {std::array{64, 32, 32}, std::array{128, 16, 16}, std::array{128, 64, 8}}) {
    for (int64_t length = 512; length <= 16384; length *= 2) {
      for (const Mask& mask : {masks::full(length, length), masks::causal(length, length)}) {
        const Problem p = problem(head_dim, length, q_heads, kv_heads);
        EXPECT_LE(ours(p, mask), flash_attention_3(p)) << fmt::format(
            "{} {}:{} heads of {}, {} tokens", mask.name(), q_heads, kv_heads, head_dim, length);
      }
    }
  }
}

}  // namespace
}  // namespace verbatim::test
