#include <gtest/gtest.h>

#include <set>
#include <string>

#include "schedule/orders/orders.h"
#include "schedule/spaced.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

using Heads = std::vector<std::shared_ptr<const HeadOrder>>;

Heads causal_heads(int32_t heads, int64_t length) {
  const auto tiles = std::make_shared<const TileMap>(
      masks::causal(length, length).variants().front(), TileShape{16, 16});
  return Heads(static_cast<size_t>(heads), make_order(Pass::backward, "descending", tiles, 1));
}

std::vector<PlacedTask> hand(const Placement& p, int32_t worker) {
  return {p.tasks.begin() + p.worker_begin[worker], p.tasks.begin() + p.worker_begin[worker + 1]};
}

TEST(Placement, PlacesEveryTaskOnce) {
  const Heads heads = causal_heads(5, 100);
  for (const PlacementInfo& info : placements()) {
    for (const int32_t workers : {1, 3, 100}) {
      const Placement p = make_placement(info.name, heads, workers);
      EXPECT_EQ(p.name, info.name);
      EXPECT_EQ(p.workers, workers);
      std::set<std::pair<int32_t, int32_t>> seen;
      for (const PlacedTask& t : p.tasks) EXPECT_TRUE(seen.emplace(t.head, t.task).second);
      EXPECT_EQ(seen.size(), 35u) << info.name;
      EXPECT_EQ(p.worker_begin.size(), p.queue ? 0 : static_cast<size_t>(workers) + 1);
    }
  }
}

TEST(Placement, LongestFirstGoesBySize) {
  const Placement p = make_placement("longest_first", causal_heads(2, 64), 3);
  const std::vector<PlacedTask> expected{{0, 0}, {1, 0}, {0, 1}, {1, 1},
                                         {0, 2}, {1, 2}, {0, 3}, {1, 3}};
  EXPECT_EQ(p.tasks.list(), expected);
}

// The tasks of a head have 2, 1 and 3, 2, 1 visits.
TEST(Placement, LongestFirstGoesBySizeInSections) {
  const std::vector<int64_t> documents{32, 48};
  const auto tiles = std::make_shared<const TileMap>(
      masks::causal_document(documents).variants().front(), TileShape{16, 16});
  const Heads heads(5, make_order(Pass::backward, "descending", tiles, 1));
  std::vector<PlacedTask> expected;
  for (const auto& section : {std::vector{0, 1}, {2, 3}, {4}})
    for (const int32_t task : {2, 0, 3, 1, 4})
      for (const int32_t head : section) expected.push_back({head, task});
  EXPECT_EQ(make_placement("longest_first:2", heads, 7).tasks.list(), expected);
}

// What a long task waits for is issued before it, however short: in right_to_left the KV tiles of
// fewer rows come first, and with even parts a whole tile may wait for parts shorter than itself.
TEST(Placement, LongestFirstAndSpacedLetNoTaskWaitForALaterOne) {
  const std::vector<int64_t> docs{30, 200, 90, 280, 40};
  const Mask masks[] = {masks::causal(640, 640),
                        masks::causal_document(docs),
                        masks::share_question(docs),
                        masks::causal_blockwise(docs),
                        masks::global_sliding(640, 50, 70),
                        masks::full(640, 640)};
  int longer_behind = 0;
  for (const Mask& mask : masks) {
    for (const OrderInfo& info : orders()) {
      if (info.pass != Pass::backward || !order::takes_columns(info)) continue;
      for (const char* suffix :
           {"", "/split", "/split:2", "/even:2", "/even:4", "/rows:100", "/split:2/rows:64"}) {
        Problem problem{.q_heads = 16, .kv_heads = 2, .q_len = 640, .kv_len = 640};
        PlanOptions options{.order = info.name + std::string(suffix),
                            .placement = "longest_first:1",
                            .level = info.level};
        options.tile = {16, 32};
        EXPECT_EQ(make_plan(problem, mask, options).residency, 1)
            << mask.name() << " " << options.order;
        options.placement = "spaced";
        for (options.workers = 1; options.workers < 100; options.workers *= 4)
          EXPECT_EQ(make_plan(problem, mask, options).residency, 1)
              << mask.name() << " " << options.order << " " << options.workers << " workers";
        options.workers = 0;
        options.placement = "longest_first";
        const Plan plan = make_plan(problem, mask, options);
        EXPECT_EQ(plan.residency, 1) << mask.name() << " " << options.order;
        int64_t before = std::numeric_limits<int64_t>::max();
        for (const PlacedTask& placed : plan.placement.tasks) {
          const HeadOrder& order = plan.order(placed.head);
          const Task& task = order.tasks[placed.task];
          const int64_t visits = order.visits(order.chains[task.chain_begin]);
          longer_behind += visits > before;
          before = visits;
        }
      }
    }
  }
  EXPECT_GT(longer_behind, 0);
}

