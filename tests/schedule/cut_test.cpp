// Orders cut in pieces for few workers: the same sums, without a wait for a later task.
#include "schedule/orders/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <tuple>

#include "plan/walk.h"
#include "plan/whole_chains.h"
#include "plans.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

/// What fixes the bits, visit by visit: the KV tiles that enter each row, by addend, and the rows
/// of each query head that enter each KV tile, in sequence.
struct Sums {
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> rows;      // (q_head, row, addend): tile
  std::map<int32_t, std::vector<std::pair<int32_t, int32_t>>> tiles;  // tile: (q_head, row)
  bool operator==(const Sums&) const = default;
};

Sums sums_of(const HeadOrder& order) {
  Sums sums;
  for (const Task& task : order.tasks)
    for_each_visit(order, task, [&](const Chain& chain, const Run& run, int32_t i) {
      sums.rows[{run.q_head, run.tile(i), run.addend_of(i)}] = chain.tile;
      sums.tiles[chain.tile].emplace_back(run.q_head, run.tile(i));
    });
  return sums;
}

TEST(Cut, KeepsEverySumAndNeedsOneResident) {
  const std::vector<int64_t> documents{1024, 700, 1, 0, 323};
  for (const Mask& mask : {masks::full(2048, 2048), masks::full(1000, 500), masks::full(400, 3000),
                           masks::full_document(documents)}) {
    for (const int64_t q_heads : {2, 8}) {
      const Problem problem = problem_of(mask, q_heads, 2);
      PlanOptions options;
      options.order = "shift";
      options.placement = "queue";  // auto would cut what rotates through a group
      options.machine.workers = 132;
      const Plan whole = make_plan(problem, mask, options);
      EXPECT_GT(whole.residency, 3);
      options.residents = 3;
      const Plan cut = make_plan(problem, mask, options);
      EXPECT_EQ(cut.residency, 1) << mask.name();
      EXPECT_EQ(cut.placement.workers, 132);
      EXPECT_EQ(cut.fingerprint(), whole.fingerprint());
      EXPECT_GT(cut.orders[0]->chains.size(), whole.orders[0]->chains.size());
      EXPECT_EQ(cut.orders[0]->runs, whole.orders[0]->runs);
      EXPECT_EQ(sums_of(*cut.orders[0]), sums_of(*whole.orders[0]));
      EXPECT_EQ(plan_from_json(to_json(cut)).fingerprint(), whole.fingerprint());
      options.machine.workers = 3;  // as of a share of a GPU
      const Plan small = make_plan(problem, mask, options);
      EXPECT_EQ(small.placement.workers, 3);
      EXPECT_EQ(small.residency, 1);
      EXPECT_EQ(small.fingerprint(), whole.fingerprint());
      options.machine.workers = 132;
      options.residents = whole.residency;
      EXPECT_EQ(make_plan(problem, mask, options).orders[0]->chains, whole.orders[0]->chains);
    }
  }
}

TEST(Cut, WalkedGroupsWrapOncePerQueryHead) {
  const Mask mask = masks::full(1024, 1024);
  PlanOptions options;
  options.order = "shift";
  options.workers = 1;
  const Plan plan = make_plan(problem_of(mask, 4, 1), mask, options);
  std::vector<int32_t> pieces(8);
  for (const Chain& chain : plan.orders[0]->chains) ++pieces[chain.tile];
  // Four query heads: at each a chain wraps, but for the first, which starts at row 0, and begins
  // the next in the same piece.
  EXPECT_EQ(pieces, (std::vector<int32_t>{4, 5, 5, 5, 5, 5, 5, 5}));
}

TEST(Cut, IsRefusedWhereARunWouldHaveToBeCut) {
  PlanOptions options;
  options.order = "shift";
  options.tile = {8, 16};
  options.workers = 1;
  const Mask mask = masks::uniform_block_sparse(40, 40, 16, 16, 0.8, 1, 1);
  try {
    make_plan(problem_of(mask, 4, 2), mask, options);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.details().argument, "workers");
    EXPECT_EQ(e.details().got, "1");
    EXPECT_EQ(e.details().nearest, "right_to_left");
  }
  options.workers = 0;
  options.residents = 1;  // a CPU parks workers that wait
  EXPECT_GT(make_plan(problem_of(mask, 4, 2), mask, options).residency, 1);
  EXPECT_EQ(
      order::cut_at_waits(*make_order(Pass::forward, "descending", square_tiles(false, 4), 1)),
      nullptr);
}

