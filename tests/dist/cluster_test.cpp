// Dealt plans in simulated time: closed forms, what no cluster can break, and the choice.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "dist/dist_case.h"
#include "verbatim/cluster.h"

namespace verbatim::test {
namespace {

constexpr double kBytesPerSecond = 1e9;  // of LinkSpeed{1}

/// A visit takes a second on each of `workers`, copies take none.
Machine seconds_a_visit(int32_t workers = 1) {
  Machine machine = Machine::paper(1, 0, workers);
  machine.clock_ghz = 1e-9;
  return machine;
}

Cluster cluster_of(LinkSpeed inside, LinkSpeed between, int32_t ranks_per_node = 1) {
  return {"test", seconds_a_visit(), ranks_per_node, inside, between};
}

struct Dealt {
  DistPlan plan;
  LaunchTimes launches;
  DistPlan overlapped_plan;

  DistSimulation on(const Cluster& cluster, Transfers transfers = Transfers::in_turn,
                    Timeline* timeline = nullptr) const {
    if (transfers == Transfers::in_turn)
      return simulate(plan, cluster, launches, transfers, timeline);
    return simulate(overlapped_plan, cluster, launch_times(overlapped_plan, cluster.machine),
                    transfers, timeline);
  }
};

Plan plan_of(const Problem& problem, const Mask& mask, Pass pass) {
  PlanOptions options;
  options.pass = pass;
  options.tile = {16, 16};
  if (pass == Pass::backward) options.order = "descending";
  options.machine = make_machine("cpu");
  return make_plan(problem, mask, options);
}

Problem problem_of(int64_t length, int64_t q_heads = 1, int64_t kv_heads = 1) {
  return {.q_heads = q_heads,
          .kv_heads = kv_heads,
          .q_len = length,
          .kv_len = length,
          .head_dim = 16,
          .head_dim_v = 16,
          .dtype = Dtype::bf16};
}

Dealt deal(const Problem& problem, const Mask& mask, Pass pass, const DistOptions& options) {
  const Plan forward = plan_of(problem, mask, Pass::forward);
  const Plan backward = plan_of(problem, mask, Pass::backward);
  const Sharding sharding = make_sharding(forward, backward, mask, options);
  const Plan& whole = pass == Pass::forward ? forward : backward;
  DistPlan plan = make_dist_plan(whole, sharding, options);
  LaunchTimes launches = launch_times(plan, seconds_a_visit());
  return {std::move(plan), std::move(launches),
          make_dist_plan(whole, sharding, overlapped_of(options))};
}

DistOptions contiguous(int32_t world, const char* strategy) {
  return {.world = world, .strategy = strategy, .shard = "contiguous"};
}

TEST(Cluster, TwoRanksAndOneTransfer) {
  // 2 x 2 tiles of a causal mask: rank 0 has one visit, rank 1 three, for one of which K and V come
  // from rank 0: 128 rows of 16 + 16 elements of 2 bytes.
  const Dealt dealt =
      deal(problem_of(256), masks::causal(256, 256), Pass::forward, contiguous(2, "balanced"));
  const double visits = 8 * 9 / 2, takes = 128 * 32 * 2 / kBytesPerSecond;
  ASSERT_EQ(dealt.launches, (LaunchTimes{{visits}, {8 * 8 + visits}}));
  const DistSimulation found = dealt.on(cluster_of({1, 7e6}, {1, 3e6}));
  EXPECT_DOUBLE_EQ(found.makespan, takes + 3 + 64 + visits);
  EXPECT_DOUBLE_EQ(found.ranks[0].sends, takes);
  EXPECT_DOUBLE_EQ(found.ranks[0].exposed, found.makespan - visits);
  EXPECT_NEAR(found.ranks[1].exposed, takes + 3, 1e-9);
  // In one node the other link carries it.
  EXPECT_DOUBLE_EQ(dealt.on(cluster_of({1, 7e6}, {1, 3e6}, 2)).makespan, takes + 7 + 64 + visits);
  // Free links: the rank with the most to do.
  EXPECT_DOUBLE_EQ(dealt.on(cluster_of({}, {})).makespan, 64 + visits);
}

TEST(Cluster, MessagesOfALinkFollowEachOther) {
  // Each of four ranks sends its K and V to three others, and takes three, one after another.
  const Dealt dealt =
      deal(problem_of(512), masks::full(512, 512), Pass::forward, contiguous(4, "allgather"));
  const double takes = 128 * 32 * 2 / kBytesPerSecond, visits = 8 * 32;
  const DistSimulation found = dealt.on(cluster_of({1, 0}, {1, 0}), Transfers::overlapped);
  EXPECT_NEAR(found.makespan, 3 * takes + visits, 1e-9);
  for (const RankTime& rank : found.ranks) EXPECT_NEAR(rank.sends, 3 * takes, 1e-12);
}

TEST(Cluster, RanksSendBeforeTheyTake) {
  // In turn, too, K and V go round all ranks at once: as many hops as there are others.
  const Dealt dealt =
      deal(problem_of(512), masks::full(512, 512), Pass::forward, contiguous(4, "ring"));
  const double takes = 128 * 32 * 2 / kBytesPerSecond, visits = 8 * 32;
  EXPECT_NEAR(dealt.on(cluster_of({1, 0}, {1, 0})).makespan, 3 * takes + visits, 1e-9);
}

TEST(Cluster, OverlappedHeadsHideTransfers) {
  // Two heads: K and V of the second travel while the first computes, both ways at once. In turn,
  // they come behind it.
  DistOptions options = contiguous(2, "balanced");
  options.joined_heads = 1;
  const Dealt dealt = deal(problem_of(256, 2, 2), masks::full(256, 256), Pass::forward, options);
  const double visits = 8 * 16;
  const LinkSpeed slow{128 * 32 * 2 / 100.0 / 1e9, 0};  // 100 s a head
  EXPECT_NEAR(dealt.on(cluster_of(slow, slow)).makespan, 2 * (100 + visits), 1e-6);
  EXPECT_NEAR(dealt.on(cluster_of(slow, slow), Transfers::overlapped).makespan, 100 + 2 * visits,
              1e-6);
}

TEST(Cluster, CopiesTakeTheirBytesThroughMemory) {
  Cluster cluster = cluster_of({}, {});
  const Dealt dealt =
      deal(problem_of(256), masks::full(256, 256), Pass::forward, contiguous(1, "balanced"));
  const double before = dealt.on(cluster).makespan;
  cluster.machine.bandwidth = 1;  // byte a second, read and written: K and V to the work space
  EXPECT_DOUBLE_EQ(dealt.on(cluster).makespan, before + 2 * 256 * 32 * 2);
}

TEST(Cluster, NothingBeginsBeforeTheHostHasAskedForIt) {
  // As in the first test. Rank 1 asks for a message, two copies (K and V that come, its own) and a
  // launch.
  const Dealt dealt =
      deal(problem_of(256), masks::causal(256, 256), Pass::forward, contiguous(2, "balanced"));
  Cluster cluster = cluster_of({}, {});
  const double idle = dealt.on(cluster).makespan, visits = 8 * 9 / 2;
  EXPECT_DOUBLE_EQ(idle, 8 * 8 + visits);
  cluster.call_us = 10e6;
  EXPECT_DOUBLE_EQ(dealt.on(cluster).makespan, 4 * 10 + idle);
  EXPECT_DOUBLE_EQ(dealt.on(cluster, Transfers::overlapped).makespan, idle);
  cluster.peer_call_us = 3e6;
  EXPECT_DOUBLE_EQ(dealt.on(cluster).makespan, 4 * 10 + idle);
  EXPECT_DOUBLE_EQ(dealt.on(cluster, Transfers::overlapped).makespan, 4 * 3 + idle);
  // It asks ahead: of 24 calls for four heads, those for the first two, which come before a launch,
  // count alone.
  DistOptions options = contiguous(2, "ring");
  options.joined_heads = 1;
  const Dealt heads = deal(problem_of(256, 4, 4), masks::causal(256, 256), Pass::forward, options);
  cluster.call_us = 1e6;
  const double hidden = heads.on(cluster).makespan - heads.on(cluster_of({}, {})).makespan;
  EXPECT_GE(hidden, 4);
  EXPECT_LE(hidden, 12);
  // Additions that follow each other are one call: with twice the KV tiles there are twice as many.
  const auto calls = [&](int64_t length) {
    const Dealt backward = deal(problem_of(length), masks::full(length, length), Pass::backward,
                                contiguous(2, "ring"));
    return backward.on(cluster).makespan - backward.on(cluster_of({}, {})).makespan;
  };
  cluster.call_us = 1e12;  // longer than all launches
  EXPECT_NEAR(calls(512) / calls(256), 1, 0.01);
}

TEST(Cluster, WorkersTakeChainsInTurn) {
  const Problem problem = problem_of(320);
  const Mask mask = masks::full(320, 320);  // 20 chains of 20 visits
  const Plan plan = plan_of(problem, mask, Pass::backward);
  EXPECT_DOUBLE_EQ(device_seconds(plan, seconds_a_visit(8)), 3 * 20);
  Machine machine = seconds_a_visit(8);
  machine.launch = 5;
  machine.chain_start = 2;
  EXPECT_DOUBLE_EQ(device_seconds(plan, machine), 5 + 3 * 22);
  // One rank makes the same in one launch.
  const Sharding sharding =
      make_sharding(plan_of(problem, mask, Pass::forward), plan, mask, contiguous(1, "balanced"));
  const DistPlan dealt = make_dist_plan(plan, sharding, contiguous(1, "balanced"));
  EXPECT_EQ(launch_times(dealt, machine), (LaunchTimes{{5 + 3 * 22}}));
}

/// A problem, a dealing and a cluster from a seed.
struct Drawn {
  Dealt dealt;
  Cluster cluster;