TEST(Placement, HeadSwizzledWorksInSections) {
  const std::vector<PlacedTask> pairs{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {2, 1}};
  EXPECT_EQ(make_placement("head_swizzled:2", causal_heads(3, 32), 7).tasks.list(), pairs);
  // Two tasks a head, four workers: two heads side by side.
  EXPECT_EQ(make_placement("head_swizzled", causal_heads(3, 32), 4).tasks.list(), pairs);
  const std::vector<PlacedTask> turns{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2}, {1, 2}};
  EXPECT_EQ(make_placement("head_swizzled:2:2", causal_heads(2, 48), 7).tasks.list(), turns);
}

/// Positions in the list at which the tasks of head `h` are issued, in the order of its tasks.
std::vector<size_t> issues(const Placement& p, int32_t h) {
  std::vector<size_t> found;
  for (size_t k = 0; k < p.tasks.size(); ++k) {
    if (p.tasks[k].head != h) continue;
    EXPECT_EQ(p.tasks[k].task, static_cast<int32_t>(found.size())) << "head " << h;
    found.push_back(k);
  }
  return found;
}

/// Heads 0 to 10; those with odd numbers have 2 tasks, the others 8.
Heads long_and_short_heads() {
  Heads heads = causal_heads(11, 16 * 8);
  const Heads brief = causal_heads(1, 16 * 2);
  for (size_t h = 1; h < heads.size(); h += 2) heads[h] = brief.front();
  return heads;
}

TEST(Placement, StaggeredIssuesEveryTaskOfUnequalHeadsInTurn) {
  const Heads heads = long_and_short_heads();
  for (const int32_t section : {1, 2, 3, 4, 11, 100}) {
    SCOPED_TRACE(section);
    const Placement p = make_placement("staggered:" + std::to_string(section), heads, 7);
    size_t start = 0;
    for (int32_t h = 0; h < 11; ++h) {
      const auto issued = issues(p, h);
      ASSERT_EQ(issued.size(), heads[h]->tasks.size());
      EXPECT_GE(issued.front(), start);
      start = issued.front();
      if (h >= section) {  // so at most `section` heads are under way
        EXPECT_GT(start, issues(p, h - section).back());
      }
    }
  }
}

TEST(Placement, StaggeredStartsAreSpreadOverLessOfAHeadWithFewSections) {
  // Pairs of heads of 64 tasks: how many of head 0 come before the first of head 1.
  const std::vector<size_t> by_sections{2, 4, 8, 16, 32, 32};
  for (size_t sections = 1; sections <= by_sections.size(); ++sections) {
    const auto heads = causal_heads(static_cast<int32_t>(2 * sections), 16 * 64);
    const Placement p = make_placement("staggered:2", heads, 7);
    EXPECT_EQ(issues(p, 1).front(), by_sections[sections - 1] + 1) << sections;
  }
}

TEST(Placement, StaggeredSectionsAreEqual) {
  const auto tasks = [](const char* name) {
    return make_placement(name, causal_heads(4, 16 * 64), 7).tasks.list();
  };
  EXPECT_EQ(tasks("staggered:3"), tasks("staggered:2"));
  EXPECT_EQ(tasks("staggered:100"), tasks("staggered:4"));
}

TEST(Placement, StaggeredKeepsItsHeadsSideBySide) {
  // Ten heads of four tasks in five sections: one starts every second round.
  const Placement p = make_placement("staggered:2", causal_heads(10, 16 * 4), 7);
  const std::vector<PlacedTask> begin{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {0, 3}, {1, 1},
                                      {1, 2}, {2, 0}, {1, 3}, {2, 1}, {2, 2}, {3, 0}};
  EXPECT_EQ(std::vector(p.tasks.begin(), p.tasks.begin() + 12), begin);
  // Four tasks a head, eight workers: two heads side by side.
  EXPECT_EQ(make_placement("staggered", causal_heads(10, 16 * 4), 8).tasks.list(), p.tasks.list());
}

