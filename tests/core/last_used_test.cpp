#include "core/last_used.h"

#include <gtest/gtest.h>

namespace verbatim {
namespace {

struct Entry {
  int name;
  int64_t bytes;
  bool may_go = true;
};

class LastUsedTest : public testing::Test {
 protected:
  void add(const Entry& entry, size_t most = 8) {
    kept_.add(entry);
    kept_.trim(most, [](const Entry& each) { return each.may_go; });
  }
  bool has(int name) {
    return kept_.find([name](const Entry& entry) { return entry.name == name; }) != nullptr;
  }

  LastUsed<Entry> kept_;
};

TEST_F(LastUsedTest, KeepsSoMany) {
  for (int name = 0; name < 4; ++name) add({name, 1});
  EXPECT_TRUE(has(0));
  add({4, 1}, 3);
  EXPECT_TRUE(has(4) && has(0) && has(3));
  EXPECT_FALSE(has(1) || has(2));
}

TEST_F(LastUsedTest, KeepsSoManyBytes) {
  for (int name = 0; name < 4; ++name) add({name, kMostKeptBytes / 4});
  EXPECT_TRUE(has(0));
  add({4, 1});
  EXPECT_TRUE(has(4) && has(0) && has(3) && has(2));
  EXPECT_FALSE(has(1));
}

TEST_F(LastUsedTest, KeepsTwoOfAnySize) {
  add({0, 1});
  add({1, 2 * kMostKeptBytes});
  add({2, 2 * kMostKeptBytes});
  EXPECT_TRUE(has(1) && has(2));
  EXPECT_FALSE(has(0));
  add({3, 1});
  EXPECT_TRUE(has(3) && has(2));
  EXPECT_FALSE(has(1));
}

TEST_F(LastUsedTest, WhatMayNotGoDoesNotCount) {
  add({0, 2 * kMostKeptBytes, false}, 2);
  for (int name = 1; name < 4; ++name) add({name, 1}, 2);
  EXPECT_TRUE(has(0) && has(2) && has(3));
  EXPECT_FALSE(has(1));
}

}  // namespace
}  // namespace verbatim
