// Every kernel on a small shape: correct, and quick enough for a sanitizer (sanitize.sh).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/cuda/gpu_case.h"
#include "plan/live_heads.h"

namespace verbatim::test {
namespace {

struct Kind {
  int arch;  // of the kernels: 80 or 90
  HeadDims dims;
  Dtype dtype;
  bool extras;  // softcap and dropout: on Hopper other instances
};

std::string name(const Kind& kind) {
  return fmt::format("sm{}_hd{}_{}{}", kind.arch, to_string(kind.dims), to_string(kind.dtype),
                     kind.extras ? "_extras" : "");
}
void PrintTo(const Kind& kind, std::ostream* out) { *out << name(kind); }  // for GoogleTest

class Small : public testing::TestWithParam<Kind> {};

TEST_P(Small, Kernels) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Kind kind = GetParam();
  if (cuda::device(0).arch < kind.arch) GTEST_SKIP() << "no such device";
  const std::string arithmetic = fmt::format("sm{}", kind.arch);
  const auto plan = [&](const GpuCase& c, Pass pass, const std::string& order,
                        const std::string& placement = "auto", int32_t workers = 132) {
    return c.plan(pass, order, {0, 0}, placement, workers, arithmetic);
  };
  const std::vector<int64_t> docs{130, 0, 70, 100};
  for (const Mask& mask : {masks::causal(300, 300), masks::causal_document(docs),
                           masks::uniform_block_sparse(300, 300, 64, 64, 0.5, 7, 2)}) {
    Problem p = problem_of(mask, kind.dims, 1);
    p.q_heads = 4;
    p.dtype = kind.dtype;
    if (kind.extras) p.softcap = 5, p.dropout = 0.2;
    GpuCase c(p, mask, 3);
    // split: shared KV tiles; shift: tasks wait for later ones.
    for (const std::string order :
         {"descending", "ascending/split", "descending/rows:64", "shift"}) {
      c.run(*gpu(), plan(c, Pass::forward, "ascending"), plan(c, Pass::backward, order));
      double ratio = 0;
      EXPECT_EQ(c.examine(ratio), "") << order;
    }
  }
  // Chains in pieces: dK and dV are taken over.
  {
    const Mask full = masks::full(300, 300);
    Problem p = problem_of(full, kind.dims, 1);
    p.dtype = kind.dtype;
    if (kind.extras) p.softcap = 5, p.dropout = 0.2;
    GpuCase c(p, full, 3);
    c.run(*gpu(), plan(c, Pass::forward, "ascending"), plan(c, Pass::backward, "shift", "auto", 1));
    double ratio = 0;
    EXPECT_EQ(c.examine(ratio), "") << "in pieces";
  }
  // The same where parts of a group share a tile: what pieces pass on lies apart from its sum.
  {
    const Mask blocks = masks::uniform_block_sparse(300, 300, 32, 32, 0.4, 7, 1);
    Problem p = problem_of(blocks, kind.dims, 1);
    p.q_heads = 3 * p.kv_heads;
    p.dtype = kind.dtype;
    if (kind.extras) p.softcap = 5, p.dropout = 0.2;
    GpuCase c(p, blocks, 3);
    c.run(*gpu(), plan(c, Pass::forward, "ascending"),
          plan(c, Pass::backward, "matched/split", "auto", 1));
    double ratio = 0;
    EXPECT_EQ(c.examine(ratio), "") << "parts in pieces";
  }
  // Many short heads, and parts of groups: their sums of dQ lie where those of heads before lay.
  const Mask causal = masks::causal(130, 130);
  for (const int64_t group : {1, 6}) {
    Problem p = problem_of(causal, kind.dims, group == 1 ? 12 : 2);
    p.q_heads = p.kv_heads * group;
    p.dtype = kind.dtype;
    GpuCase c(p, causal, 3);
    const SharedPlan backward =
        plan(c, Pass::backward, group == 1 ? "descending" : "descending/split", "queue", 4);
    const auto [heads, queries] = live_heads(*backward);
    ASSERT_LT(heads, p.batch * p.kv_heads);
    if (group > 1) {
      ASSERT_LT(queries, group);
    }
    c.run(*gpu(), plan(c, Pass::forward, "ascending"), backward);
    double ratio = 0;
    EXPECT_EQ(c.examine(ratio), "") << "groups of " << group << ", sums in turn";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Every, Small,
    testing::Values(Kind{90, 64, Dtype::bf16, false}, Kind{90, 64, Dtype::f16, false},
                    Kind{90, 128, Dtype::bf16, false}, Kind{90, 128, Dtype::f16, false},
                    Kind{90, 64, Dtype::bf16, true}, Kind{90, 64, Dtype::f16, true},
                    Kind{90, 128, Dtype::bf16, true}, Kind{90, 128, Dtype::f16, true},
                    Kind{90, 40, Dtype::bf16, false}, Kind{90, 72, Dtype::f16, false},
                    Kind{90, 96, Dtype::bf16, true}, Kind{90, {192, 128}, Dtype::bf16, false},
                    Kind{90, {192, 128}, Dtype::f16, false},
                    Kind{90, {192, 128}, Dtype::bf16, true}, Kind{90, {192, 128}, Dtype::f16, true},
                    Kind{80, 64, Dtype::bf16, false}, Kind{80, 128, Dtype::f16, true},
                    Kind{80, {192, 128}, Dtype::bf16, false}, Kind{80, 192, Dtype::bf16, false}),
    [](const auto& info) { return name(info.param); });

}  // namespace
}  // namespace verbatim::test
