// The translation for Hopper: what it writes, and which programs it refuses by name.
#include <gtest/gtest.h>

#include "tl/programs.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

std::string forward(int64_t head_dim = 128, TileShape tile = {128, 128}) {
  return tl::reason(sketch("forward"), "forward", reason_options(head_dim, "h200", tile));
}

std::string backward(int64_t head_dim = 128, TileShape tile = {0, 0}) {
  return tl::reason(sketch("backward"), "backward", reason_options(head_dim, "h200", tile));
}

/// What emit() says of a program that it does not translate.
std::string refusal(const std::string& text) {
  try {
    tl::emit(text, "program", {});
    return "translated";
  } catch (const Error& error) {
    EXPECT_FALSE(error.details().nearest.empty()) << error.what();
    return error.what();
  }
}

TEST(EmitSm90, WarpgroupsComputeWhatLanesHaveCopied) {
  const tl::Emitted emitted = tl::emit(forward(), "forward", {});
  EXPECT_EQ(emitted.arch, "90a");
  size_t at = 0;
  for (const char* part :
       {"struct Shared : Walk<kGroups> {",
        "// Allocate Q in shared (BM, HeadDim)\n  SharedTile<Element, kBM, kHeadDim> s_Q[2];",
        "// Allocate K in shared (BN, HeadDim)\n  SharedTile<Element, kBN, kHeadDim> s_K[kStages];",
        "// Copy Q (BM, HeadDim) in coordinate [L = block_idx] from global to shared\n    copy_in(",
        "// Copy K (BN, HeadDim) in coordinate [L = i] from global to shared\n      copy_in(",
        "// Copy V (BN, HeadDimV) in coordinate [L = i] from global to shared\n      copy_in(",
        "// Wait V\n    wait_full(shared.of_V.full, walk.number() - 1);\n    clear_behind(",
        "// Compute GEMM S, V and accumulate O\n    multiply(r_O, true, f_S, AcrossK(",
        "if (!multiplied) multiply_carefully(r_O, f_S,",
        // Behind one chain, in front of the next.
        "const auto next_chain = [&] {\n    if (walk.has_chain()) {", "complete(r_l);",
        "// Copy O (BM, HeadDimV) in coordinate", "if (walk.stops()) return;",
        "// Compute Fill m with -inf\n    fill(r_m,", "// for i = 0:N\n",
        // What most visits do, without a jump.
        "if (const Flag plain(walk.is_plain() && folds); plain) {\n",
        "// Wait V\n      wait_full(shared.of_V.full, walk.number() - 1);",
        "// Wait K\n      wait_full(shared.of_K.full, walk.number());",
        "// Compute GEMM Q, K^T and get S\n      turns.take();\n      multiply(r_S, false, AlongK(",
        "multiply_factors();\n      turns.pass();\n      finish<1>(r_S);\n      leave(",
        "finish<0>(r_O);\n      leave(shared.of_V.empty, walk.number() - 1);",
        "weigh(f_S, r_S, r_m, r_l, unit, r_O);", "continue;\n    }\n",
        // All others.
        "leave(shared.of_Q.empty, walk.chain() - 1);", "// Wait Q\n      wait_full(",
        "if (!walk.sees()) {", "if (walk.stops()) break;", "if (walk.has_visit()) {",
        "// Wait K\n    wait_full(shared.of_K.full, walk.number());",
        "if (beside)\n      multiply_factors();", "turns.pass();\n    finish<1>(r_S);\n    leave(",
        "// Compute Mask S\n    if (walk.cuts(",
        "finish<0>(r_O);\n    if (later) leave_factors(beside);\n    if (begins) next_chain();",
        "// Compute Softmax S with m and l\n    // Reshape S from",
        "weigh(f_S, r_S, r_m, r_l, unit, r_O);", "turns.end();"}) {
    at = emitted.source.find(part, at);
    ASSERT_NE(at, std::string::npos) << part;
  }
}

