// What heads do alike is proved once: only if it is alike, and by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "dist/dist_case.h"
#include "dist/sections.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

DistCase& chunked_case() {
  static DistCase c(problem_of(256), masks::causal(256, 256), kTile, "descending/rows:32");
  return c;
}

/// Heads one after another, on the same ranks: the first has no blocks yet, others repeat the
/// second.
const DistOptions kInTurn{.world = 4, .strategy = "ring", .joined_heads = 1};
/// Heads beside each other, each on other ranks.
const DistOptions kBeside{.world = 8, .strategy = "usp", .ulysses_size = 4};

using Break = std::function<void(DistPlan&)>;
void expect_refused(const std::string& what, const Break& break_it) {
  for (const DistOptions& options : {kInTurn, kBeside}) {
    DistPlan plan = chunked_case().deal(options).backward;
    ASSERT_EQ(refusal(plan), "");
    break_it(plan);
    EXPECT_NE(refusal(plan).find(what), std::string::npos) << refusal(plan);
  }
}

/// Calls f(step) for the first step of this kind in a part of a section.
template <class T>
void change(DistPlan& plan, size_t section, const std::function<void(T&)>& f) {
  for (const auto& [rank, begin, end] : plan.sections[section].parts) {
    std::vector<Step>& steps = plan.ranks[static_cast<size_t>(rank)].steps;
    for (size_t s = begin; s < end; ++s)
      if (T* step = std::get_if<T>(&steps[s])) return f(*step);
  }
  ADD_FAILURE() << "no such step";
}
template <class T>
Break changed(size_t section, const std::function<void(T&)>& f) {
  return [=](DistPlan& plan) { change<T>(plan, section, f); };
}
template <class T>
Break changed_everywhere(const std::function<void(T&)>& f) {
  return [=](DistPlan& plan) {
    for (size_t n = 0; n < plan.sections.size(); ++n) change<T>(plan, n, f);
  };
}

TEST(Sections, HeadsThatAreDealtAlikeRepeatEachOther) {
  for (const DistOptions& options : {kInTurn, kBeside}) {
    SCOPED_TRACE(to_text(options));
    const DistPlan plan = chunked_case().deal(options).backward;
    ASSERT_EQ(plan.sections.size(), 4u);
    const bool beside = options.strategy == "usp";
    const int32_t first = beside ? 0 : 1;
    for (int32_t n = 0; n < 4; ++n) {
      const Section& own = plan.sections[static_cast<size_t>(n)];
      EXPECT_EQ(own.as, n > first ? first : -1);
      EXPECT_EQ(own.heads, std::max(n - first, 0));
      EXPECT_EQ(own.ranks, beside ? n : 0);
    }
    chunked_case().expect_same(options);
  }
}

TEST(Sections, AreProvedWithoutThemToo) {
  for (const DistOptions& options : {kInTurn, kBeside}) {
    DistPlan plan = chunked_case().deal(options).backward;
    plan.sections.clear();
    EXPECT_EQ(refusal(plan), "");
  }
}

TEST(Sections, OfManyStepsAreProvedAndTheFirstThatDiffersIsNamed) {
  const DistCase c(problem_of(1536), masks::full(1536, 1536), kTile, "descending/rows:32");
  DistPlan plan = c.deal({.world = 48, .strategy = "ring", .joined_heads = 1}).backward;
  ASSERT_EQ(plan.sections.size(), 4u);
  size_t steps = 0;
  for (const auto& [rank, begin, end] : plan.sections[3].parts) steps += end - begin;
  EXPECT_GE(steps, dist::kStepsWorthThreads);
  EXPECT_EQ(refusal(plan), "");
  DistPlan played = plan;
  played.sections.clear();
  EXPECT_EQ(refusal(played), "");
  change<Send>(plan, 2, [](Send& send) { ++send.sums.back().block; });
  change<Send>(plan, 3, [](Send& send) { ++send.sums.back().block; });
  EXPECT_NE(refusal(plan).find("section 2 does not repeat section 1"), std::string::npos);
}

TEST(Sections, NoneWhereHeadsMeetOrWaitForOthers) {
  EXPECT_TRUE(chunked_case().deal({.world = 4, .strategy = "ring"}).backward.sections.empty());
  EXPECT_TRUE(chunked_case().deal(kInTurn).forward.sections.empty());
  const DistCase whole(problem_of(200), masks::causal(200, 200), kTile, "descending");
  EXPECT_TRUE(whole.deal(kInTurn).backward.sections.empty());
  for (const DistOptions& options : {kInTurn, kBeside})
    EXPECT_TRUE(chunked_case().deal(overlapped_of(options)).backward.sections.empty());
}

/// Has every message expected where it is taken.
void expect_all(DistPlan& plan) {
  for (int32_t r = 0; r < std::ssize(plan.ranks); ++r) {
    RankPlan& rank = plan.ranks[static_cast<size_t>(r)];
    rank.landing = 1 << 20;
    for (size_t s = 0; s < rank.steps.size(); ++s) {
      const auto* receive = std::get_if<Receive>(&rank.steps[s]);
      if (!receive) continue;
      const Step expect = Expect{receive->from, receive->message, 0};
      rank.steps.insert(rank.steps.begin() + static_cast<ptrdiff_t>(s), expect);
      for (Section& section : plan.sections)
        for (Section::Part& part : section.parts) {
          if (part.rank != r) continue;
          part.begin += part.begin > s ? 1 : 0;
          part.end += part.end > s ? 1 : 0;
        }
      ++s;
    }
  }
}

