// Translation: every sketch on every target is translated, twice the same, or refused by name; and
// when the copies in the background are started.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>

#include "tl/copies.h"
#include "tl/programs.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

/// The forward in tiles whose buffers fit `stages` times.
std::string forward(int64_t stages = 2) {
  const std::string text =
      tl::reason(sketch("forward"), "forward", reason_options(64, "a100", {64, 64}));
  return std::regex_replace(text, std::regex("param stages = ."),
                            "param stages = " + std::to_string(stages));
}

TEST(Emit, TranslatesEverySketchForEveryTarget) {
  for (const char* name : {"forward", "backward", "selected"})
    for (const tl::Target& target : tl::targets()) {
      const std::string text =
          tl::reason(sketch(name), name, reason_options(64, target.name, {64, 64}));
      const tl::Emitted emitted = tl::emit(text, name, {});
      EXPECT_EQ(tl::emit(text, name, {}).source, emitted.source);
      EXPECT_EQ(emitted.name, std::string(name) + "_" + target.name);
    }
}

TEST(Emit, EveryBlockStandsUnderItsLine) {
  const std::string source = tl::emit(forward(), "forward", {}).source;
  for (const char* line :
       {"// Allocate K in shared (BN, HeadDim)\n  SharedTile<Element, kBN, kHeadDim> s_K[kStages];",
        "// Copy K (BN, HeadDim) in coordinate [L = i] from global to shared\n",
        "// Compute GEMM Q, K^T and get S\n", "// Compute Mask S\n    if (",
        "// Compute Softmax S with m and l\n"
        "    // Reshape S from (MMA_C, MMA_M, MMA_N) to (MMA_A, MMA_M, MMA_N_new)\n"
        "    const auto f_S = factor_of_weights<Element>(mma, r_S, r_m, r_l, unit, r_O);",
        "// Compute Divide O, l and get new O\n"})
    EXPECT_NE(source.find(line), std::string::npos) << line;
}

TEST(Emit, AStepBehindTheSoftmaxTakesItsResult) {
  const std::string text =
      replaced(forward(), "  Reshape S", "  Compute Multiply S, 2 and get new S\n  Reshape S");
  const std::string source = tl::emit(text, "forward", {}).source;
  EXPECT_NE(source.find("softmax(r_S, r_m, r_l, unit, r_O);"), std::string::npos);
  EXPECT_NE(source.find("factor_of<Element>(mma, r_S);"), std::string::npos);
}

/// It reads no tile, which would be masked or not.
TEST(Emit, AVisitMayBeginWithAFill) {
  const std::string product = "  Compute GEMM dO, V^T and get dP\n";
  const std::string text =
      replaced(code("backward"), product, "  Compute Fill dP with 0\n" + product);
  EXPECT_NE(tl::emit(text, "b", {}).source.find("fill(r_dP"), std::string::npos);
}

TEST(Emit, AnIndexTensorNamesTheBlocks) {
  const std::string text = code("selected");
  const std::string source = tl::emit(text, "selected", {}).source;
  for (const char* line :
       {"#include \"backend/cuda/device/lists.cuh\"\n",
        "// Copy K (BN, HeadDim) in coordinate [L = sel[i]] from global to shared\n",
        "Visits<Pass::forward, kStages> visits(at, p.kv_edges, shared.visits);",
        "// Compute Mask S with causal\n    if (", "hide<kBM, kBN>(mma, r_S, at, now);",
        "const verbatim::cuda::SelectedLibrary verbatim_selected{", ".mask = \"causal\",\n",
        ".index = \"sel\",\n", ".by_query = false,\n",
        "p.lse.at<float>(at.b, at.at, at.q_head), at.rows, p.lse.row);"})
    EXPECT_NE(source.find(line), std::string::npos) << line;
  for (const char* of_plans : {"chains.cuh", "hand_off", "ForwardParams", "verbatim_library"})
    EXPECT_EQ(source.find(of_plans), std::string::npos) << of_plans;
  EXPECT_NE(tl::emit(replaced(text, "with causal", "with causal_document"), "d", {}).arithmetic,
            tl::emit(text, "selected", {}).arithmetic);
  // A list for each query: the same kernel in other views of Q, O and LSE.
  const std::string of_queries =
      tl::emit(replaced(text, "sel = index", "sel = query_index"), "q", {}).source;
  const auto kernel_of = [](const std::string& of) {
    return of.substr(of.find("namespace"),
                     of.find("const verbatim::cuda::SelectedLibrary") - of.find("namespace"));
  };
  EXPECT_EQ(kernel_of(of_queries), kernel_of(source));
  EXPECT_NE(of_queries.find(".by_query = true,\n"), std::string::npos);
}