  explicit Drawn(uint32_t seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t end) { return static_cast<int32_t>(random() % end); };
    const int64_t kv_heads = 1 + below(3), length = 200 + below(1800);
    const Problem problem = problem_of(length, kv_heads * (1 + below(4)), kv_heads);
    const std::vector<int64_t> documents{length / 3, length - length / 3};
    const std::vector<Mask> all{masks::full(length, length), masks::causal(length, length),
                                masks::causal_document(documents)};
    const std::vector<std::string> strategies = strategy_names(), shards = shard_names();
    DistOptions options;
    options.strategy = strategies[below(6)];
    options.shard = shards[below(4)];
    options.world =
        options.strategy == "ulysses" ? static_cast<int32_t>(problem.q_heads) : 1 + below(8);
    dealt = deal(problem, all[below(3)], below(2) ? Pass::forward : Pass::backward, options);
    const double scale = 1e-6;  // 1 kB a second: about as long as visits
    cluster = cluster_of({scale * (1 + below(20)), below(9) * 1e6},
                         {scale * (1 + below(20)), below(9) * 1e6}, 1 + below(4));
    cluster.machine.bandwidth = below(2) * 1e4;
  }
};

TEST(Cluster, WhatNoClusterCanBreak) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Drawn drawn(seed);
    Timeline timeline;
    const DistSimulation in_turn = drawn.dealt.on(drawn.cluster, Transfers::in_turn, &timeline);
    const DistSimulation overlapped = drawn.dealt.on(drawn.cluster, Transfers::overlapped);
    // In turn a message does not wait until it is asked for.
    EXPECT_LE(overlapped.makespan, in_turn.makespan * 1.01);
    // The timeline's events say the same, and none of a worker covers another.
    ASSERT_EQ(timeline.names.size(), 2 * in_turn.ranks.size());
    std::vector<double> busy(timeline.names.size()), end(timeline.names.size());
    for (const TimelineEvent& event : timeline.events) {
      const auto worker = static_cast<size_t>(event.worker);
      EXPECT_GE(event.begin, end[worker] * (1 - 1e-12));
      end[worker] = event.end;
      const bool sends = worker % 2 == 1;
      if (sends || event.kind == TimelineEvent::Kind::compute ||
          event.kind == TimelineEvent::Kind::reduce)
        busy[worker] += (event.end - event.begin) * 1e-6;
    }
    for (size_t r = 0; r < in_turn.ranks.size(); ++r) {
      const RankTime& rank = in_turn.ranks[r];
      EXPECT_NEAR(rank.compute, busy[2 * r], 1e-6 * in_turn.makespan);
      EXPECT_NEAR(rank.sends, busy[2 * r + 1], 1e-6 * in_turn.makespan);
      EXPECT_NEAR(rank.compute + rank.exposed, in_turn.makespan, 1e-9 * in_turn.makespan);
      EXPECT_GE(rank.exposed, -1e-9);
      EXPECT_GE(overlapped.ranks[r].exposed, -1e-9);
    }
    // Faster links make nothing later.
    for (LinkSpeed* link : {&drawn.cluster.inside, &drawn.cluster.between}) {
      link->gb_per_s *= 3;
      EXPECT_LE(drawn.dealt.on(drawn.cluster).makespan, in_turn.makespan * (1 + 1e-12));
      EXPECT_LE(drawn.dealt.on(drawn.cluster, Transfers::overlapped).makespan,
                overlapped.makespan * (1 + 1e-12));
    }
  }
}

