// Faulty programs: each gives the intended code at the intended line, as the first fault.
#include <gtest/gtest.h>

#include <map>

#include "tl/programs.h"

namespace verbatim::test {
namespace {

/// A program with one line changed. The fault is in the line that holds `at`, or where that is
/// empty in the changed line.
struct Mutation {
  const char *program, *from, *to, *code, *at;
};

constexpr Mutation kMutations[] = {
    // Parameters
    {"forward", "param pass = forward", "param pass = sideways", "parameter", ""},
    {"forward", "param target = a100", "param target = a200", "parameter", ""},
    {"forward", "param dtype = bf16", "param dtype = f32", "parameter", ""},
    {"forward", "param HeadDim = 64", "param HeadDim = 512", "parameter", ""},
    {"forward", "param BM = 128", "param BM", "parameter", ""},
    {"forward", "param BM = 128", "param BM = 0", "parameter", ""},
    {"forward", "param stages = 2", "param stages = 99", "parameter", ""},
    {"forward", "param BN = 128", "param BN = 128\nparam BN = 64", "parameter", "param BN = 64"},
    {"forward", "param warps = 4", "param threads = 4", "parameter", "// Forward:"},
    // Allocations
    {"forward", "Allocate S in register (BM, BN)", "Allocate S in register (BN, BM)", "shape",
     "Compute GEMM Q, K^T"},
    {"forward", "Allocate S in register (BM, BN)", "Allocate S in register (BM, BX)", "parameter",
     ""},
    {"forward", "Allocate S in register (BM, BN)", "Allocate S in register (BM, BN, 2)", "shape",
     ""},
    {"forward", "Allocate S in register (BM, BN)",
     "Allocate X in register (2000000000, 2000000000)\nAllocate S in register (BM, BN)", "shape",
     "Allocate X"},
    {"forward", "Allocate S in register (BM, BN)",
     "Allocate X in register (BM, 0)\nAllocate S in register (BM, BN)", "shape", "Allocate X"},
    {"forward", "param BN = 128",
     "param BX = 2147483647\nparam BN = 128\nAllocate X in shared (BX, BX)", "shape", "Allocate X"},
    {"forward", "Allocate K in shared", "Allocate K2 in shared", "unallocated", "Copy K ("},
    {"forward", "Allocate m in register (BM)", "Allocate l in register (BM)", "twice",
     "Allocate l in register (BM)  // f32, one a row\nAllocate O"},
    {"forward", "Allocate Q in global (M, HeadDim)", "Allocate Q in global (N, HeadDim)", "shape",
     ""},
    {"forward", "K in global (N, HeadDim) with offset kv_head_offset",
     "K in global (N, HeadDim) with offset q_head_offset", "offset", ""},
    {"forward", "K in global (N, HeadDim) with offset kv_head_offset", "K in global (N, HeadDim)",
     "offset", ""},
    {"forward", "Allocate S in register (BM, BN)",
     "Allocate S in register (BM, BN) with offset q_head_offset", "offset", ""},
    {"forward", "Allocate L in global", "Allocate dQ in global", "tensor", ""},
    // Copies
    {"forward", "[L = block_idx] from global to shared", "[L = i] from global to shared",
     "coordinate", ""},
    {"forward", "Copy K (BN, HeadDim) in coordinate [L = i]",
     "Copy K (BN, HeadDim) in coordinate [L = block_idx]", "coordinate", ""},
    {"forward", "Copy K (BN, HeadDim) in coordinate [L = i]",
     "Copy K (BN, HeadDim) in coordinate [L = sel[i]]", "index", ""},
    {"forward", "Copy K (BN, HeadDim) in coordinate [L = i]",
     "Copy K (BN, HeadDim) in coordinate [D = i]", "coordinate", ""},
    {"forward", "Copy K (BN, HeadDim)", "Copy K (HeadDim, BN)", "shape", ""},
    {"forward", "Copy K (BN, HeadDim) in coordinate [L = i]", "Copy K", "incomplete", ""},
    {"forward", "[L = i] from global to shared", "[L = i] from global to register", "level", ""},
    {"forward", "[L = i] from global to shared", "[L = i] from global to global", "level", ""},
    {"forward", "Copy K (BN", "Copy X (BN", "tensor", ""},
    {"forward", "Copy O (BM, HeadDimV) in coordinate [L = block_idx] from register to global",
     "Copy O (BM, HeadDimV) in coordinate [L = block_idx] from shared to global", "level", ""},
    {"forward", "Copy O (BM, HeadDimV) in coordinate [L = block_idx] from register to global",
     "Reduce ordered O (BM, HeadDimV) in coordinate [L = block_idx] from register to global as "
     "addend",
     "sum", ""},
    {"backward",
     "Reduce ordered dK (BN, HeadDim) in coordinate [L = block_idx] from register to "
     "global as addend with scale",
     "Copy dK (BN, HeadDim) in coordinate [L = block_idx] from register to global", "sum", ""},
    {"backward", "Reduce ordered dK",
     "Compute Multiply dK, scale and get new dK\nReduce ordered dK", "sum", "Compute Multiply dK"},
    {"backward", "from register to global as addend with scale",
     "from register to global as addend with L", "operation", ""},
    {"backward", "from register to global as addend with scale",
     "from register to global as addend with scale^T", "operation", ""},
    {"backward", "Reduce ordered dQ", "Reduce unordered dQ", "unordered", ""},
    {"backward", "Reduce ordered dQ",
     "Reduce ordered dQ (BM, HeadDim) in coordinate [L = i] from register to global as addend with "
     "scale\n  Reduce ordered dQ",
     "sum",
     "  Reduce ordered dQ (BM, HeadDim) in coordinate [L = i] from register to global as "
     "addend with scale\nend"},
    {"backward", "[L = i] from global to register", "[L = i] from global to shared", "level",
     "Copy L (BM) in coordinate [L = i]"},
    {"backward", "Copy P from register to shared", "Copy P from register to register", "level", ""},
    {"backward", "  Copy dS from register to shared\n", "", "level", "Compute GEMM dS^T"},
    // Blocks that an index tensor names
    {"selected", "param sel = index", "param set = index", "coordinate", "Copy K ("},
    {"selected", "param sel = index", "param sel = 4", "index", "Copy K ("},
    {"selected", "param sel = index", "param sel = index\nparam more = index", "index",
     "param more"},
    {"selected", "param sel = index", "param K = index", "index", ""},
    {"selected", "Copy K (BN, HeadDim) in coordinate [L = sel[i]]",
     "Copy K (BN, HeadDim) in coordinate [L = i]", "coordinate", ""},
    {"selected", "Copy V (BN, HeadDimV) in coordinate [L = sel[i]]",
     "Copy V (BN, HeadDimV) in coordinate [L = sel[j]]", "coordinate", ""},
    {"selected", "Copy V (BN, HeadDimV) in coordinate [L = sel[i]]",
     "Copy V (BN, HeadDimV) in coordinate [L = other[i]]", "coordinate", ""},
    {"selected", "Copy Q (BM, HeadDim) in coordinate [L = block_idx]",
     "Copy Q (BM, HeadDim) in coordinate [L = sel[block_idx]]", "coordinate", ""},
    {"selected", "Copy O (BM, HeadDimV) in coordinate [L = block_idx]",
     "Copy O (BM, HeadDimV) in coordinate [L = sel[i]]", "coordinate", ""},
    {"selected", "Compute Mask S with causal", "Compute Mask S", "mask", ""},
    {"selected", "Compute Mask S with causal", "Compute Mask S with full", "mask", ""},
    {"selected", "Compute Mask S with causal", "Compute Mask S with uniform_block_sparse", "mask",
     ""},
    {"selected", "Compute Mask S with causal", "Compute Mask S with causal_document", "", ""},
    {"backward", "param pass = backward", "param pass = backward\nparam sel = index", "index",
     "param sel"},
    {"backward", "Copy Q (BM, HeadDim) in coordinate [L = i]",
     "Copy Q (BM, HeadDim) in coordinate [L = sel[i]]", "coordinate", ""},
    {"forward", "  Copy V (BN",
     "  Copy K (BN, HeadDim) in coordinate [L = i] from global to shared\n  Copy V (BN", "twice",
     ""},
    {"forward", "  Copy K (BN",
     "  Copy Q (BM, HeadDim) in coordinate [L = block_idx] from global to shared\n  Copy K (BN",
     "twice", ""},
    {"backward", "  Copy D (BM",
     "  Copy L (BM) in coordinate [L = i] from global to register\n  Copy D (BM", "twice", ""},
    {"forward", "  Wait V", "  Wait V\n  Wait V", "twice", "Wait V  //"},
    {"forward", "  Wait K", "  Wait Q", "twice", ""},
    {"backward", "  Wait dO", "  Wait dO\n  Wait dO", "twice", "Wait dO  //"},
    {"backward", "  Copy P from register to shared", "  Copy P from register to shared\n  Wait P",
     "undefined", "Wait P"},
    // What is read before it is there
    {"forward", "  Wait K", "  // Wait K", "race", "Compute GEMM Q, K^T"},
    {"forward", "  Wait V  // for its copy in the background\n", "", "race", "Compute GEMM S, V"},
    {"forward", "  Wait K", "  Wait X", "undefined", ""},
    {"forward", "Compute Fill m with -inf", "Compute Fill m2 with -inf", "shape", ""},
    {"forward", "Compute Fill l with 0\n", "", "start", "Compute Softmax S"},
    {"forward", "Compute Fill O with 0\n", "", "start", "Compute GEMM S, V"},
    {"forward", "Compute Divide O, l", "Compute Divide O, x", "undefined", ""},
    {"forward", "Compute Divide O, l", "Compute Divide S, l", "undefined", ""},
    {"backward", "Compute Subtract dP, D and", "Compute Subtract dX, D and", "undefined", ""},
    // Operations
    {"forward", "K^T and get S", "K and get S", "transpose", ""},
    {"forward", "GEMM S, V and", "GEMM S, V^T and", "transpose", ""},
    {"forward", "GEMM S, V and", "GEMM S, K^T and", "transpose", ""},
    {"backward", "GEMM dS^T, Q and", "GEMM dS, Q and", "transpose", ""},
    {"forward", "GEMM Q, K^T and", "GEMM Q, m and", "shape", ""},
    {"forward", "  Reshape S", "  // Reshape S", "reshape", "Compute GEMM S, V"},
    {"forward", "from (MMA_C, MMA_M, MMA_N) to (MMA_A", "from (MMA_A, MMA_M, MMA_N) to (MMA_A",
     "layout", ""},
    {"forward", "  Wait V", "  Compute Multiply S, scale and get new S\n  Wait V", "layout",
     "  Compute Multiply S, scale and get new S\n  Wait V"},
    {"forward", "  Wait V", "  Compute Mask S\n  Wait V", "layout", "  Compute Mask S\n  Wait V"},
    {"backward", "  Compute Multiply P, dP and get dS",
     "  Reshape P from (MMA_C) to (MMA_A)\n  Compute Multiply dP, P and get dS", "layout",
     "  Compute Multiply dP, P"},
    {"forward", "  Compute Mask S\n", "", "mask", "Compute Softmax S"},
    {"forward", "  Compute Softmax S",
     "  Compute Multiply S, scale and get new S\n  Compute Softmax S", "mask", ""},
    {"backward", "  Compute Softmax S", "  Compute Divide S, 2 and get T\n  Compute Softmax S",
     "mask", ""},
    {"forward", "  Compute Softmax S", "  Compute Add S, 1 and get new S\n  Compute Softmax S", "",
     ""},
    {"forward", "  Reshape S", "  Compute Multiply S, 2 and get new S\n  Reshape S", "", ""},
    {"forward", "  Reshape S", "  Compute Softmax S with m and l\n  Reshape S", "mask", ""},
    {"forward", "Compute Mask S", "Compute Mask S and get S", "operation", ""},
    {"forward", "Compute Mask S", "Compute Mask S\n  Compute Mask S and get P", "operation",
     "Compute Mask S and get P"},
    {"forward", "Compute Mask S", "Compute Mask S with full\n  Compute Mask S with causal", "mask",
     "Compute Mask S with causal"},
    {"forward", "Compute Mask S", "Compute Mask S with causal\n  Compute Mask S with causal", "",
     ""},
    {"forward", "Compute Mask S", "Compute Mask S with causal^T", "operation", ""},
    {"forward", "Compute Softmax S with m and l", "Compute Softmax S with m^T and l", "operation",
     ""},
    {"forward", "Compute Mask S", "Compute Mask S with casual", "mask", ""},
    {"forward", "Compute Mask S", "Compute Mask O", "shape", ""},
    {"forward", "Compute Softmax S with m and l", "Compute Softmax S", "operation", ""},
    {"forward", "Compute Softmax S", "Compute Softmaxx S", "operation", ""},
    {"forward", "Compute Multiply S, scale and get new S", "Compute Multiply S, scale", "operation",
     ""},
    {"forward", "Compute Multiply S, scale and get new S", "Compute Multiply S and get new S",
     "operation", ""},
    {"backward", "Compute Subtract dP, D and", "Compute Subtract dP, dK and", "shape", ""},
    // The loop and what follows it
    {"forward", "for i = 0:N", "for i = 0:16", "loop", ""},
    {"forward", "for i = 0:N", "for i = 1:N", "loop", ""},
    {"forward", "for i = 0:N", "for i = 0:M", "loop", ""},
    {"forward", "for i = 0:N", "for i = 0:HeadDim", "loop", ""},
    {"backward", "for i = 0:N", "for i = 0:BM", "loop", ""},
    {"backward", "for i = 0:N", "for i = 0:M", "", ""},
    {"selected", "for i = 0:N", "for i = 0:sel", "loop", ""},
    {"forward", "for i = 0:N", "for j = 0:N\n  ...\nend\nfor i = 0:N", "elided", "..."},
    {"forward", "Copy L (BM)", "Copy O  (BM, HeadDimV)", "output", ""},
    {"forward", "Compute LogSumExp m, l and get L\n", "", "undefined", "Copy L (BM)"},
    // The target
    {"forward", "param dtype = bf16", "param dtype = f16", "", ""},
    {"forward", "param target = a100", "param target = t4", "dtype", "param dtype"},
    {"forward", "param dtype = bf16", "param dtype = e4m3", "dtype", ""},
    {"forward", "param stages = 2", "param stages = 5", "shared_memory", "Allocate V in shared"},
    {"forward", "param warps = 4", "param warps = 2", "registers", "Compute GEMM S, V"},
    {"forward", "param warps = 4", "param warps = 12", "mma", "Compute GEMM Q, K"},
    {"forward", "param BN = 128", "param BN = 100", "mma", "Compute GEMM Q, K^T"},
};

std::string mutated(const Mutation& m) {
  static const std::map<std::string, std::string> programs{
      {"forward", code("forward")}, {"backward", code("backward")}, {"selected", code("selected")}};
  return replaced(programs.at(m.program), m.from, m.to);
}

TEST(Faults, EveryMutationGivesItsCodeAtItsLine) {
  int count = 0;
  for (const Mutation& m : kMutations) {
    const std::string text = mutated(m);
    const std::vector<std::string> faults = found(text);
    ++count;
    if (*m.code == 0) {
      EXPECT_EQ(faults, std::vector<std::string>{}) << m.to;
      continue;
    }
    const int64_t line = line_of(text, *m.at ? m.at : m.to);
    ASSERT_FALSE(faults.empty()) << m.from << " -> " << m.to;
    EXPECT_EQ(faults.front(), m.code + ("@" + std::to_string(line)))
        << m.from << " -> " << m.to << "\n"
        << tl::describe(tl::check(text, {}).front(), text, "mutation");
    EXPECT_LE(faults.size(), 3u) << m.from << " -> " << m.to;
  }
  EXPECT_GE(count, 75);
}

TEST(Faults, OfABlankTextCanBeShown) {
  for (const std::string text : {"", " ", "\n\n", "// a comment"}) {
    for (const bool sketch : {true, false}) {
      const std::vector<tl::Diagnostic> faults =
          tl::check(text, {.target = {}, .level = Level::invariant, .sketch = sketch});
      EXPECT_FALSE(faults.empty());
      for (const tl::Diagnostic& fault : faults) {
        EXPECT_GE(fault.begin, 0) << fault.code;
        EXPECT_FALSE(tl::describe(fault, text, "blank").empty());
      }
    }
  }
}

TEST(Faults, BehindWhatIsShownOfItsLineHasNoCaret) {
  const std::string text = std::string(200, ' ') + "!";
  const std::string shown = tl::describe(tl::check(text, {}).front(), text, "long");
  EXPECT_EQ(shown.find("long:1:201: character"), 0u) << shown;
  EXPECT_EQ(shown.find('^'), shown.rfind('^')) << shown;  // of what would be right
  EXPECT_EQ(shown.find("\n  ^"), std::string::npos) << shown;
}

TEST(Faults, EveryEditLeadsOn) {
  // Applying edits ends, and what it leaves has a reason and what would be right.
  for (const Mutation& m : kMutations) {
    const std::string fixed = tl::fix(mutated(m), {});
    for (const tl::Diagnostic& fault : tl::check(fixed, {})) {
      EXPECT_FALSE(fault.edit) << m.to << "\n" << tl::describe(fault, fixed, "fixed");
      EXPECT_FALSE(fault.reason.empty() || fault.right.empty());
    }
  }
}

}  // namespace
}  // namespace verbatim::test
