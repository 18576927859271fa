// Launches of several heads: fewer of them, with the same bits, bytes and sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "dist/deal.h"
#include "dist/dist_case.h"
#include "schedule/spaced.h"
#include "verbatim/cluster.h"

namespace verbatim::test {
namespace {

using test::launches_of;

int64_t launches_of(const DistPlan& plan) {
  int64_t count = 0;
  for (const RankPlan& rank : plan.ranks) count += std::ssize(launches_of(rank));
  return count;
}

/// The parts of heads that a rank launches: of each head in the sequence of steps.
std::vector<std::pair<int32_t, std::vector<Stretch>>> parts_of(const RankPlan& rank) {
  std::vector<std::pair<int32_t, std::vector<Stretch>>> parts;
  for (const Compute* compute : launches_of(rank))
    for (const HeadPart& own : compute->heads) parts.emplace_back(own.head, own.part->stretches);
  std::ranges::stable_sort(parts, {}, [](const auto& part) { return part.first; });
  return parts;
}

TEST(Joined, LaunchesHaveTheSameBitsSumsAndBytes) {
  const std::vector<int64_t> documents{70, 16, 0, 130, 84};
  int64_t joined = 0, apart = 0;
  for (const Mask& mask : {masks::causal(200, 200), masks::causal_document(documents),
                           masks::causal_sliding_window(300, 300, 40)})
    for (const auto& [heads, kv_heads] : {std::pair{12, 4}, std::pair{12, 12}})
      for (const char* order : {"descending", "descending/split:3", "shift"}) {
        Problem problem = problem_of(mask.q_len(), heads, kv_heads);
        problem.batch = 2;
        problem.dropout = 0.25;
        DistCase c(problem, mask, kTile, order);
        for (const std::string& strategy : strategy_names()) {
          const DistOptions options{.world = 4, .strategy = strategy};
          DistOptions alone = options;
          alone.joined_heads = 1;
          const DistCase::Dealt now = c.deal(options), before = c.deal(alone);
          c.expect_same(options);
          for (int32_t r = 0; r < 4; ++r) {
            const RankPlan &own = now.backward.ranks[r], &other = before.backward.ranks[r];
            EXPECT_TRUE(parts_of(own) == parts_of(other));
            EXPECT_EQ(sent_bytes(now.backward, r), sent_bytes(before.backward, r));
            EXPECT_TRUE(parts_of(now.forward.ranks[r]) == parts_of(before.forward.ranks[r]));
            EXPECT_EQ(sent_bytes(now.forward, r), sent_bytes(before.forward, r));
          }
          joined += launches_of(now.forward) + launches_of(now.backward);
          apart += launches_of(before.forward) + launches_of(before.backward);
        }
      }
  EXPECT_LT(3 * joined, 2 * apart);  // a pipeline has one head a rank in some stages
}

TEST(Joined, HeadsStartTogetherUnlessRanksWouldWaitForEachOther) {
  struct Expected {
    int64_t length;
    int32_t world;
    const char* strategy;
    size_t launches, most;  // of rank 0; heads of a launch
  };
  for (const auto& [length, world, strategy, launches, most] :
       {Expected{2048, 2, "ulysses", 1, 4}, Expected{512, 8, "allgather", 1, 8},
        Expected{1024, 8, "allgather", 2, 4}, Expected{2032, 8, "allgather", 4, 2}}) {
    const DistCase c(problem_of(length, 8, 8, 1), masks::causal(length, length), kTile,
                     "descending");
    const DistPlan plan =
        c.deal({.world = world, .strategy = strategy, .shard = "balanced"}).backward;
    const auto found = launches_of(plan.ranks[0]);
    EXPECT_EQ(found.size(), launches) << length << " " << strategy;
    size_t heads = 0;
    for (const Compute* launch : found) heads = std::max(heads, launch->heads.size());
    EXPECT_EQ(heads, most) << length << " " << strategy;
  }
}

TEST(Joined, TasksAreInTheSequenceOfThePlan) {
  const Mask mask = masks::causal(200, 200);
  const DistCase groups(problem_of(200, 27, 9), mask, kTile, "descending/split:2");
  const DistCase half(problem_of(200, 4, 4), mask, kTile, "descending");  // of all tasks
  for (const auto& [kind, name] : {std::pair{&groups, "queue"},
                                   {&groups, "longest_first"},
                                   {&groups, "staggered:3"},
                                   {&groups, "static"},
                                   {&half, "queue"},
                                   {&half, "staggered:3"}}) {
    const DistCase& c = *kind;
    Plan plan = c.backward;
    std::vector<std::shared_ptr<const HeadOrder>> heads;
    for (const int32_t order : plan.order_of_head) heads.push_back(plan.orders[order]);
    plan.placement = make_placement(name, heads, 4);
    const int32_t each = &c == &half ? 2 : 3;  // heads of a rank
    const auto world = static_cast<int32_t>(heads.size()) / each;
    const DistOptions options{.world = world, .strategy = "ulysses"};
    const Sharding sharding = make_sharding(c.forward, plan, mask, options);
    const DistPlan dealt = make_dist_plan(plan, sharding, options);
    std::vector<PlacedTask> expected;  // of rank 1
    for (const PlacedTask& task : plan.placement.tasks)
      if (task.head / each == 1) expected.push_back(task);
    if (!plan.placement.queue)
      std::ranges::sort(expected, {}, [](auto task) { return std::pair(task.head, task.task); });
    const auto launches = launches_of(dealt.ranks[1]);
    ASSERT_EQ(launches.size(), 1u);
    EXPECT_TRUE(launches[0]->piece(plan).tasks == expected) << name;
  }
}

TEST(Joined, ChainsOfOneOrTwoHeadsOfGroupsStartApart) {
  const std::vector<int64_t> documents{96, 160};
  const Mask mask = masks::causal_document(documents);
  for (const int32_t world : {2, 4, 8}) {
    const DistCase c(problem_of(256, 24, 8), mask, kTile, "descending/split");
    const DistPlan dealt = c.deal({.world = world, .strategy = "ulysses"}).backward;
    const auto launches = launches_of(dealt.ranks[0]);
    ASSERT_EQ(launches.size(), 1u);
    const Piece piece = launches[0]->piece(dealt.whole);
    std::vector<PlacedTask> placed;
    for (const PlacedTask& task : dealt.whole.placement.tasks)
      if (task.head < 8 / world) placed.push_back(task);
    const std::vector<std::shared_ptr<const HeadOrder>> orders(
        piece.heads.size(), dealt.whole.orders[dealt.whole.order_of_head[0]]);
    EXPECT_EQ(piece.tasks == placed, world == 2) << world;
    if (world > 2) placed = spaced(orders, placed, dist::kWorkers);
    EXPECT_TRUE(piece.tasks == placed) << world;
  }
}

// Chains that rotate, cut for few workers, are whole again in a launch: two heads side by side
// would need twice as many workers.
TEST(Joined, HeadsWhoseChainsRotateStayBehindEachOther) {
  const Mask mask = masks::full(200, 200);
  const Problem problem = problem_of(200, 24, 8);
  PlanOptions options;
  options.tile = kTile;
  options.pass = Pass::forward;
  const Plan forward = make_plan(problem, mask, options);
  options.pass = Pass::backward;
  options.order = "shift";
  options.residents = 4;
  const Plan backward = make_plan(problem, mask, options);
  const auto cut = [](const Chain& chain) { return chain.continues; };
  ASSERT_TRUE(std::ranges::any_of(backward.orders[0]->chains, cut));
  ASSERT_EQ(backward.residency, 1);
  const DistOptions dealt{.world = 4, .strategy = "ulysses"};
  const DistPlan plan =
      make_dist_plan(backward, make_sharding(forward, backward, mask, dealt), dealt);
  for (const Compute* launch : launches_of(plan.ranks[0])) {
    const std::vector<PlacedTask> tasks = launch->piece(plan.whole).tasks;
    EXPECT_TRUE(std::ranges::is_sorted(tasks, {}, &PlacedTask::head));
  }
}

TEST(Joined, WithoutGroupsTheLongestTaskIsFirst) {
  const std::vector<int64_t> documents{32, 160, 64};  // of 2, 10 and 4 tiles
  const Mask mask = masks::causal_document(documents);
  const DistCase c(problem_of(256, 6, 6), mask, kTile, "descending");
  const DistPlan dealt = c.deal({.world = 3, .strategy = "ulysses"}).backward;
  std::vector<int64_t> sizes;  // of a head's tasks
  for (const int64_t tiles : {2, 10, 4})
    for (int64_t i = 1; i <= tiles; ++i) sizes.push_back(i);
  std::ranges::sort(sizes, std::greater<>());
  std::vector<std::pair<int64_t, int32_t>> expected, found;  // visits of a task, its head
  for (const int64_t size : sizes)
    for (const int32_t head : {2, 3}) expected.emplace_back(size, head);
  const auto launches = launches_of(dealt.ranks[1]);
  ASSERT_EQ(launches.size(), 1u);
  const Piece piece = launches[0]->piece(dealt.whole);
  for (const auto& [head, task] : piece.tasks) {
    const HeadOrder& order = *piece.heads[static_cast<size_t>(head - 2)].order;
    found.emplace_back(order.visits(order.chains[order.tasks[task].chain_begin]), head);
  }
  EXPECT_EQ(found, expected);
}

/// Heads that start before the first starts its last task, of a launch of 32 with a full mask.
size_t side_by_side(int64_t length) {
  const Problem problem = problem_of(length, 96, 96);
  const Mask mask = masks::full(length, length);
  PlanOptions options;
  options.tile = kTile;
  options.pass = Pass::forward;
  const Plan forward = make_plan(problem, mask, options);
  options.pass = Pass::backward;
  options.order = "descending";
  const Plan backward = make_plan(problem, mask, options);
  const DistOptions dealt{.world = 3, .strategy = "ulysses"};
  const DistPlan plan =
      make_dist_plan(backward, make_sharding(forward, backward, mask, dealt), dealt);
  const auto launches = launches_of(plan.ranks[0]);
  EXPECT_EQ(launches.size(), 1u);
  std::set<int32_t> heads;
  int64_t of_first = length / kTile.kv;
  for (const PlacedTask& task : launches[0]->piece(backward).tasks) {
    heads.insert(task.head);
    if (task.head == 0 && --of_first == 0) break;
  }
  return heads.size();
}

// Heads of n chains of n visits: 1,024 / n of them are eight chains for each of 128 workers.
TEST(Joined, SectionsKeepAllWorkersBusy) {
  EXPECT_EQ(side_by_side(64 * kTile.kv), 16u);
  EXPECT_EQ(side_by_side(100 * kTile.kv), 8u);
  EXPECT_EQ(side_by_side(200 * kTile.kv), 8u);
}

TEST(Joined, AForwardHoldsWhatItJoins) {
  // A rank has 16 rows of 5 heads: 2 chains a head and rank, so all heads are one launch.
  const DistCase all(problem_of(128, 5, 5), masks::full(128, 128), kTile);
  const DistOptions options{.world = 4, .strategy = "ring"};
  for (const RankPlan& rank : all.deal(options).forward.ranks) {
    EXPECT_EQ(rank.kv_slots, 5);
    EXPECT_EQ(launches_of(rank).size(), 1u);
  }
  DistOptions two = options;
  two.joined_heads = 2;
  for (const RankPlan& rank : all.deal(two).forward.ranks) {
    EXPECT_EQ(rank.kv_slots, 2);
    EXPECT_EQ(launches_of(rank).size(), 3u);
  }
}

TEST(Joined, AForwardThatIsSoonOverHasMoreHeads) {
  // 512 chains a head and rank. All keys: each of 128 workers has 256 visits of a head; then 8.
  for (const auto& [window, heads] : {std::pair{8192, 2u}, std::pair{16, 4u}}) {
    const DistCase c(
        problem_of(1024, 64, 4, 1),
        window > 1024 ? masks::full(1024, 1024) : masks::causal_sliding_window(1024, 1024, window),
        kTile);
    size_t most = 0;
    for (const RankPlan& rank : c.deal({.world = 2, .strategy = "ring"}).forward.ranks)
      for (const Compute* launch : launches_of(rank)) most = std::max(most, launch->heads.size());
    EXPECT_EQ(most, heads) << window;
  }
}

// Sums of heads that start later take the place of those that are at home by then.
TEST(Joined, HeadsThatKeepARankBusyTakeTurns) {
  const auto blocks = [](int64_t length) {
    const Problem problem = problem_of(length, 64, 8, 128);
    const Mask mask = masks::full(length, length);
    const Plan forward = make_plan(problem, mask, {.pass = Pass::forward});
    const Plan backward = make_plan(problem, mask, {.order = "descending/rows:4096"});
    const DistOptions ranks{.world = 2, .strategy = "ring", .shard = "contiguous"};
    const RankPlan dealt =
        make_dist_plan(backward, make_sharding(forward, backward, mask, ranks), ranks).ranks[0];
    return std::pair(launches_of(dealt).size(), dealt.blocks);
  };
  // KV tiles times heads: what comes takes the place of what went.
  EXPECT_EQ(blocks(8192), std::pair(size_t{1}, 64 * 8));
  const auto [launches, sums] = blocks(65536);
  EXPECT_GT(launches, 1u);
  EXPECT_LT(sums, 512 * 8 * 8);
}

TEST(Joined, ALaunchTakesAsLongAsItsChainsDealtAtOnce) {
  // Two heads of 3 chains of 3 visits each, on 4 workers that take a second a visit.
  Machine machine = Machine::paper(1, 0, 4);
  const DistCase c(problem_of(48, 2, 2), masks::full(48, 48), kTile, "descending");
  DistOptions options{.world = 1};
  const double visit =
      launch_times(c.deal({.world = 1, .joined_heads = 1}).backward, machine)[0][0];
  const LaunchTimes together = launch_times(c.deal(options).backward, machine);
  ASSERT_EQ(together[0].size(), 1u);
  EXPECT_DOUBLE_EQ(together[0][0], 2 * visit);  // 6 chains: two rounds; each head alone: one
  machine.workers = 6;
  EXPECT_DOUBLE_EQ(launch_times(c.deal(options).backward, machine)[0][0], visit);
}

}  // namespace
}  // namespace verbatim::test
