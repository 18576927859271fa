// What the checker promises of whole programs: nothing can be left out, and edits mend.
#include <gtest/gtest.h>

#include "tl/kernel.h"
#include "tl/programs.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

using Found = std::vector<std::string>;

/// The lines of a text.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string without(const std::vector<std::string>& lines, size_t gone) {
  std::string rest;
  for (size_t i = 0; i < lines.size(); ++i)
    if (i != gone) rest += lines[i] + "\n";
  return rest;
}

bool cannot_go(const std::string& line) {
  const bool copy = line.find("Copy ") != std::string::npos;
  return line.starts_with("Allocate ") || line.find("Reshape ") != std::string::npos ||
         (copy && line.find("from global to shared") != std::string::npos);
}

/// TL code of the sketches for every target and head dims of 64 and 128: in the contract's tiles,
/// or in the nearest that the target holds.
std::vector<std::string> every_code() {
  std::vector<std::string> all;
  for (const char* name : {"forward", "backward", "selected"}) {
    for (const tl::Target& target : tl::targets()) {
      for (const int64_t head_dim : {64, 128}) {
        tl::ReasonOptions options = reason_options(head_dim, target.name);
        try {
          all.push_back(tl::reason(sketch(name), name, options));
        } catch (const Error& error) {
          options.tile = nearest_tile(error);
          all.push_back(tl::reason(sketch(name), name, options));
        }
      }
    }
  }
  return all;
}

/// Refused, at a line that the text has.
void expect_refused(const std::string& text, const std::string& change) {
  const std::vector<tl::Diagnostic> faults = tl::check(text, {});
  EXPECT_FALSE(faults.empty()) << change << "\n" << text;
  for (const tl::Diagnostic& fault : faults) {
    const int64_t line = tl::place_of(text, fault.begin).line;
    EXPECT_TRUE(1 <= line && line <= std::ssize(lines_of(text))) << change << ": " << fault.code;
  }
}

TEST(Check, NoAllocateReshapeOrCopyCanGo) {
  int deleted = 0;
  for (const std::string& text : every_code()) {
    EXPECT_EQ(found(text), Found{});
    const std::vector<std::string> lines = lines_of(text);
    for (size_t gone = 0; gone < lines.size(); ++gone) {
      if (!cannot_go(lines[gone])) continue;
      expect_refused(without(lines, gone), lines[gone]);
      ++deleted;
    }
  }
  EXPECT_GT(deleted, 450);
}

TEST(Check, NoSumCanLoseItsOrder) {
  int unordered = 0;
  for (const std::string& text : every_code()) {
    for (size_t at = text.find("ordered"); at != std::string::npos; at = text.find("ordered", at)) {
      std::string wrong = text;
      wrong.insert(at, "un");
      const int64_t line = tl::place_of(wrong, static_cast<int64_t>(at)).line;
      EXPECT_EQ(found(wrong), Found{"unordered@" + std::to_string(line)});
      at += std::string_view("ordered").size();
      ++unordered;
    }
  }
  EXPECT_EQ(unordered, 5 * 2 * 3);  // targets, head dims, dQ dK dV
}

TEST(Check, AShapeIsKeptWhileVariablesAreAdded) {
  constexpr int kCopies = 40;  // the list of variables moves several times
  std::string copies;
  for (int i = 0; i < kCopies; ++i)
    copies += "  Copy S from register to shared and get P" + std::to_string(i) + "\n";
  const std::string text =
      replaced(sketch("forward"), "  Compute Multiply S", copies + "  Compute Multiply S");
  const tl::Examined examined =
      tl::examine(text, {.target = {}, .level = Level::invariant, .sketch = true});
  EXPECT_TRUE(examined.faults.empty());
  int kept = 0;
  for (const tl::Variable& variable : examined.kernel.variables)
    kept += variable.name.starts_with("P") && variable.shape == Found{"BM", "BN"};
  EXPECT_EQ(kept, kCopies);
}

TEST(Check, WhatTheEditsRestoreIsTheProgram) {
  const std::string text = code("backward");
  const std::vector<std::string> lines = lines_of(text);
  for (size_t gone = 0; gone < lines.size(); ++gone) {
    if (!lines[gone].starts_with("Allocate ") && lines[gone].find("Wait ") == std::string::npos)
      continue;
    EXPECT_EQ(found(tl::fix(without(lines, gone), {})), Found{}) << lines[gone];
  }
}

TEST(Check, WhatIsThereTwiceGoesAndALoopEndsAtItsAxis) {
  const std::string text = code("forward");
  const std::string wait = "  Wait V  // for its copy in the background\n";
  const std::string copy = "  Copy V (BN, HeadDimV) in coordinate [L = i] from global to shared\n";
  for (const std::string& line : {wait, copy})
    EXPECT_EQ(tl::fix(replaced(text, line, line + line), {}), text);
  const std::string early = "  Wait K  // for its copy in the background\n";  // read before it
  const std::string product = "  Compute GEMM Q, K^T and get S\n";
  EXPECT_EQ(tl::format(tl::fix(replaced(text, early + product, product + early), {}), "fixed"),
            replaced(text, early, "  Wait K\n"));
  EXPECT_EQ(tl::fix(replaced(text, wait, "  Wait V Wait V\n"), {}),
            replaced(text, wait, "  Wait V \n"));
  EXPECT_EQ(tl::fix(replaced(text, "0:N", "0:Zebra"), {}), text);
  EXPECT_EQ(tl::fix(replaced(code("backward"), "0:N", "0:BM"), {}), code("backward"));
  EXPECT_EQ(found(replaced(code("backward"), "0:N", "0:M")), Found{});
  const std::string bare = sketch("forward"), load = "  Copy K from global to shared\n";
  const std::string twice = replaced(bare, load, load + load);
  EXPECT_EQ(found(twice, {.target = {}, .level = Level::invariant, .sketch = true}),
            Found{"twice@" + std::to_string(line_of(twice, load + load) + 1)});
}