TEST(Cut, OfEveryOrderAndMaskKeepsTheBits) {
  constexpr int64_t n = 200;
  const std::vector<int64_t> documents{70, 1, 0, 129}, prefix{20};
  const std::vector<Mask> masks{masks::full(n, n),
                                masks::full(90, n),
                                masks::causal(n, n),
                                masks::full_sliding_window(n, n, 40),
                                masks::causal_sliding_window(n, n, 40),
                                masks::full_document(documents),
                                masks::causal_document(documents),
                                masks::share_question(documents),
                                masks::causal_blockwise(documents),
                                masks::global_sliding(n, 20, 30),
                                masks::prefix_lm_causal(n, 70),
                                masks::prefix_lm_document(documents, prefix),
                                masks::block_causal_document(documents, 30),
                                masks::uniform_block_sparse(n, n, 24, 40, 0.4, 3, 1)};
  std::vector<std::string> names{"descending/rows:64", "descending/split/rows:64",
                                 "right_to_left/even:2/rows:64", "right_to_left/even:2"};
  for (const OrderInfo& info : orders())
    if (info.pass == Pass::backward)
      for (const char* suffix : {"", "/split"}) names.push_back(info.name + std::string(suffix));
  int whole = 0, in_pieces = 0, parts_in_pieces = 0;
  for (const Mask& mask : masks) {
    const auto tiles = std::make_shared<const TileMap>(mask.variants().front(), TileShape{8, 16});
    for (const std::string& name : names) {
      SCOPED_TRACE(mask.name() + " by " + name);
      const auto order = make_order(Pass::backward, name, tiles, 2);
      const auto cut = order::cut_at_waits(*order);
      ASSERT_NE(cut, nullptr);
      ++(cut->chains.size() > order->chains.size() ? in_pieces : whole);
      parts_in_pieces += std::ranges::any_of(cut->chains, &Chain::apart);
      EXPECT_EQ(sums_of(*cut), sums_of(*order));
      const Plan plan = plan_of(cut, 2, "queue", 3);
      EXPECT_EQ(verify(plan), 1);
      EXPECT_EQ(plan.fingerprint(), plan_of(order, 2, "queue", 3).fingerprint());
      std::vector<Chain> read = cut->chains;
      for (Chain& chain : read) chain.pauses = chain.apart = false;
      mark_pieces(read);  // what the JSON form leaves out
      EXPECT_EQ(read, cut->chains);
    }
  }
  EXPECT_GT(whole, 50);
  EXPECT_GT(in_pieces, 100);
  EXPECT_GT(parts_in_pieces, 50);
}

// Random blocks, padded or not, in random tiles.
TEST(Cut, OfRandomBlocksKeepsTheBits) {
  std::mt19937 random(41);
  const auto between = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  constexpr std::array orders{"matched",         "shift",         "symmetric_shift",
                              "chunked_shift",   "right_to_left", "matched/split",
                              "matched/split:2", "shift/split",   "symmetric_shift/split"};
  int refused = 0;
  for (int number = 0; number < 900; ++number) {
    const int64_t q_len = between(1, 300), kv_len = between(1, 300);
    Mask mask = masks::uniform_block_sparse(q_len, kv_len, between(4, 40), between(4, 40),
                                            0.1 * between(1, 10), random(), 1);
    if (between(0, 2) == 0) {
      const std::vector<int64_t> q_lengths{between(0, static_cast<int>(q_len))};
      const std::vector<int64_t> kv_lengths{between(0, static_cast<int>(kv_len))};
      mask = mask.with_lengths(q_lengths, kv_lengths);
    }
    const TileShape shape{1 << between(1, 4), 1 << between(2, 5)};
    const auto tiles = std::make_shared<const TileMap>(mask.variants().front(), shape);
    const char* name = orders[number % orders.size()];
    const int32_t group = between(1, 4);
    SCOPED_TRACE(testing::Message() << "problem " << number << " by " << name);
    const auto order = make_order(Pass::backward, name, tiles, group);
    const auto cut = order::cut_at_waits(*order);
    if (!cut) {  // a run would have to be cut: never of those that "auto" chooses for blocks
      ++refused;
      EXPECT_FALSE(std::string_view(name).starts_with("matched"));
      continue;
    }
    EXPECT_EQ(sums_of(*cut), sums_of(*order));
    const Plan plan = plan_of(cut, 2, "queue", 3);
    EXPECT_EQ(verify(plan), 1);
    EXPECT_EQ(plan.fingerprint(), plan_of(order, 2, "queue", 3).fingerprint());
  }
  EXPECT_LT(refused, 100);
}

