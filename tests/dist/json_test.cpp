// A distributed plan as JSON: the same plan comes back, and nothing that is none.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dist/dist_case.h"
#include "dist/sizes.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

using Json = nlohmann::json;

int64_t sent(const Json& rank) {
  int64_t bytes = 0;
  for (const Json& step : rank["steps"])
    if (step["step"] == "send") bytes += step["bytes"].get<int64_t>();
  return bytes;
}

void expect_same_plan(const DistPlan& plan) {
  const std::string text = to_json(plan);
  const Json json = Json::parse(text);
  for (int32_t r = 0; r < plan.options.world; ++r) {
    EXPECT_EQ(json["ranks"][r]["steps"].size(), dist::listed_steps(plan.ranks[r]));
    EXPECT_EQ(sent(json["ranks"][r]), sent_bytes(plan, r));
  }
  EXPECT_EQ(to_json(dist_plan_from_json(text)), text);
}

TEST(DistJson, EveryStrategyComesBack) {
  const DistCase c(problem_of(200), masks::causal(200, 200), kTile, "descending/split:2");
  for (const std::string& strategy : strategy_names()) {
    SCOPED_TRACE(strategy);
    for (const bool overlapped : {false, true}) {
      const DistCase::Dealt dealt =
          c.deal({.world = 4, .strategy = strategy, .joined_heads = 1, .overlapped = overlapped});
      expect_same_plan(dealt.forward);
      expect_same_plan(dealt.backward);
    }
  }
}

TEST(DistJson, ARankMayHaveSeveralRooms) {
  const DistCase c(problem_of(200), masks::causal(200, 200), kTile, "descending/split:2");
  const DistOptions options{.world = 3, .strategy = "ring"};
  Sharding sharding = make_sharding(c.forward, c.backward, c.tensors.mask, options);
  sharding.moved = {
      {{0, {0, 32}}, {0, 1}, 2}, {{0, {32, 112}}, {1, 4}, 2}, {{0, {160, 200}}, {0, 2}, 1}};
  const DistPlan plan = make_dist_plan(c.backward, sharding, options);
  const auto rows = [](int64_t begin, int64_t end) {
    return HeldRows(std::vector<RowRange>{{0, {begin, end}}});
  };
  ASSERT_EQ(plan.ranks[1].rooms.size(), 2u);
  EXPECT_EQ(plan.ranks[1].rooms[1].q, rows(160, 200));
  EXPECT_EQ(plan.ranks[1].rooms[1].heads, (Interval{0, 8}));
  ASSERT_EQ(plan.ranks[2].rooms.size(), 3u);
  EXPECT_EQ(plan.ranks[2].rooms[1].q, rows(0, 32));
  EXPECT_EQ(plan.ranks[2].rooms[2].q, rows(32, 112));
  expect_same_plan(plan);
}

TEST(DistJson, APlanThatCameBackHasTheBitsOfOneDevice) {
  DistCase c(problem_of(200), masks::causal_document(std::vector<int64_t>{70, 130}), kTile);
  const DistCase::Dealt dealt = c.deal({.world = 8, .strategy = "usp"});
  for (GuardedTensor* t : c.outputs()) t->poison();
  replay(dist_plan_from_json(to_json(dealt.forward)), c.tensors.forward());
  replay(dist_plan_from_json(to_json(dealt.backward)), c.tensors.backward());
  EXPECT_EQ(c.tensors.hashes(), c.expected);
}

TEST(DistJson, WhatIsNoPlanIsRefusedByName) {
  const DistCase c(problem_of(200), masks::causal(200, 200), kTile, "descending");
  const Json good = Json::parse(to_json(c.deal({.world = 2, .strategy = "ring"}).backward));
  Json::json_pointer send, compute, add;
  for (size_t i = 0; i < good["ranks"][0]["steps"].size(); ++i) {
    const Json& step = good["ranks"][0]["steps"][i];
    const Json::json_pointer at("/ranks/0/steps/" + std::to_string(i));
    if (step["step"] == "send" && !step["boxes"].empty()) send = at;
    if (step["step"] == "compute") compute = at;
    if (step["step"] == "add") add = at;
  }
  struct Change {
    Json::json_pointer at;
    Json value;
    const char* named;
  };
  for (const Change& change : std::vector<Change>{
           {"/world"_json_pointer, 3, "'ranks' are not those of the world"},
           {"/parts/0/order"_json_pointer, 9, "parts[0].order"},
           {"/parts/0/stretches/0/2"_json_pointer, -2, "parts[0].stretches[0]"},
           {"/parts/0/stretches/0/1"_json_pointer, 1000, "an order has no 1000 chains"},
           {"/ranks/0/rooms/0/q/0/2"_json_pointer, 201, "ranks[0].rooms[0].q[0]"},
           {"/ranks/0/rooms/0/heads"_json_pointer, {0, 17}, "ranks[0].rooms[0].heads"},
           {"/ranks/0/kv/0/0"_json_pointer, 1, "ranks[0].kv[0]"},
           {"/ranks/0/rooms/0/q"_json_pointer, Json::array(), "ranks[0].rooms[0].in_place"},
           {"/ranks/0/blocks"_json_pointer, 1 << 30, "ranks[0].blocks"},
           {"/ranks/0/ended/0/2"_json_pointer, 201, "ranks[0].ended[0]"},
           {"/ranks/0/kv_slots"_json_pointer, 5, "ranks[0].kv_slots"},
           {"/ranks/0/kv_slots"_json_pointer, 1, "cannot hold head"},
           {"/ranks/0/blocks"_json_pointer, 0, "out of range"},
           {"/ranks/1/steps/0/step"_json_pointer, "wait", "ranks[1].steps[0].step"},
           {send / "to", 2, ".to"},
           {send / "space", "away", ".space"},
           {send / "to", 0, "to itself"},
           {send / "room", 1, "in no room of this rank"},
           {"/ranks/0/rooms"_json_pointer, Json::array(), "in no room of this rank"},
           {compute / "room", 1, "has no room 1"},
           {send / "bytes", 1, ".bytes"},
           {send / "boxes" / 0 / 0, "x", ".boxes[0][0]"},
           {send / "boxes" / 0 / 5, 99, ".boxes[0]"},
           {send / "message", 1 << 20, "whose message 1048576 comes first"},
           {compute / "heads", Json::array(), "computes nothing"},
           {compute / "heads" / 0 / "head", 4, ".heads[0].head"},
           {compute / "heads" / 0 / "part", 1000, ".heads[0].part"},
           {compute / "heads" / 0 / "carries" / 0 / 1, -1, ".heads[0].carries[0]"},
           {add / "kv_tile", 13, ".kv_tile"},
           {add / "blocks" / 0, -1, "has no block -1"}}) {
    Json bad = good;
    bad[change.at] = change.value;
    try {
      dist_plan_from_json(bad.dump());
      ADD_FAILURE() << change.at.to_string() << " is taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(change.named), std::string::npos)
          << change.at.to_string() << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace verbatim::test
