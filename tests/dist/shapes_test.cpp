// The bits of one device whatever the problem: heads, dims, orders, shardings, lengths, padding.
#include <gtest/gtest.h>

#include "dist/dist_case.h"
#include "schedule/orders/orders.h"

namespace verbatim::test {
namespace {

TEST(Dist, EveryShardingOfEveryStrategy) {
  const std::vector<int64_t> documents{70, 16, 0, 130, 84};
  DistCase c(problem_of(300, 8), masks::causal_document(documents), kTile);
  for (const std::string& strategy : strategy_names())
    for (const std::string& shard : shard_names())
      c.expect_same({.world = 4, .strategy = strategy, .shard = shard});
}

TEST(Dist, GroupsAndWindowsOfAnySize) {
  DistCase c(problem_of(300, 8), masks::causal(300, 300), kTile);
  for (const int32_t size : {1, 2, 4, 8})
    c.expect_same({.world = 8, .strategy = "usp", .shard = "zigzag", .ulysses_size = size});
  for (const int32_t window : {1, 2, 3, 6})
    c.expect_same({.world = 12,
                   .strategy = "loongtrain",
                   .shard = "contiguous",
                   .ulysses_size = 2,
                   .ring_window = window});
}

TEST(Dist, EveryOrder) {
  for (const OrderInfo& info : orders()) {
    if (info.pass == Pass::forward || info.level < Level::invariant) continue;
    for (const char* suffix : {"", "/split", "/split:2", "/rows:48", "/split:2/rows:64"}) {
      if (std::string_view(suffix).find("/rows") != std::string_view::npos &&
          !order::takes_columns(info))
        continue;
      DistCase c(problem_of(200, 8), masks::causal(200, 200), kTile,
                 info.name + std::string(suffix));
      for (const char* strategy : {"ulysses", "usp", "balanced"})
        c.expect_same({.world = 4, .strategy = strategy});
      c.expect_same({.world = 3, .strategy = "ring", .shard = "contiguous"});
    }
  }
  const std::vector<int64_t> documents{60, 140};
  DistCase even(problem_of(200, 8), masks::share_question(documents), kTile, "descending/even:4");
  for (const std::string& strategy : strategy_names())
    even.expect_same({.world = 4, .strategy = strategy});
}

// `auto` has chunks of rows for the long document alone: each is cut, or goes whole.
TEST(Dist, AutoTakesChunksOfLongDocuments) {
  const std::vector<int64_t> documents{16400, 400};
  DistCase c(problem_of(16800, 4, 1, 72), masks::causal_document(documents));
  EXPECT_EQ(c.backward.orders[0]->name, "auto");
  EXPECT_FALSE(c.backward.orders[0]->row_chunks.empty());
  const DistOptions options{.world = 3, .strategy = "ring", .shard = "zigzag"};
  const DistPlan backward = c.deal(options).backward;
  for (const RankPlan& rank : backward.ranks) EXPECT_LE(launches_of(rank).size(), 1U);
  c.expect_same(options);
  c.expect_same({.world = 3, .strategy = "ring"});  // a chunk lies on several ranks
}

/// Bytes of f32 sums that go from rank to rank.
int64_t bytes_of_sums(const DistPlan& plan) {
  int64_t tiles = 0;
  for (const RankPlan& rank : plan.ranks)
    for (const Step& step : rank.steps)
      if (const auto* send = std::get_if<Send>(&step))
        for (const CarriedSum& sum : send->sums) tiles += sum.count;
  const Problem& p = plan.whole.problem;
  return tiles * plan.whole.orders[0]->tiles->shape.kv * (p.head_dim + p.head_dim_v) *
         static_cast<int64_t>(sizeof(float));
}

// Chunks of rows wait for no other rank: each of their sums goes home once. Shards end where they
// do.
TEST(Dist, SumsOfRowChunksGoHomeOnce) {
  const Problem problem = problem_of(512, 8, 2);
  const int64_t once = 2 * 512 * 2 * problem.head_dim * static_cast<int64_t>(sizeof(float));
  const DistOptions ring{.world = 4, .strategy = "ring", .shard = "contiguous"};
  DistCase walked(problem, masks::full(512, 512), {16, 16}, "descending");
  EXPECT_EQ(bytes_of_sums(walked.deal(ring).backward), (4 * 4 - 1) * once);
  for (const int64_t chunks : {4, 16}) {
    DistCase c(problem, masks::full(512, 512), {16, 16},
               "descending/rows:" + std::to_string(512 / chunks));
    const DistPlan dealt = c.deal(ring).backward;
    EXPECT_EQ(bytes_of_sums(dealt), chunks * once * 3 / 4);
    for (const RankPlan& rank : dealt.ranks) EXPECT_EQ(launches_of(rank).size(), 1u);
  }
  DistCase c(problem, masks::causal(512, 512), {16, 16}, "descending/rows:32");
  const DistPlan balanced = c.deal({.world = 4, .strategy = "balanced"}).backward;
  for (const RankPlan& rank : balanced.ranks)
    for (const RowRange& range : rank.home_q.ranges()) EXPECT_EQ(range.rows.begin % 32, 0);
  c.expect_same({.world = 4, .strategy = "balanced"});
}

// Three of four ranks would have no chunk of 192 rows.
TEST(Dist, ShardsEndWithChunksWhereRanksStayEven) {
  const Problem problem = problem_of(192, 2, 1);
  for (const auto& [rows, world, launches] :
       {std::tuple{96, 2, 1u}, {96, 3, 1u}, {96, 4, 1u}, {192, 4, 2u}}) {
    DistCase c(problem, masks::causal(192, 192), kTile, "descending/rows:" + std::to_string(rows));
    const DistOptions options{.world = world, .strategy = "ring", .shard = "contiguous"};
    size_t most = 0;
    for (const RankPlan& rank : c.deal(options).backward.ranks)
      most = std::max(most, launches_of(rank).size());
    EXPECT_EQ(most, launches) << rows << ", " << world;
    c.expect_same(options);
  }
}

TEST(Dist, SumsOfShortTilesTravelTogether) {
  const std::vector<int64_t> documents{8, 8, 8, 8, 8, 8, 52, 100};  // the last sees all
  DistCase c(problem_of(200), masks::causal_blockwise(documents), kTile, "descending");
  for (const std::string& strategy : strategy_names())
    c.expect_same({.world = 4, .strategy = strategy});
}

TEST(Dist, ChainsOfEqualLengthStartInGroups) {
  DistCase c(problem_of(4096, 2, 2), masks::full(4096, 4096), {16, 16}, "descending");
  const DistOptions options{.world = 4, .strategy = "ring", .shard = "contiguous"};
  const DistPlan dealt = c.deal(options).backward;
  for (const RankPlan& rank : dealt.ranks)
    EXPECT_EQ(launches_of(rank).size(), 2u * 2);  // of each head 128 chains and 128
  c.expect_same(options);
}

TEST(Dist, AForwardHoldsKAndVOfALaunch) {
  const Problem problem = problem_of(200);  // 16:4 heads of 16
  const DistCase c(problem, masks::full(200, 200), kTile, "descending");
  for (const std::string& strategy : strategy_names()) {
    const DistCase::Dealt dealt = c.deal({.world = 4, .strategy = strategy, .joined_heads = 1});
    int64_t ended = 0;
    for (const RankPlan& own : dealt.forward.ranks) EXPECT_EQ(own.kv_slots, 1);
    for (const RankPlan& own : dealt.backward.ranks)
      ended += own.ended.size() * (own.kv_heads.end - own.kv_heads.begin);
    EXPECT_EQ(ended, 200 * 4) << strategy;  // each sum ends once
  }
  const DistPlan ring = c.deal({.world = 4, .strategy = "ring", .joined_heads = 1}).forward;
  for (int32_t r = 0; r < 4; ++r) {
    const int64_t rows = ring.ranks[r].home_q.size(), kv_row = 2 * 16 * 2;  // K and V, bf16
    EXPECT_EQ(memory_bytes(ring, r),
              rows * 16 * (2 * 16 * 2 + 4) + rows * 4 * kv_row + 200 * kv_row);
  }
}

TEST(Dist, HeadDimsAndGroupsOnDefaultTiles) {
  struct Heads {
    int64_t q, kv;
  };
  const std::vector<int64_t> documents{300, 1, 399};
  for (const auto& [dim, dim_v] : {std::pair{64, 64}, {128, 128}, {192, 128}, {192, 192}})
    for (const auto [q, kv] : {Heads{2, 2}, Heads{8, 4}, Heads{8, 1}}) {
      Problem problem = problem_of(700, q, kv, dim);
      problem.head_dim_v = dim_v;
      for (const auto& [mask, world] : {std::pair{masks::causal(700, 700), 2},
                                        {masks::causal(700, 700), 8},
                                        {masks::causal_sliding_window(700, 700, 200), 4},
                                        {masks::full_document(documents), 4}}) {
        DistCase c(problem, mask);
        for (const std::string& strategy : strategy_names())
          if (strategy != "ulysses" || q % world == 0)
            c.expect_same({.world = world, .strategy = strategy});
      }
    }
}

TEST(Dist, GroupsThatRanksCutInTheMiddle) {
  DistCase c(problem_of(150, 12, 4), masks::causal(150, 150), kTile);
  for (const int32_t world : {6, 12}) c.expect_same({.world = world, .strategy = "ulysses"});
  c.expect_same({.world = 12, .strategy = "usp", .ulysses_size = 6});
}

TEST(Dist, OtherNumbersOfQueriesAndKeys) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16}) {
    Problem p = problem_of(0, 8);
    p.q_len = 137;
    p.kv_len = 251;
    p.dtype = dtype;
    p.head_dim_v = 24;
    p.softcap = 20;
    for (const Mask& mask : {masks::causal(137, 251), masks::full(137, 251)}) {
      DistCase c(p, mask, {24, 16});
      for (const std::string& strategy : strategy_names())
        c.expect_same({.world = 4, .strategy = strategy, .shard = "contiguous"});
    }
  }
}