TEST(Cluster, AutoTakesTheFastestAndNoOtherOrder) {
  const Problem problem = problem_of(1024, 6, 2);
  const Mask mask = masks::causal(1024, 1024);
  const Plan forward = plan_of(problem, mask, Pass::forward);
  const Plan backward = plan_of(problem, mask, Pass::backward);
  for (const LinkSpeed& link : {LinkSpeed{1e-3, 0}, LinkSpeed{1e-7, 0}, LinkSpeed{0, 3e9}}) {
    const std::vector<Trial> trials = try_strategies(
        forward, backward, mask, {.world = 4, .ulysses_size = 2}, cluster_of(link, link));
    ASSERT_EQ(trials.size(), strategies().size());
    const Trial& best = fastest(trials);
    EXPECT_TRUE(best.refused.empty());
    for (const Trial& trial : trials) {
      if (trial.options.strategy == "ulysses") {
        EXPECT_NE(trial.refused.find("nearest: 3"), std::string::npos) << trial.refused;
        continue;
      }
      EXPECT_TRUE(trial.refused.empty()) << trial.refused;
      EXPECT_LE(best.in_turn(), trial.in_turn());
      EXPECT_EQ(trial.options.ulysses_size,
                trial.options.strategy == "usp" || trial.options.strategy == "loongtrain" ? 2 : 1);
      // What was tried can be dealt as it stands, in the same orders.
      const Sharding sharding = make_sharding(forward, backward, mask, trial.options);
      const DistPlan again = make_dist_plan(backward, sharding, trial.options);
      EXPECT_EQ(again.whole.fingerprint(), backward.fingerprint());
      EXPECT_EQ(again.options, trial.options);
    }
  }
}