TEST(Cut, LeavesAnOrderWithoutLateWaitsWhole) {
  const auto order = make_order(Pass::backward, "descending", square_tiles(true, 6), 2);
  const auto cut = order::cut_at_waits(*order);
  ASSERT_NE(cut, nullptr);
  EXPECT_EQ(cut->chains, order->chains);
  EXPECT_EQ(cut->tasks, order->tasks);
}

TEST(Cut, RunsInSimulatedTimeAsTheGraphSays) {
  const auto order = make_order(Pass::backward, "shift", square_tiles(false, 12), 1);
  const auto cut = order::cut_at_waits(*order);
  ASSERT_NE(cut, nullptr);
  for (const int32_t workers : {1, 2, 5, 24}) {
    for (const char* placement : {"queue", "static"}) {
      const Plan plan = plan_of(cut, 3, placement, workers);
      verify(plan);
      const Machine machine = Machine::paper(2, 1, workers);
      const double makespan = simulate(plan, machine).makespan;
      EXPECT_EQ(make_dag(plan, machine).critical_path(), makespan) << workers << placement;
      EXPECT_GE(makespan, 3 * 12 * 12 * 3 / workers);
    }
  }
}

TEST(Cut, APieceMustFollowTheOneItContinues) {
  const auto cut =
      order::cut_at_waits(*make_order(Pass::backward, "shift", square_tiles(false, 4), 1));
  ASSERT_NE(cut, nullptr);
  const auto broken = [&](auto change) {
    auto order = std::make_shared<HeadOrder>(*cut);
    change(*order);
    return plan_of(order, 1, "queue", 4);
  };
  EXPECT_EQ(verify(broken([](HeadOrder&) {})), 1);
  const auto piece = std::ranges::find_if(cut->chains, &Chain::continues) - cut->chains.begin();
  const auto at = [&](HeadOrder& o) -> Chain& { return o.chains[piece]; };
  EXPECT_THROW(verify(broken([&](HeadOrder& o) { o.chains[0].continues = true; })), Error);
  EXPECT_THROW(verify(broken([&](HeadOrder& o) { at(o).addend = 0; })), Error);
  EXPECT_THROW(verify(broken([&](HeadOrder& o) { at(o).pauses = !at(o).pauses; })), Error);
  EXPECT_THROW(verify(broken([&](HeadOrder& o) { at(o).apart = true; })), Error);
  // Pieces issued the wrong way round wait for each other for ever.
  EXPECT_THROW(verify(broken([&](HeadOrder& o) {
                 Plan plan = plan_of(std::make_shared<HeadOrder>(o), 1, "static", 1);
                 plan.placement.tasks.edit([](auto& tasks) { std::ranges::reverse(tasks); });
                 verify(plan);
               })),
               Error);
}

TEST(Cut, PiecesOfAPartPassOnWhatLiesApart) {
  const auto cut =
      order::cut_at_waits(*make_order(Pass::backward, "shift/split", square_tiles(false, 4), 2));
  ASSERT_NE(cut, nullptr);
  const auto first = std::ranges::find_if(cut->chains, &Chain::apart);
  ASSERT_NE(first, cut->chains.end());
  EXPECT_TRUE(first->pauses && !first->continues && first->addend > 0);
  const auto together = [&](bool apart) {
    auto order = std::make_shared<HeadOrder>(*cut);
    for (Chain& chain : order->chains)
      if (chain.tile == first->tile && chain.addend >= first->addend) chain.apart = apart;
    return plan_of(order, 1, "queue", 4);
  };
  EXPECT_EQ(verify(together(true)), 1);
  EXPECT_THROW(verify(together(false)), Error);  // would add to what the part before has left
}

}  // namespace
}  // namespace verbatim::test