TEST(Emit, SumsTakeTheirTurns) {
  const std::string source =
      tl::emit(tl::reason(sketch("backward"), "backward", reason_options(128)), "b", {}).source;
  size_t at = 0;
  for (const char* part :
       {"Place at;", "continue_keys<kBN, kHeadDim, Element>(mma_BN_HeadDim, r_dK, p, at, false);",
        "for (; visits.any();", "hide<kBM, kBN>(mma_BM_BN, r_S,",
        "probabilities(r_P, r_L, unit);\n", "hide<kBM, kBN>(mma_BM_BN, r_P,", ", 0.0f);",
        "hide<kBM, kBN>(mma_BM_BN, r_dS,", ", 0.0f);", "put(mma_BM_BN, r_P, shared.s_P);",
        "put(mma_BM_BN, r_dS, shared.s_dS);\n    __syncthreads();",
        "multiply(mma_BN_HeadDimV, r_dV, AcrossK(shared.s_P),",
        "add_rows<kBM, kHeadDim, Element>(mma_BM_HeadDim, r_dQ, p, at, visits.at(0), "
        "p.scalars.scale);",
        "begin_keys(p, at);", "add_keys<kBN, kHeadDim, Element>(mma_BN_HeadDim, r_dK,",
        "add_keys<kBN, kHeadDimV, Element>(mma_BN_HeadDimV, r_dV,", "end_keys(p, at);"}) {
    at = source.find(part, at);
    ASSERT_NE(at, std::string::npos) << part;
  }
}

TEST(Emit, WarpsShareProductsSoThatLeastIsRead) {
  const auto source = [](int64_t head_dim) {
    return tl::emit(tl::reason(sketch("backward"), "b", reason_options(head_dim)), "b", {}).source;
  };
  EXPECT_NE(source(128).find("Product<Gpu, Element, 2, 4> mma_BM_BN;"), std::string::npos);
  EXPECT_NE(source(128).find("Product<Gpu, Element, 4, 2> mma_BN_HeadDim;"), std::string::npos);
  EXPECT_NE(tl::emit(forward(), "f", {}).source.find("Product<Gpu, Element, 4, 1> mma;"),
            std::string::npos);  // a product goes on in registers
}

TEST(Emit, AnEditedProgramIsAnotherArithmetic) {
  const std::string text = forward(), own = tl::emit(text, "forward", {}).arithmetic;
  EXPECT_EQ(own.rfind("tl.1:", 0), 0u);
  EXPECT_EQ(tl::emit("// another comment\n" + text, "forward", {}).arithmetic, own);
  EXPECT_NE(
      tl::emit(replaced(text, "param warps = 4", "param warps = 2"), "forward", {}).arithmetic,
      own);
}

TEST(Emit, NamesAreAllThatCodeTakesFromAProgram) {
  std::string text = forward();
  for (const auto& [from, to] : {std::pair{"// Forward", "*/ #include \"x\" // Forward"}})
    text = replaced(text, from, "// " + std::string(to));
  const std::string plain = tl::emit(forward(), "forward", {}).source;
  EXPECT_EQ(tl::emit(text, "\"; rm", {}).source, plain);
  std::string named = forward();
  named = replaced(named, "Allocate m in", "Allocate int in");
  named = replaced(named, "Fill m with", "Fill int with");
  named = replaced(named, "with m and l", "with int and l");
  named = replaced(named, "LogSumExp m, l", "LogSumExp int, l");
  EXPECT_NE(tl::emit(named, "forward", {}).source.find("auto r_int = numbers<kBM>(mma);"),
            std::string::npos);
}

TEST(Emit, ASketchIsRefused) {
  try {
    tl::emit(sketch("forward"), "f.tl", {});
    FAIL() << "a sketch was translated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.details().got, "a sketch");
  }
}

TEST(Emit, AWaitBehindTheLoopIsRefused) {
  const std::string divide = "Compute Divide O, l";
  const std::string copy =
      "Copy Q (BM, HeadDim) in coordinate [L = block_idx] from global to shared";
  const std::string tile = "Allocate Q in shared";
  std::string program = replaced(code("forward"), copy, copy + " and get W\n" + copy);
  program = replaced(program, tile, "Allocate W in shared (BM, HeadDim)\n" + tile);
  program = replaced(program, divide, "Wait W\n" + divide);
  EXPECT_TRUE(found(program).empty());
  try {
    tl::emit(program, "f.tl", {});
    FAIL() << "its copies were counted to an end";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(error.details().got, "Wait W");
  }
}

TEST(Emit, TlCodeWithAFaultIsNoSketch) {
  try {
    tl::emit(replaced(code("forward"), "param warps = 4", "param warps = 12"), "f.tl", {});
    FAIL() << "a faulty program was translated";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the program is refused\nf.tl:"), std::string::npos)
        << error.what();
  }
}