/// What the kernel does in most visits.
std::string plain_visit(const std::string& text) {
  const std::string source = tl::emit(text, "forward", {}).source;
  const size_t begin = source.find("if (const Flag plain("), end = source.find("continue;", begin);
  return source.substr(begin, end - begin);
}

TEST(EmitSm90, MostVisitsHaveNoJumps) {
  const std::string plain = plain_visit(forward());
  for (const char* rare : {"hide<", "folds)\n", "await_factors", "clear_behind", "next_chain",
                           "multiply_carefully", "is_finite"})
    EXPECT_EQ(plain.find(rare), std::string::npos) << rare;
  EXPECT_NE(plain.find("walk.is_plain() && folds"), std::string::npos);
  // A factor that is not the problem's scale stays.
  const std::string twice = plain_visit(replaced(forward(), "Multiply S, scale", "Multiply S, 2"));
  EXPECT_EQ(twice.find("folds"), std::string::npos);
  EXPECT_NE(twice.find("apply(r_S, r_S,"), std::string::npos);
}

TEST(EmitSm90, AChainsFirstScoresAreMadeBeforeTheLastChainEnds) {
  const auto with = [](const char* from, const std::string& line) {
    return replaced(forward(), from, line + from);
  };
  // So the scores are nothing's outside the loop, and what a chain keeps is not theirs.
  const std::string filled = tl::emit(with("Wait Q", "Compute Fill S with 0\n"), "f", {}).source;
  EXPECT_EQ(filled.find("fill(r_S"), std::string::npos);
  const std::string halved =
      tl::emit(with("  Compute Softmax", "  Compute Multiply l, 0.5 and get new l\n"), "f", {})
          .source;
  const size_t general = halved.rfind("if (begins) next_chain();");
  EXPECT_LT(general, halved.rfind("apply(r_l, r_l,"));
  EXPECT_NE(refusal(with("  Compute GEMM Q", "  Compute Multiply l, m and get new l\n"))
                .find("in front of the product of its scores"),
            std::string::npos);
  EXPECT_NE(refusal(with("Wait Q", "Compute Fill S with 0\nCompute Add S, 1 and get new S\n"))
                .find("around the loop on the scores"),
            std::string::npos);
}

TEST(EmitSm90, AStepBehindTheSoftmaxTakesItsResult) {
  const std::string text =
      replaced(forward(), "  Reshape S", "  Compute Multiply S, 2 and get new S\n  Reshape S");
  const std::string source = tl::emit(text, "forward", {}).source;
  size_t at = 0;
  for (const char* part : {"if (begins) next_chain();", "softmax(r_S, r_m, r_l, unit, r_O);",
                           "apply(r_S, r_S,", "round_to(f_S, r_S);"}) {
    at = source.find(part, at);
    ASSERT_NE(at, std::string::npos) << part;
  }
}

TEST(EmitSm90, AChainsTileHasASecondBufferWhereThereIsRoom) {
  EXPECT_NE(tl::emit(forward(), "f", {}).source.find("s_Q[2];"), std::string::npos);
  tl::ReasonOptions wide = reason_options(192, "h200");
  wide.problem.head_dim_v = 128;
  const std::string text = tl::reason(sketch("forward"), "f", wide);
  EXPECT_NE(tl::emit(text, "f", {}).source.find("s_Q[1];"), std::string::npos);
}

