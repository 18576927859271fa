// The files in fuzz/corpus: what the fuzzers start from, and what they once broke.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "verbatim/error.h"

namespace verbatim::test {

/// Reads every file of the corpus `folder` with `parse(bytes)`: those called good_* are accepted,
/// all others raise an Error.
template <class Parse>
void check_corpus(const char* folder, Parse&& parse) {
  int good = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(VERBATIM_CORPUS) / folder)) {
    const bool expected = entry.path().filename().string().starts_with("good_");
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    try {
      parse(bytes);
      EXPECT_TRUE(expected) << entry.path() << " was accepted";
      ++good;
    } catch (const Error& e) {
      EXPECT_FALSE(expected) << entry.path() << ": " << e.what();
    }
  }
  EXPECT_GE(good, 2) << folder;
}

}  // namespace verbatim::test