TEST(Emit, ALargeNumberIsThatNumber) {
  const std::string program =
      replaced(code("forward"), "Fill m with -inf", "Fill m with -10000000000000000000");
  EXPECT_NE(tl::emit(program, "forward", {}).source.find("fill(r_m, -1.e+19f);"),
            std::string::npos);
}

TEST(Emit, MoreStagesThanAWindowOfVisitsAreRefused) {
  EXPECT_NE(tl::emit(forward(7), "f.tl", {}).source.find("kStages = 7;"), std::string::npos);
  try {
    tl::emit(forward(8), "f.tl", {});
    FAIL() << "eight stages were translated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(error.details().nearest, "param stages = 7");
  }
}

/// Plays the copies of some visits: what is waited for has arrived, and nothing is overwritten that
/// is still read.
void play(const std::string& text) {
  constexpr int64_t kVisits = 9;
  const tl::Examined found = tl::examine(text, {});
  ASSERT_TRUE(found.faults.empty());
  const tl::Kernel& kernel = found.kernel;
  const tl::Copies copies(kernel);
  using Copy = std::pair<int, int64_t>;  // of a tile, for a visit
  std::vector<Copy> started;
  std::map<Copy, int64_t> holds;  // by tile and buffer: the visit it is for
  std::map<int, int64_t> read;    // by tile: the last visit that is read, up to the last barrier
  const auto start = [&](int tile, int64_t visit) {
    const int64_t before = visit - kernel.stages;
    if (before >= 0) {
      EXPECT_EQ(read[tile], before) << "the buffer is still read";
    }
    started.emplace_back(tile, visit);
    holds[{tile, visit % kernel.stages}] = visit;
  };
  for (const auto& refill : copies.first()) start(refill.tile, refill.ahead);
  std::map<int, int64_t> unread;  // read since the last barrier
  const auto barrier = [&](const std::vector<tl::Copies::Refill>& refills, int64_t visit) {
    for (const auto& [tile, last] : unread) read[tile] = last;
    for (const auto& refill : refills) start(refill.tile, visit + refill.ahead);
  };
  for (int64_t visit = 0; visit < kVisits; ++visit) {
    if (!copies.at_start().empty()) barrier(copies.at_start(), visit);
    for (const tl::Step& step : kernel.visit) {
      if (step.kind == tl::Step::Kind::wait) {
        const int64_t arrived = std::ssize(started) - copies.pending(step);
        const auto own = std::ranges::find(started, Copy{step.a, visit});
        ASSERT_NE(own, started.end()) << "never started";
        EXPECT_LT(own - started.begin(), arrived) << "may not have arrived";
        barrier(copies.behind(step), visit);
      }
      for (const int tile : {step.a, step.b}) {
        if (step.kind != tl::Step::Kind::compute || tile < 0) continue;
        if (!kernel.variables[static_cast<size_t>(tile)].staged) continue;
        EXPECT_EQ((holds[{tile, visit % kernel.stages}]), visit);
        unread[tile] = visit;
      }
    }
  }
}

TEST(Copies, ArriveInTimeAndOverwriteNothing) {
  for (const int64_t stages : {1, 2, 3, 4}) {
    SCOPED_TRACE(stages);
    play(forward(stages));
  }
  play(tl::reason(sketch("backward"), "backward", reason_options(64)));
}

TEST(Copies, ABufferThatIsReadBehindAllWaitsIsFilledAtTheStart) {
  const std::string text =
      replaced(forward(1), "  Wait V  // for its copy in the background\n", "");
  const std::string both =
      replaced(text, "  Wait K", "  Wait V\n  Wait K");  // K is read behind both
  play(both);
  const std::string backward = tl::reason(sketch("backward"), "b", reason_options(128, "t4"));
  play(backward);
  const auto starts = [](const std::string& program) {
    return tl::emit(program, "f", {}).source.find("__syncthreads();  // nobody reads what") !=
           std::string::npos;
  };
  EXPECT_TRUE(starts(backward));
  EXPECT_FALSE(starts(forward(1)));
}

TEST(Emit, WithoutCopiesInTheBackgroundAWaitIsABarrier) {
  for (const char* target : {"t4", "rtx8000"}) {
    const std::string source =
        tl::emit(tl::reason(sketch("forward"), "f", reason_options(64, target)), "f", {}).source;
    EXPECT_NE(source.find("(sm_75)"), std::string::npos);
    EXPECT_NE(source.find("using Gpu = Sm75;"), std::string::npos);
    EXPECT_NE(source.find("// Wait K\n    __syncthreads();\n    copy_V(0);"), std::string::npos);
    EXPECT_EQ(source.find("cp_async"), std::string::npos);
  }
}

}  // namespace
}  // namespace verbatim::test