TEST(EmitSm90, AnIndexTensorIsReadByTheWarpThatDecodes) {
  const std::string text = tl::reason(sketch("selected"), "s", reason_options(128, "h200"));
  const std::string source = tl::emit(text, "s", {}).source;
  size_t at = 0;
  for (const char* part :
       {"#include \"backend/cuda/sm90/tl/lists.cuh\"\n", "constexpr int kCtas = 2;",
        "// Copy K (BN, HeadDim) in coordinate [L = sel[i]] from global to shared\n      copy_in(",
        "compute(const SelectedParams& p,", "// Compute Mask S with causal\n    if (walk.cuts(",
        "__launch_bounds__(kThreads, kCtas)", "if (warp == 0) decode<Tiling>(shared, p);",
        "launch(const SelectedParams& p, cudaStream_t stream) {",
        "return launch_chains(kernel, kThreads, sizeof(Shared), stream, p, maps);",
        "const verbatim::cuda::SelectedLibrary verbatim_selected{", ".index = \"sel\",\n"}) {
    at = source.find(part, at);
    ASSERT_NE(at, std::string::npos) << part;
  }
  for (const char* of_plans : {"ForwardParams", "p.plan", "hand_off", "verbatim_library"})
    EXPECT_EQ(source.find(of_plans), std::string::npos) << of_plans;
}

TEST(EmitSm90, ALoneWarpgroupLeavesRoomForAnotherCta) {
  const auto ctas = [](const char* name, TileShape tile, int64_t stages = 0) {
    tl::ReasonOptions options = reason_options(128, "h200", tile);
    options.stages = stages;
    const std::string source = tl::emit(tl::reason(sketch(name), name, options), name, {}).source;
    return source.substr(source.find("kCtas = ") + 8, 1);
  };
  EXPECT_EQ(ctas("selected", {64, 64}), "2");
  EXPECT_EQ(ctas("selected", {128, 64}), "1");
  EXPECT_EQ(ctas("selected", {64, 64}, 4), "1");  // which shared memory holds once
  EXPECT_EQ(ctas("forward", {64, 64}), "1");      // what decodes a plan needs its registers
}

TEST(EmitSm90, ABackwardIsThatOfOtherTargetsWithTilesByTma) {
  const std::string source = tl::emit(backward(), "b", {}).source;
  size_t at = 0;
  for (const char* part :
       {"namespace verbatim::cuda::sm90::tl {",
        "constexpr int of_K = 0;",
        "constexpr int of_dO = of_Q + kStages;",
        "uint64_t full[kBuffers];",
        "const Product<Element, kBN, 1, 2> mma_BM_BN;",
        "const Product<Element, kHeadDim, 2, 1> mma_BN_HeadDim;",
        "copy_in(shared.s_Q[visits.buffer(ahead)], shared.full[of_Q + visits.buffer(ahead)], "
        "maps.q,"
        "\n              next.at, next.q_head, at.b);",
        "copy_in(shared.s_K, shared.full[of_K], maps.k,\n          at.at, at.kv_head, at.b);",
        "continue_keys<kBN, kHeadDim, Element>(",
        "await(shared.s_K, shared.full, phases, of_K,",
        "nonfinite(shared.s_K, at.used));",
        "await(shared.s_Q[visits.buffer(0)], shared.full, phases, of_Q + visits.buffer(0),\n"
        "          visits.at(0).used);",
        "copy_Q(3);",
        "put(mma_BM_BN, r_dS, shared.s_dS);\n    __syncthreads();",
        "multiply(mma_BN_HeadDimV, r_dV, AcrossK(shared.s_P),",
        "add_rows<kBM, kHeadDim, Element>(",
        "begin_keys(p, at);",
        "end_keys(p, at);",
        "init(shared.full, 1);",
        "next_chain<Pass::backward>(shared.at, p);) do_chain(p, maps, phases, shared);",
        "make_map<Element>(maps.dout, p.dout, p.sizes, p.sizes.q_len, p.sizes.q_heads,\n"
        "                               kHeadDimV, kBM);",
        "start.stream, p, maps);"}) {
    at = source.find(part, at);
    ASSERT_NE(at, std::string::npos) << part;
  }
  EXPECT_EQ(source.find("cp_async"), std::string::npos);
}

