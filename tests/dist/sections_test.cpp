// What heads do alike is proved once: only if it is alike, and by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "dist/dist_case.h"
#include "dist/sections.h"
#include "dist/steps.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

DistCase& chunked_case() {
  static DistCase c(problem_of(256), masks::causal(256, 256), kTile, "descending/rows:32");
  return c;
}

/// Heads one after another, on the same ranks.
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

void later_block(Send& send) {
  edit(send.sums, [](auto& sums) { ++sums.back().block; });
}
void head_before(Send& send) {
  edit(send.sums, [](auto& sums) { --sums.back().head; });
}

TEST(Sections, RenamedSumsShareTheirListAndKeepTheirHeads) {
  const CarriedSums first(std::vector<CarriedSum>{{3, 1, 0, 2, -1}, {4, 7, 5}});
  CarriedSums later = first;
  later.rename(2);
  EXPECT_EQ(later[0], (CarriedSum{5, 1, 0, 2, -1}));
  EXPECT_EQ(later[1], (CarriedSum{6, 7, 5}));
  const CarriedSums own(std::vector<CarriedSum>(later.begin(), later.end()));
  for (const CarriedSums& sums : {later, own}) {
    EXPECT_TRUE(sums.is_renamed(first, 2));
    EXPECT_FALSE(sums.is_renamed(first, 1));
    EXPECT_FALSE(sums.is_renamed(CarriedSums(), 2));
  }
  EXPECT_TRUE(CarriedSums().is_renamed(CarriedSums(), 1));
}

TEST(Sections, OfRanksThatTheFirstHasTooAreWrittenAtOnce) {
  DistPlan plan;
  plan.ranks.resize(3);
  const auto count = static_cast<int32_t>(dist::kStepsWorthThreads);
  for (int32_t r = 0; r < 2; ++r)
    for (int32_t i = 0; i < count; ++i) plan.ranks[r].steps.emplace_back(Add{{i, r, {}}});
  const auto end = static_cast<size_t>(count);
  plan.sections.push_back({.parts = {{0, 0, end}, {1, 0, end}}});
  dist::Steps(plan).repeat(0, 0, 0, 5, 1);
  for (int32_t r = 1; r < 3; ++r) {
    const Section::Part& part = plan.sections[1].parts[r - 1];
    ASSERT_EQ(part.rank, r);
    ASSERT_EQ(part.end - part.begin, end);
    ASSERT_EQ(part.end, plan.ranks[r].steps.size());
    for (int32_t i = 0; i < count; ++i) {
      const TileSums& sums = std::get<Add>(plan.ranks[r].steps[part.begin + i]).sums;
      ASSERT_TRUE(sums.head == i + 5 && sums.kv_tile == r - 1) << r << " " << i;
    }
  }
}

TEST(Sections, HeadsThatAreDealtAlikeRepeatEachOther) {
  for (const DistOptions& options : {kInTurn, kBeside}) {
    SCOPED_TRACE(to_text(options));
    const DistPlan plan = chunked_case().deal(options).backward;
    ASSERT_EQ(plan.sections.size(), 4u);
    for (int32_t n = 0; n < 4; ++n) {
      const Section& own = plan.sections[static_cast<size_t>(n)];
      EXPECT_EQ(own.as, n > 0 ? 0 : -1);
      EXPECT_EQ(own.heads, n);
      EXPECT_EQ(own.ranks, options.strategy == "usp" ? n : 0);
    }
    chunked_case().expect_same(options);
  }
}

TEST(Sections, BeginWithTheBlocksOfHeadsThatMetBefore) {
  DistCase c(problem_of(256, 6, 3), masks::causal(256, 256), kTile, "descending/rows:32");
  const DistOptions options{
      .world = 4, .strategy = "ring", .shard = "contiguous", .joined_heads = 2};
  const DistPlan plan = c.deal(options).backward;
  ASSERT_EQ(plan.sections.size(), 1u);  // head 2 alone, behind two that met
  EXPECT_EQ(plan.sections[0].parts.size(), 4u);
  EXPECT_EQ(refusal(plan), "");
  c.expect_same(options);
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
  change<Send>(plan, 2, later_block);
  change<Send>(plan, 3, later_block);
  EXPECT_NE(refusal(plan).find("section 2 does not repeat section 0"), std::string::npos);
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
  expect_refused(what, changed<Send>(2, later_block));
  expect_refused(what, changed<Send>(2, head_before));
  expect_refused(what, [](DistPlan& plan) {
    const auto as = static_cast<size_t>(plan.sections[2].as);
    change<Send>(plan, as, head_before);
  });
  expect_refused(what, changed<Receive>(3, [](Receive& take) {
                   edit(take.sums, [](auto& sums) { sums.pop_back(); });
                 }));
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
  expect_refused("holds another sum", changed_everywhere<Send>([](Send& send) {
                   edit(send.sums, [](auto& sums) { ++sums.back().kv_tile; });
                 }));
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
