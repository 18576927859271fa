// Programs of e4m3: for which targets and passes, and what of them is translated.
#include <gtest/gtest.h>

#include "tl/programs.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

using Found = std::vector<std::string>;

std::string e4m3_forward(const std::string& target = "l40s") {
  tl::ReasonOptions options = reason_options(64, target, {64, 64});
  options.problem.dtype = Dtype::e4m3;
  return tl::reason(sketch("forward"), "forward", options);
}

std::string at(const std::string& code, const std::string& text, const std::string& part) {
  return code + "@" + std::to_string(line_of(text, part));
}

TEST(E4m3, OneSketchForTargetsThatHaveIt) {
  for (const char* target : {"l40s", "h200"}) EXPECT_EQ(found(e4m3_forward(target)), Found{});
  for (const auto& [target, nearest] :
       {std::pair{"t4", "f16"}, std::pair{"rtx8000", "f16"}, std::pair{"a100", "bf16"}}) {
    try {
      e4m3_forward(target);
      FAIL() << target;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_EQ(error.details().argument, "dtype");
      EXPECT_EQ(error.details().nearest, nearest);
    }
    const std::string text = e4m3_forward();
    EXPECT_EQ(found(text, {.target = target}), Found{at("dtype", text, "param dtype")}) << target;
  }
}

TEST(E4m3, IsOfForwards) {
  const std::string bf16 =
      tl::reason(sketch("backward"), "backward", reason_options(64, "l40s", {64, 64}));
  const std::string text = replaced(bf16, "param dtype = bf16", "param dtype = e4m3");
  EXPECT_EQ(found(text), Found{at("dtype", text, "param dtype")});
}

TEST(E4m3, ItsProductsAreTwiceAsDeep) {
  const std::string text = replaced(e4m3_forward(), "param BN = 64", "param BN = 48");
  EXPECT_EQ(found(text), Found{at("mma", text, "Compute GEMM S, V")});
}

TEST(E4m3, ItsTilesTakeHalfTheMemory) {
  EXPECT_NE(e4m3_forward().find("Allocate Q in shared (BM, HeadDim)  // 4 KiB"), std::string::npos);
}

TEST(E4m3, ScalesReachScoresAndResults) {
  const std::string source = tl::emit(e4m3_forward(), "forward", {}).source;
  for (const char* part :
       {"using Element = float_e4m3_t;", "p.q.scale(at.q_head) * p.k.scale(at.kv_head)",
        "p.v.scale(at.kv_head) / kE4m3One",
        "softmax(r_S,",  // the maximum of every visit: more would be beyond 448
        "factor_of_e4m3(mma, r_S, visits.at(0).is_cut())", "multiply_e4m3(mma_result, r_O, f_S,",
        "write_rows<kBM, kHeadDimV>(mma_result, r_O,", ".dtype = verbatim::Dtype::e4m3"})
    EXPECT_NE(source.find(part), std::string::npos) << part;
}

TEST(E4m3, AWarpOfAnH200TurnsV) {
  const std::string text = e4m3_forward("h200");
  EXPECT_NE(
      text.find("Allocate V in shared (BN, HeadDimV)  // 6 buffers of 4 KiB, 2 of them turned"),
      std::string::npos);
  const std::string source = tl::emit(text, "forward", {}).source;
  EXPECT_NE(source.find("softmax(r_S,"), std::string::npos);
  size_t at = 0;
  for (const char* part :
       {"#include \"backend/cuda/sm90/tl/tiles_e4m3.cuh\"",
        "using Element = float_e4m3_t;",
        "static_assert(registers_suffice(kGroups, kCtas, true));",
        "SharedTile<Element, kBN, kHeadDimV> s_V[kStages];",
        "SharedTile<Element, kHeadDimV, kBN> turned_V[2];",
        "Slots<2> turning_V;",
        "turn(shared.s_V, shared.of_V, shared.turned_V, shared.turning_V,\n"
        "           walk.number(), walk.now().k_used);",
        "wait_full(shared.turning_V.full, walk.number() - 1);",
        "if (!(is_finite(use(shared.turned_V, walk.number() - 1), group))) return false;",
        "unmark(f_S);",
        "multiply(r_O, true, f_S, AlongK(use(shared.turned_V, walk.number() - 1)));",
        "leave(shared.turning_V.empty, walk.number() - 1);",
        "const float unit_O = p.v.scale(at.kv_head) / kE4m3One;",
        "write_rows(r_O, p.o.at<bfloat16_t>(at.batch, at.at, at.q_head), p.o.row, at.rows, group);",
        "p.scalars.scale * p.q.scale(heads.q_head) * p.k.scale(heads.kv_head);",
        "unit = scale > 0 ? scale * kLog2e : kLog2e;",
        "walk.is_plain() && scale > 0); plain) {",
        "round_to(f_S, r_S, false);",
        "if (begins) next_chain();\n    const Flag folds(scale > 0);",
        "round_to(f_S, r_S, walk.cuts());",
        "init(static_cast<Walk<kGroups>&>(shared), 3);",
        "init(shared.of_V, 1);",
        "init(shared.turning_V, kWarps);",
        "if (warp == 3) turn_factors(shared);",
        ".dtype = verbatim::Dtype::e4m3"}) {
    at = source.find(part, at);
    ASSERT_NE(at, std::string::npos) << part;
  }
  EXPECT_EQ(source.find("clear_behind"), std::string::npos);  // the warp that turns does it
}

TEST(E4m3, RowsOfAnH200sTilesAreSwizzled) {
  tl::ReasonOptions options = reason_options(96, "h200", {64, 64});
  options.problem.dtype = Dtype::e4m3;
  for (const auto& [head_dim, keys] : {std::pair{96, 64}, std::pair{64, 96}, std::pair{64, 32}}) {
    options.problem.head_dim = options.problem.head_dim_v = head_dim;
    options.tile.kv = keys;
    const std::string text = tl::reason(sketch("forward"), "forward", options);
    try {
      tl::emit(text, "forward", {});
      FAIL() << head_dim << " " << keys;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_NE(error.details().nearest.find("64"), std::string::npos) << error.what();
    }
  }
}

TEST(E4m3, WhatScalesWouldMissIsNotTranslated) {
  for (const char* target : {"l40s", "h200"}) {
    const std::string right = e4m3_forward(target);
    for (const auto& [from, to, part] :
         {std::tuple{"  Compute Multiply S, scale and get new S\n", "", "scale"},
          std::tuple{"Multiply S, scale", "Multiply S, 2", "scale"},
          std::tuple{"Fill O with 0", "Fill O with 1", "with 0"},
          std::tuple{"accumulate O\n", "accumulate O\n  Compute Multiply O, 2 and get new O\n",
                     "behind it"}}) {
      const std::string text = replaced(right, from, to);
      ASSERT_EQ(found(text), Found{}) << from;
      try {
        tl::emit(text, "forward", {});
        FAIL() << from;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported);
        EXPECT_NE(error.details().nearest.find(part), std::string::npos) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace verbatim::test