TEST(Dist, BatchesPaddingAndDropout) {
  Problem p = problem_of(150, 8);
  p.batch = 3;
  p.dropout = 0.3;
  p.seed = 5;
  const std::vector<int64_t> lengths{150, 0, 71}, documents{40, 110};
  for (const Mask& mask : {masks::causal(150, 150).with_key_lengths(lengths),
                           masks::full(150, 150).with_lengths(lengths, lengths, Side::left),
                           masks::causal_document(documents)}) {
    DistCase c(p, mask, kTile);
    for (const std::string& strategy : strategy_names())
      for (const char* shard : {"zigzag", "document", "balanced"})
        c.expect_same({.world = 4, .strategy = strategy, .shard = shard});
  }
}

TEST(Dist, ForwardRowsInParts) {
  const Problem p = problem_of(700, 4, 2);
  DistCase c(p, masks::full(700, 700), kTile);
  PlanOptions options;
  options.pass = Pass::forward;
  options.order = "ascending/split";
  options.tile = kTile;
  options.machine = make_machine("cpu");
  c.forward = make_plan(p, c.tensors.mask, options);
  c.tensors.run(c.forward, c.backward);
  c.expected = c.tensors.hashes();
  for (const std::string& strategy : strategy_names())
    c.expect_same({.world = 4, .strategy = strategy});
}