TEST(EmitSm90, ABackwardRefusesByName) {
  const std::string wait = "Wait V  // for its copy in the background\n";
  const std::string again =
      "Copy V (BN, HeadDimV) in coordinate [L = block_idx] from global to shared and get W\n";
  const std::string twice = "  Wait dO  // for its copy in the background\n";
  for (const auto& [said, part] : {
           std::pair{refusal(backward(96)), "other head dims than 64 and 128"},
           {refusal(backward(64, {320, 64})), "no multiples of 64 up to 256"},
           {refusal(replaced(backward(64, {64, 64}), "warps = 4", "warps = 8")),
            "blocks of 64 x 64"},
           {refusal(replaced(replaced(backward(), wait, ""), twice, "  " + wait + twice)),
            "a Copy without one Wait"},
           {refusal(replaced(replaced(backward(64, {64, 64}), wait, again + wait + "Wait W\n"),
                             "Allocate V in shared",
                             "Allocate W in shared (BN, HeadDimV)\nAllocate V in shared")),
            "a second Copy of a tensor"},
       })
    EXPECT_NE(said.find(part), std::string::npos) << said << "\n" << part;
  tl::ReasonOptions mla = reason_options(192, "h200");
  mla.problem.head_dim_v = 128;
  EXPECT_NE(refusal(tl::reason(sketch("backward"), "b", mla)).find("other head dims"),
            std::string::npos);
}

TEST(EmitSm90, ATensorThatIsCopiedForBothSidesHasOneMap) {
  // K for V, too: a copy for the scores and one for their product with it.
  std::string text = forward();
  for (const auto& [from, to] : {
           std::pair{"Allocate V in shared (BN, HeadDimV)", "Allocate W in shared (BN, 128)"},
           {"Allocate O in register (BM, HeadDimV)", "Allocate O in register (BM, 128)"},
           {"Copy V (BN, HeadDimV) in coordinate [L = i] from global to shared",
            "Copy K (BN, HeadDim) in coordinate [L = i] from global to shared and get W"},
           {"Wait V", "Wait W"},
           {"Compute GEMM S, V", "Compute GEMM S, W"},
       })
    text = replaced(text, from, to);
  const std::string source = tl::emit(text, "forward", {}).source;
  EXPECT_NE(source.find("  CUtensorMap q, k;\n"), std::string::npos);
  const size_t map = source.find("make_map<Element>(maps.k");
  ASSERT_NE(map, std::string::npos);
  EXPECT_EQ(source.find("make_map<Element>(maps.k", map + 1), std::string::npos);
}

TEST(EmitSm90, RefusesByName) {
  const std::string text = forward(64, {128, 64});
  const auto with = [&](const std::string& from, const std::string& to) {
    return refusal(replaced(text, from, to));
  };
  const std::string product = "  Compute GEMM S, V and accumulate O\n";
  const std::string mask = "  Compute Mask S\n";
  const std::string copy = "  Copy V (BN, HeadDimV) in coordinate [L = i] from global to shared";
  const std::string unread =
      replaced(replaced(text, copy, copy + " and get W\n" + copy), "Allocate V in shared",
               "Allocate W in shared (BN, HeadDimV)\nAllocate V in shared");
  for (const auto& [said, part] : {
           std::pair{with("param warps = 8", "param warps = 4"), "not 64 for every four warps"},
           {with("param stages = 4", "param stages = 3"), "no power of two"},
           {refusal(forward(96, {128, 64})), "no multiple of 64"},
           {refusal(forward(64, {64, 256})), "more than 128 columns"},
           {refusal(forward(128, {128, 96})), "no 4 KiB of shared memory"},
           {with(mask, "  Compute GEMM Q, K^T and accumulate S\n" + mask), "other than that"},
           {with(mask, "  Compute Multiply O, 2 and get new O\n" + mask), "still added to"},
           {with(product, product + "  Compute Multiply O, 2 and get new O\n"),
            "a step behind the Reshape"},
           {refusal(unread), "or on none"},
       })
    EXPECT_NE(said.find(part), std::string::npos) << said << "\n" << part;
}

}  // namespace
}  // namespace verbatim::test