TEST(Sections, WhatIsExpectedIsNotRepeated) {
  for (const DistOptions& options : {kInTurn, kBeside}) {
    DistPlan plan = chunked_case().deal(options).backward;
    expect_all(plan);
    EXPECT_NE(refusal(plan).find("does not repeat section"), std::string::npos);
    plan.sections.resize(1);
    EXPECT_EQ(refusal(plan), "");
  }
}

TEST(Sections, WhatIsNotAsItSaysIsRefused) {
  const std::string what = "does not repeat section";
  expect_refused(what, changed<Send>(2, [](Send& send) { ++send.message; }));
  expect_refused(what, changed<Send>(2, [](Send& send) { ++send.to; }));
  expect_refused(what, changed<Send>(2, [](Send& send) { ++send.sums.back().block; }));
  expect_refused(what, changed<Send>(2, [](Send& send) { --send.sums.back().head; }));
  expect_refused(what, [](DistPlan& plan) {
    const auto as = static_cast<size_t>(plan.sections[2].as);
    change<Send>(plan, as, [](Send& send) { --send.sums.back().head; });
  });
  expect_refused(what, changed<Receive>(3, [](Receive& take) { take.sums.pop_back(); }));
  expect_refused(what, changed<Receive>(3, [](Receive& take) { ++take.from; }));
  expect_refused(what, changed<Compute>(3, [](Compute& own) { ++own.heads[0].carries[0].out; }));
  expect_refused(what, changed<Compute>(3, [](Compute& own) { ++own.room; }));
  expect_refused(what, changed<Add>(3, [](Add& add) { ++add.sums.blocks.back(); }));
  expect_refused(what, changed<Add>(3, [](Add& add) { --add.sums.head; }));
  expect_refused(what, [](DistPlan& plan) { --plan.sections[2].heads; });
  expect_refused(what, [](DistPlan& plan) { ++plan.sections[2].ranks; });
  expect_refused(what, [](DistPlan& plan) { --plan.sections[2].messages; });
  expect_refused(what, [](DistPlan& plan) { plan.sections[2].parts.pop_back(); });
  expect_refused(what, [](DistPlan& plan) { --plan.sections[2].parts.back().end; });
  expect_refused("section 2 does not", [](DistPlan& plan) { plan.sections[2].as = 2; });
  expect_refused("section 3 does not", [](DistPlan& plan) { plan.sections[3].as = 2; });
}

TEST(Sections, RanksNeedTheBlocksThatAreUsed) {
  const DistPlan good = chunked_case().deal(kBeside).backward;
  for (size_t i = 0; i < good.sections[0].parts.size(); ++i) {
    DistPlan plan = good;
    ++plan.ranks[static_cast<size_t>(plan.sections[0].parts[i].rank)].blocks;
    EXPECT_EQ(refusal(plan), "");
    plan = good;
    --plan.ranks[static_cast<size_t>(plan.sections[1].parts[i].rank)].blocks;
    EXPECT_NE(refusal(plan).find("section 1 does not repeat section 0"), std::string::npos);
  }
}

TEST(Sections, WhatAllDoWrongIsRefused) {
  expect_refused("holds another sum",
                 changed_everywhere<Send>([](Send& send) { ++send.sums.back().kv_tile; }));
  expect_refused("in another order", changed_everywhere<Add>([](Add& add) {
                   std::swap(add.sums.blocks.front(), add.sums.blocks.back());
                 }));
  expect_refused("lacks a part",
                 changed_everywhere<Add>([](Add& add) { add.sums.blocks.pop_back(); }));
}

TEST(Sections, AreOfStepsThatAreThereAndApart) {
  const auto first = [](DistPlan& plan) -> Section::Part& {
    return plan.sections[0].parts.front();
  };
  expect_refused("not of steps", [&](DistPlan& plan) { first(plan).end = 1 << 20; });
  expect_refused("not of steps", [&](DistPlan& plan) { first(plan).begin = first(plan).end + 1; });
  expect_refused("not of steps", [&](DistPlan& plan) { first(plan).rank = -1; });
  expect_refused("not of steps", [&](DistPlan& plan) { first(plan).rank = 100; });
  expect_refused("not apart", [](DistPlan& plan) { plan.sections.push_back(plan.sections[0]); });
}

// Cut in two, a repeat may have its parts in another sequence: a sum is added before it is there.
TEST(Sections, HaveOnePartARank) {
  DistPlan plan = chunked_case().deal(kInTurn).backward;
  for (Section& own : plan.sections) {
    const Section::Part whole = own.parts.front();
    own.parts.front().end = whole.begin + 1;
    own.parts.push_back({whole.rank, whole.begin + 1, whole.end});
  }
  EXPECT_NE(refusal(plan).find("section 0 has two parts of rank"), std::string::npos);
}

TEST(Sections, HaveNoSumsAndMessagesOfOthers) {
  const auto alone = [](const std::function<void(Section::Part&)>& f) {
    return [f](DistPlan& plan) {
      plan.sections.resize(1);
      f(plan.sections[0].parts.front());
    };
  };
  // Without its launch, without its additions, and without what it sends.
  expect_refused("with sums in its blocks", alone([](Section::Part& part) { ++part.begin; }));
  expect_refused("with sums in its blocks", alone([](Section::Part& part) { --part.end; }));
  expect_refused("in another section", [](DistPlan& plan) {
    plan.sections.resize(1);
    plan.sections[0].parts.erase(plan.sections[0].parts.begin());
  });
}

}  // namespace
}  // namespace verbatim::test