TEST(Dist, ARankSendsWhatTheFormulasSay) {
  const Problem p = problem_of(2048, 8, 2);
  const DistCase c(p, masks::causal(2048, 2048), {64, 64}, "descending");
  const auto forward_bytes = [&](DistOptions options) {
    if (options.shard.empty()) options.shard = "zigzag";
    const DistPlan plan = c.deal(options).forward;
    std::vector<int64_t> sent;
    for (int32_t r = 0; r < options.world; ++r) sent.push_back(sent_bytes(plan, r));
    return sent;
  };
  // LongCA-bench A.8, in bytes of two: t h d elements of Q or O, and of K or V.
  const int64_t q = 2048 * 8 * 16 * 2, kv = 2048 * 2 * 16 * 2, lse = 2048 * 8 * 4;
  const std::vector<int64_t> ring(4, 3 * 2 * kv / 4);
  EXPECT_EQ(forward_bytes({.world = 4, .strategy = "ring"}), ring);
  EXPECT_EQ(forward_bytes({.world = 4, .strategy = "allgather"}), ring);
  // All-to-all of Q, K, V and O; LSE goes home as well.
  const std::vector<int64_t> ulysses(2, (2 * q + 2 * kv + lse) / 4);
  EXPECT_EQ(forward_bytes({.world = 2, .strategy = "ulysses"}), ulysses);
  // Two groups of two: half of each shard changes ranks inside; then half the heads' K and V of two
  // shards go to the other group.
  const std::vector<int64_t> usp(4, (2 * q + 2 * kv + lse) / 8 + 2 * kv / 4);
  EXPECT_EQ(forward_bytes({.world = 4, .strategy = "usp", .ulysses_size = 2}), usp);
  // The later half of a causal mask sees the earlier, not the other way round.
  const std::vector<int64_t> needed{2 * kv / 2, 0};
  EXPECT_EQ(forward_bytes({.world = 2, .strategy = "balanced", .shard = "contiguous"}), needed);
}