TEST(Cluster, TimesOfOtherLaunchesAreRefused) {
  Dealt dealt = deal(problem_of(256), masks::full(256, 256), Pass::backward, contiguous(2, "ring"));
  const Cluster cluster = cluster_of({}, {});
  EXPECT_NO_THROW(dealt.on(cluster));
  dealt.launches[1].push_back(1);
  EXPECT_THROW(dealt.on(cluster), Error);
  dealt.launches[1].resize(dealt.launches[1].size() - 2);
  EXPECT_THROW(dealt.on(cluster), Error);
  dealt.launches.pop_back();
  EXPECT_THROW(dealt.on(cluster), Error);
}

TEST(Cluster, ARankThatWaitsForeverIsTold) {
  Dealt dealt = deal(problem_of(256), masks::full(256, 256), Pass::forward, contiguous(2, "ring"));
  std::erase_if(dealt.plan.ranks[0].steps,
                [](const Step& step) { return std::holds_alternative<Send>(step); });
  try {
    dealt.on(cluster_of({}, {}));
    FAIL() << "a message that never comes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_plan);
    EXPECT_NE(std::string(error.what()).find("waits forever"), std::string::npos) << error.what();
  }
}

TEST(Cluster, Files) {
  for (const char* name : {"h200x8", "h200x8-hdr"}) {
    const Cluster cluster = make_cluster(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_EQ(cluster.machine, make_machine("h200"));
    EXPECT_GT(cluster.peer_call_us, 0);
    EXPECT_GT(cluster.call_us, cluster.peer_call_us);
    EXPECT_EQ(cluster_from_json(to_json(cluster)), cluster);
  }
  const auto refused = [](const std::string& text) -> std::string {
    try {
      cluster_from_json(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.details().nearest;
    }
    return "nothing";
  };
  EXPECT_EQ(refused(R"({"machin": "h200"})"), "machine");
  EXPECT_EQ(refused(R"({"machine": "h20"})"), "h200");
  EXPECT_EQ(refused(R"({"inside": {"gbps": 1}})"), "gb_per_s");
  EXPECT_EQ(refused(R"({"between": {"latency_us": -1}})"), "0");
  EXPECT_EQ(refused(R"({"ranks_per_node": 0})"), "1");
  EXPECT_EQ(refused(R"({"call_us": -1})"), "0");
  EXPECT_EQ(refused(R"({"peer_call_us": -1})"), "0");
  EXPECT_EQ(cluster_from_json(R"({"call_us": 7})").peer_call_us, 7);
  EXPECT_EQ(cluster_from_json(R"({"peer_call_us": 3})").call_us, 0);
  EXPECT_EQ(refused(R"({"call_us": 1e308})"), "1e9");  // times would add up to infinity
  EXPECT_EQ(refused(R"({"between": {"latency_us": 1e300}})"), "1e9");
  EXPECT_EQ(refused(R"({"between": {"gb_per_s": 1e-320}})"), "1e-9");
  EXPECT_EQ(refused(R"({"machine": {"clock_ghz": 0}})"), "1e-9");
  EXPECT_EQ(refused(R"({"machine": {"bandwidth": 1e-320}})"), "1e-9");
  EXPECT_EQ(refused("[]"), "{}");
  EXPECT_NE(refused(R"({"inside": 3})"), "nothing");
  EXPECT_THROW(make_cluster("h200x9"), Error);
}

}  // namespace
}  // namespace verbatim::test