// Three tasks of 12, 8 and 4 visits for each of two query heads: the second starts between those of
// the first, and where one worker has both, behind it.
TEST(Placement, SpacedStartsOtherLinesBetween) {
  const auto tiles =
      std::make_shared<const TileMap>(masks::causal(96, 96).variants().front(), TileShape{8, 32});
  const Heads heads(1, make_order(Pass::backward, "descending/split", tiles, 2));
  const auto placed = [&](int32_t workers) {
    std::vector<int32_t> tasks;
    for (const PlacedTask& task : make_placement("spaced", heads, workers).tasks)
      tasks.push_back(task.task);
    return tasks;
  };
  EXPECT_EQ(placed(1), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(placed(6), (std::vector<int32_t>{0, 3, 1, 4, 2, 5}));
  // Of one query head and of the other's: where a task walks both, there is one line.
  const Heads whole(1, make_order(Pass::backward, "descending", tiles, 2));
  EXPECT_EQ(make_placement("spaced", whole, 6).tasks.list(),
            make_placement("queue", whole, 6).tasks.list());
}

// An order of one's own, whose second part of every tile is added first.
TEST(Placement, SpacedLeavesTasksWherePartsWouldWait) {
  const auto tiles =
      std::make_shared<const TileMap>(masks::causal(96, 96).variants().front(), TileShape{8, 32});
  HeadOrder own = *make_order(Pass::backward, "descending/split", tiles, 2);
  for (Chain& chain : own.chains) chain.addend = 1 - chain.addend;
  const Heads heads(1, std::make_shared<const HeadOrder>(own));
  const std::vector<PlacedTask> tasks{{0, 3}, {0, 4}, {0, 5}, {0, 0}, {0, 1}, {0, 2}};
  EXPECT_EQ(spaced(heads, tasks, 6), tasks);
}

TEST(Placement, AlternatingDealsLongToShort) {
  const Placement p = make_placement("alternating", causal_heads(2, 64), 4);
  for (int32_t w = 0; w < 4; ++w)
    EXPECT_EQ(hand(p, w), (std::vector<PlacedTask>{{0, w}, {1, 3 - w}}));
  const Placement q = make_placement("static", causal_heads(2, 64), 4);
  for (int32_t w = 0; w < 4; ++w) EXPECT_EQ(hand(q, w), (std::vector<PlacedTask>{{0, w}, {1, w}}));
}

TEST(Placement, PersistentSharesAreEven) {
  const Heads heads = causal_heads(4, 16 * 12);  // 4 x (12 + ... + 1) = 312 visits
  const Placement p = make_placement("persistent", heads, 6);
  for (int32_t w = 0; w < 6; ++w) {
    int64_t visits = 0;
    for (const PlacedTask& t : hand(p, w)) visits += 12 - t.task;
    EXPECT_NEAR(static_cast<double>(visits), 52, 12);
  }
}

TEST(Placement, RefusesBadRequests) {
  const Heads heads = causal_heads(1, 32);
  EXPECT_THROW(make_placement("queue", heads, 0), Error);
  for (const auto& [name, nearest] : {std::pair("longestfirst", "longest_first"),
                                      {"longest_first:0", "longest_first"},
                                      {"longest_first:x", "longest_first"},
                                      {"head_swizzled:0", "head_swizzled"},
                                      {"head_swizzled:x", "head_swizzled"},
                                      {"head_swizzled:2:0", "head_swizzled"},
                                      {"head_swizzled:2:", "head_swizzled"},
                                      {"head_swizzled::2", "head_swizzled"},
                                      {"head_swizzled:2:2:2", "head_swizzled"},
                                      {"staggered:2:2", "staggered"},
                                      {"staggered:0", "staggered"},
                                      {"staggered:x", "staggered"},
                                      {"staggered:", "staggered"},
                                      {"staggered:2x", "staggered"}}) {
    try {
      make_placement(name, heads, 2);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument) << name;
      EXPECT_EQ(e.details().got, name);
      EXPECT_EQ(e.details().nearest, nearest) << name;
    }
  }
}

}  // namespace
}  // namespace verbatim