TEST(Dist, HeadsThatCannotMoveAreRefused) {
  const DistCase c(problem_of(64), masks::causal(64, 64), kTile);
  const DistOptions options{.world = 2};
  const MovedHeads good{{0, {0, 32}}, {0, 1}, 1};
  const auto what = [&](const std::vector<MovedHeads>& moved) -> std::string {
    Sharding sharding = make_sharding(c.forward, c.backward, c.tensors.mask, options);
    sharding.moved = moved;
    try {
      verify(make_dist_plan(c.forward, sharding, options));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(what({good, {{0, {0, 32}}, {1, 4}, 1}, {{0, {32, 64}}, {0, 1}, 0}}), "");
  for (const auto& [bad, named] : {std::pair{MovedHeads{{0, {0, 32}}, {0, 1}, -1}, "a rank"},
                                   {{{0, {0, 32}}, {0, 1}, 2}, "a rank"},
                                   {{{1, {0, 32}}, {0, 1}, 1}, "a batch entry"},
                                   {{{0, {0, 65}}, {0, 1}, 1}, "rows that are none"},
                                   {{{0, {0, 32}}, {0, 5}, 1}, "KV heads that are none"},
                                   {{{0, {31, 64}}, {0, 4}, 0}, "rows twice"}})
    EXPECT_NE(what({good, bad}).find(named), std::string::npos) << named << what({good, bad});
}

/// The ranks that a rank sends to, until it first takes something; and behind its first launch.
std::vector<int32_t> sent_before(const RankPlan& rank, bool behind_launch) {
  std::vector<int32_t> to;
  bool launched = false;
  for (const Step& step : rank.steps) {
    launched = launched || std::holds_alternative<Compute>(step);
    if (behind_launch != launched) continue;
    if (std::holds_alternative<Receive>(step)) break;
    if (const auto* send = std::get_if<Send>(&step)) to.push_back(send->to);
  }
  return to;
}

// All that is at home is sent before anything is taken; in rounds, so that no rank is all others'
// first.
TEST(Dist, RanksSendInRoundsBeforeTheyTake) {
  const DistCase c(problem_of(512, 8, 4), masks::full(512, 512), kTile, "descending/rows:32");
  // Queries; keys and values; sums.
  for (const char* strategy : {"ulysses", "balanced", "ring"}) {
    const bool sums = strategy == std::string("ring");
    const DistCase::Dealt dealt = c.deal({.world = 4, .strategy = strategy, .shard = "contiguous"});
    for (int32_t r = 0; r < 4; ++r)
      EXPECT_EQ(sent_before((sums ? dealt.backward : dealt.forward).ranks[r], sums),
                (std::vector<int32_t>{(r + 1) % 4, (r + 2) % 4, (r + 3) % 4}))
          << strategy;
  }
}

// Chunks go on from no other rank: no rank waits between its launches of two batch entries.
TEST(Dist, BatchEntriesStartAtOnce) {
  Problem p = problem_of(256, 4, 2);
  p.batch = 2;
  const DistCase c(p, masks::causal(256, 256), kTile, "descending/rows:32");
  for (const RankPlan& rank :
       c.deal({.world = 2, .strategy = "ring", .shard = "zigzag"}).backward.ranks) {
    size_t launches = 0;
    for (size_t i = 0; i < rank.steps.size(); ++i) {
      launches += std::holds_alternative<Compute>(rank.steps[i]) ? 1 : 0;
      EXPECT_FALSE(launches == 1 && std::holds_alternative<Receive>(rank.steps[i]));
    }
    EXPECT_EQ(launches, 2u);
  }
}

TEST(Dist, WhatDoesNotFitIsRefusedWithTheNearest) {
  const DistCase c(problem_of(100, 6, 2), masks::causal(100, 100), kTile);
  const auto nearest = [&](const DistOptions& options) -> std::string {
    try {
      c.deal(options);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.details().argument + " " + e.details().nearest;
    }
    return "nothing";
  };
  EXPECT_EQ(nearest({.world = 4, .strategy = "auto"}),
            "strategy what verbatim plan --world replay:4 --strategy auto takes");
  EXPECT_EQ(nearest({.world = 0}), "world 1");
  EXPECT_EQ(nearest({.world = 5000}), "world 4096");
  EXPECT_EQ(nearest({.world = 4, .strategy = "ulysses"}), "world 3");
  EXPECT_EQ(nearest({.world = 2, .strategy = "ulyses"}), "strategy ulysses");
  EXPECT_EQ(nearest({.world = 2, .shard = "zig"}), "shard zigzag");
  EXPECT_EQ(nearest({.world = 4, .strategy = "usp", .ulysses_size = 3}), "ulysses_size 2");
  EXPECT_EQ(nearest({.world = 4, .strategy = "ring", .ulysses_size = 2}), "ulysses_size 1");
  EXPECT_EQ(nearest({.world = 12, .strategy = "loongtrain", .ulysses_size = 2, .ring_window = 4}),
            "ring_window 3");
  EXPECT_EQ(nearest({.world = 4, .strategy = "usp", .ring_window = 2}), "ring_window 0");
  EXPECT_EQ(nearest({.world = 4, .strategy = "ring", .ulysses_size = -2}), "ulysses_size 1");
  EXPECT_EQ(nearest({.world = 4, .strategy = "usp", .ring_window = -2}), "ring_window 0");
  EXPECT_EQ(nearest({.world = 3, .strategy = "ulysses", .ulysses_size = 2}), "ulysses_size 3");
}

}  // namespace
}  // namespace verbatim::test