TEST(Check, AnUnknownTargetIsSaidOfAnyText) {
  for (const std::string& text : {std::string("no program"), code("forward")})
    EXPECT_THROW(tl::check(text, {.target = "NOSUCH"}), Error) << text;
}

TEST(Check, UnorderedSumsKeepNoLevel) {
  const std::string text = code("backward");
  for (const std::string of : {"dQ", "dK", "dV"}) {
    const std::string wrong = replaced(text, "Reduce ordered " + of, "Reduce unordered " + of);
    const std::string at = std::to_string(line_of(wrong, "Reduce unordered"));
    EXPECT_EQ(found(wrong), Found{"unordered@" + at});
    EXPECT_EQ(found(wrong, {.target = {}, .level = Level::run_to_run}), Found{"unordered@" + at});
    EXPECT_EQ(found(wrong, {.target = {}, .level = Level::not_guaranteed}), Found{});
    EXPECT_EQ(tl::fix(wrong, {}), text);
  }
}

TEST(Check, Listing1IsAForgottenReshape) {
  const std::string text = tl::reason(kListing, "listing", reason_options(128));
  EXPECT_EQ(found(text), Found{});
  const size_t begin = text.find("  Reshape S"), end = text.find('\n', begin) + 1;
  const std::string wrong = text.substr(0, begin) + text.substr(end);
  const std::string at = std::to_string(line_of(wrong, "Compute GEMM S, V_shared"));
  EXPECT_EQ(found(wrong), Found{"reshape@" + at});
  EXPECT_EQ(found(tl::fix(wrong, {})), Found{});
}

TEST(Check, Listing2IsAKWithoutItsTransposition) {
  const std::string text = tl::reason(kListing, "listing", reason_options(128));
  const std::string wrong =
      replaced(text, "Compute GEMM Q_shared, K_shared^T and get S",
               "Compute GEMM Q_shared, K_shared and get S //K_shared should be transposed");
  const std::string at = std::to_string(line_of(wrong, "should be transposed"));
  EXPECT_EQ(found(wrong), Found{"transpose@" + at});
  EXPECT_EQ(found(tl::fix(wrong, {})), Found{});
  EXPECT_EQ(tl::fix(wrong, {}), replaced(wrong, "K_shared and get", "K_shared^T and get"));
  const tl::Diagnostic fault = tl::check(wrong, {}).front();
  EXPECT_EQ(tl::place_of(wrong, fault.begin).column, 26);
}

TEST(Check, WhatReadsAnIndexIsCompletedAndMended) {
  // Coordinates, the declaration and the mask follow from one word each.
  const std::string text = code("selected");
  EXPECT_EQ(found(text), Found{});
  EXPECT_NE(text.find("  Copy V (BN, HeadDimV) in coordinate [L = sel[i]] from global to shared\n"),
            std::string::npos);
  const std::string bare = replaced(
      replaced(sketch("selected"), "Copy K (BN, HeadDim) in coordinate [L = sel[i]]", "Copy K"),
      "Copy V (BN, HeadDimV) in coordinate [L = sel[i]]", "Copy V");
  EXPECT_EQ(tl::reason(bare, "bare", reason_options(64)), text);
  EXPECT_EQ(tl::fix(replaced(text, "Compute Mask S with causal", "Compute Mask S"), {}), text);
  EXPECT_EQ(tl::fix(replaced(text, "with causal", "with full"), {}), text);
  const std::string undeclared = replaced(
      text, "param sel = index  // names the blocks that the queries of a tile visit\n", "");
  EXPECT_EQ(found(undeclared), Found{"index@" + std::to_string(line_of(undeclared, "Copy K ("))});
  EXPECT_EQ(found(tl::fix(undeclared, {})), Found{});
}

TEST(Check, WhatReadsAnIndexIsRefusedWhereItNeedsAPlan) {
  try {
    tl::choices(sketch("selected"), "selected", reason_options(64));
    FAIL() << "a plan ran it";
  } catch (const Error& error) {
    EXPECT_EQ(error.details().got, "param sel = index");
  }
}

TEST(Check, ATileMayBeSquareAndItsNamesStillDiffer) {
  // BM = BN = HeadDim = 64: no size tells a transposed factor, its names do.
  const std::string text =
      tl::reason(sketch("forward"), "forward", reason_options(64, "a100", {64, 64}));
  EXPECT_EQ(found(text), Found{});
  const std::string wrong = replaced(text, "GEMM Q, K^T", "GEMM Q, K");
  EXPECT_EQ(found(wrong), Found{"transpose@" + std::to_string(line_of(wrong, "GEMM Q, K and"))});
}

TEST(Check, AnotherTargetIsAnotherQuestion) {
  const std::string text =  // 128 KiB of shared memory
      tl::reason(sketch("forward"), "forward", reason_options(128, "a100", {128, 96}));
  EXPECT_EQ(found(text, {.target = "h200"}), Found{});
  EXPECT_EQ(found(text, {.target = "t4"}),
            Found{"dtype@" + std::to_string(line_of(text, "param dtype"))});
  EXPECT_EQ(found(text, {.target = "l40s"}),
            Found{"shared_memory@" + std::to_string(line_of(text, "Allocate V in shared"))});
}

}  // namespace
}  // namespace verbatim::test
