// DASH figures 3, 4, 6 and 7 as golden timelines, drawn with one character per cycle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>

#include "plans.h"

namespace verbatim {
namespace {

using test::square_plan;

/// One line per worker: the query tile as a digit while it computes and as a letter (0 = a) while
/// it reduces; '.' while it waits. c = 2, r = 1, as wide as the figures' boxes.
std::string draw(const Plan& plan) {
  Timeline timeline;
  const auto machine = Machine::paper(2, 1, plan.placement.workers);
  const auto cycles = static_cast<size_t>(simulate(plan, machine, &timeline).makespan);
  std::vector<std::string> lines(plan.placement.workers, std::string(cycles, '.'));
  for (const TimelineEvent& event : timeline.events) {
    if (event.kind != TimelineEvent::Kind::compute && event.kind != TimelineEvent::Kind::reduce)
      continue;
    const char first = event.kind == TimelineEvent::Kind::compute ? '0' : 'a';
    auto& line = lines[event.worker];
    std::fill(line.begin() + std::lround(event.begin), line.begin() + std::lround(event.end),
              static_cast<char>(first + event.q_tile));
  }
  std::string picture;
  for (const auto& line : lines) picture += line + "\n";
  return picture;
}

std::string golden(const std::string& name) {
  std::ifstream file(std::string(GOLDEN_DIR) + "/" + name + ".txt");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Figures, Three) {
  EXPECT_EQ(draw(square_plan(false, 1, 4, "ascending", "static", 4)), golden("figure3a"));
  EXPECT_EQ(draw(square_plan(true, 1, 4, "ascending", "static", 4)), golden("figure3b"));
}

TEST(Figures, Four) {
  EXPECT_EQ(draw(square_plan(true, 2, 4, "descending", "alternating", 4)), golden("figure4"));
}

TEST(Figures, Six) {
  EXPECT_EQ(draw(square_plan(false, 1, 4, "shift", "static", 4)), golden("figure6"));
}

TEST(Figures, Seven) {
  const Plan plan = square_plan(true, 1, 8, "symmetric_shift", "static", 4);
  EXPECT_EQ(draw(plan), golden("figure7"));

  // The numbers in the boxes of the figure: when each tile is visited. Rows are query tiles.
  const std::vector<std::vector<int>> boxes = {{5},
                                               {6, 5},
                                               {7, 6, 5},
                                               {0, 4, 3, 2},
                                               {1, 0, 4, 3, 8},
                                               {2, 1, 0, 4, 7, 8},
                                               {3, 2, 1, 0, 6, 7, 8},
                                               {4, 3, 2, 1, 5, 6, 7, 8}};
  Timeline timeline;
  simulate(plan, Machine::paper(2, 1, 4), &timeline);
  int seen = 0;
  for (const TimelineEvent& event : timeline.events) {
    if (event.kind != TimelineEvent::Kind::compute) continue;
    ++seen;
    const auto q = static_cast<size_t>(event.q_tile), kv = static_cast<size_t>(event.kv_tile);
    EXPECT_EQ(event.begin, 3 * boxes[q][kv]) << "q_tile " << q << ", kv_tile " << kv;
    EXPECT_EQ(event.worker, static_cast<int32_t>(std::min<size_t>(kv, 7 - kv)));
  }
  EXPECT_EQ(seen, 36);
}

}  // namespace
}  // namespace verbatim
