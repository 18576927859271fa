// What the checker promises of whole programs: nothing can be left out, and edits mend.
#include <gtest/gtest.h>

#include "tl/programs.h"

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

bool cannot_go(const std::string& line) {
  const bool copy = line.find("Copy ") != std::string::npos;
  return line.starts_with("Allocate ") || line.find("Reshape ") != std::string::npos ||
         (copy && line.find("from global to shared") != std::string::npos);
}

TEST(Check, NoAllocateReshapeOrCopyCanGo) {
  int deleted = 0;
  for (const char* name : {"forward", "backward"}) {
    for (const tl::Target& target : tl::targets()) {
      const std::string text =
          tl::reason(sketch(name), name, reason_options(64, target.name, {64, 64}));
      EXPECT_EQ(found(text), Found{});
      const std::vector<std::string> lines = lines_of(text);
      for (size_t gone = 0; gone < lines.size(); ++gone) {
        if (!cannot_go(lines[gone])) continue;
        std::string rest;
        for (size_t i = 0; i < lines.size(); ++i)
          if (i != gone) rest += lines[i] + "\n";
        EXPECT_NE(found(rest), Found{}) << name << " " << target.name << ": " << lines[gone];
        ++deleted;
      }
    }
  }
  EXPECT_GT(deleted, 150);
}

TEST(Check, WhatTheEditsRestoreIsTheProgram) {
  const std::string text = code("backward");
  const std::vector<std::string> lines = lines_of(text);
  for (size_t gone = 0; gone < lines.size(); ++gone) {
    if (!lines[gone].starts_with("Allocate ") && lines[gone].find("Wait ") == std::string::npos)
      continue;
    std::string rest;
    for (size_t i = 0; i < lines.size(); ++i)
      if (i != gone) rest += lines[i] + "\n";
    EXPECT_EQ(found(tl::fix(rest, {})), Found{}) << lines[gone];
  }
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

TEST(Check, ATileMayBeSquareAndItsNamesStillDiffer) {
  // BM = BN = HeadDim = 64: no size tells a transposed factor, its names do.
  const std::string text =
      tl::reason(sketch("forward"), "forward", reason_options(64, "a100", {64, 64}));
  EXPECT_EQ(found(text), Found{});
  const std::string wrong = replaced(text, "GEMM Q, K^T", "GEMM Q, K");
  EXPECT_EQ(found(wrong), Found{"transpose@" + std::to_string(line_of(wrong, "GEMM Q, K and"))});
}

TEST(Check, AnotherTargetIsAnotherQuestion) {
  const std::string text = code("forward", 128);
  EXPECT_EQ(found(text, {.target = "h200"}), Found{});
  EXPECT_EQ(found(text, {.target = "t4"}),
            Found{"dtype@" + std::to_string(line_of(text, "param dtype"))});
  EXPECT_EQ(found(text, {.target = "l40s"}),
            Found{"shared_memory@" + std::to_string(line_of(text, "Allocate V in shared"))});
}

}  // namespace
}  // namespace verbatim::test
