#include "verbatim/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "contract/contract.h"
#include "support/corpus.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

// Two KV tiles by two query tiles, all visible, ascending: written by hand, then broken by hand.
Plan two_by_two() {
  const HeadMask mask{4, 4, {{0, 4, 0, 4}}, {}, {}};
  HeadOrder order;
  order.name = "by hand";
  order.tiles = std::make_shared<const TileMap>(mask, TileShape{2, 2});
  order.runs = {{.first = 0, .count = 2, .addend = 0}, {.first = 0, .count = 2, .addend = 1}};
  order.chains = {{.tile = 0, .run_begin = 0, .run_end = 1},
                  {.tile = 1, .run_begin = 1, .run_end = 2}};
  order.tasks = {{0, 1}, {1, 2}};
  order.row_addends = {2, 2};
  Plan plan;
  plan.arithmetic = "cpu.2";
  plan.problem = {.q_len = 4, .kv_len = 4};
  plan.orders = {std::make_shared<const HeadOrder>(order)};
  plan.order_of_head = {0};
  plan.placement = {.name = "queue", .workers = 2, .worker_begin = {}, .tasks = {{0, 0}, {0, 1}}};
  return plan;
}

Plan broken(const std::function<void(HeadOrder&)>& breaks) {
  Plan plan = two_by_two();
  HeadOrder order = *plan.orders[0];
  breaks(order);
  plan.orders[0] = std::make_shared<const HeadOrder>(order);
  return plan;
}

void expect_fault(const Plan& plan, const std::string& text) {
  try {
    verify(plan);
    ADD_FAILURE() << "accepted, expected: " << text;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_plan);
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

TEST(TileOf, IsTheFirstOrdersElseTheContracts) {
  Plan plan = two_by_two();
  EXPECT_EQ(tile_of(plan), (TileShape{2, 2}));
  plan.orders.clear();
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    plan.pass = pass;
    EXPECT_EQ(tile_of(plan), contract::tile(pass, plan.problem));
  }
}

TEST(Verify, AcceptsAnOrderThatCountsUp) {
  const Plan plan = two_by_two();
  EXPECT_EQ(verify(plan), 1);
  EXPECT_EQ(plan.orders[0]->visits(), 4);
}

TEST(Verify, NamesATileVisitedTwice) {
  expect_fault(broken([](HeadOrder& o) {
                 o.runs.push_back({.first = 1, .count = 1, .addend = 2});
                 o.chains[1].run_end = 3;
               }),
               "tile (head 0, q_head 0, q_tile 1, kv_tile 1) is visited twice");
}

TEST(Verify, NamesATileNeverVisited) {
  expect_fault(broken([](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[1].count = 1; }); }),
               "tile (head 0, q_head 0, q_tile 1, kv_tile 1) is never visited");
}

TEST(Verify, NamesAnEmptyTile) {
  Plan plan = two_by_two();
  HeadOrder order = *plan.orders[0];
  const HeadMask lower{4, 4, {{0, 4, 0, 4, Slice::kNoLow, 0}}, {}, {}};
  order.tiles = std::make_shared<const TileMap>(lower, TileShape{2, 2});
  // The diagonal tile is cut by the slice, the one below it is full; column 1 has row 1 only.
  const TileRun diagonal = order.tiles->column(0)[0];
  order.runs = {{.first = 0,
                 .count = 1,
                 .slice_begin = diagonal.slice_begin,
                 .slice_count = diagonal.slice_count},
                {.first = 1, .count = 1},
                {.first = 0, .count = 1, .addend = 1}};
  order.chains[0].run_end = 2;
  order.chains[1] = {.tile = 1, .run_begin = 2, .run_end = 3};
  plan.orders[0] = std::make_shared<const HeadOrder>(order);
  expect_fault(plan, "tile (head 0, q_head 0, q_tile 0, kv_tile 1) is empty but visited");
}

TEST(Verify, NamesATileWithForeignSlices) {
  expect_fault(
      broken([](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[0].slice_count = 1; }); }),
      "tile (head 0, q_head 0, q_tile 0, kv_tile 0) is masked by other slices");
}

TEST(Verify, NamesATileWithASecondEqualAddend) {
  expect_fault(broken([](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[1].addend = 0; }); }),
               "tile (head 0, q_head 0, q_tile 0, kv_tile 1) has addend 0, which its row gave");
  expect_fault(broken([](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[1].addend = 2; }); }),
               "expected 0 to 1");
  expect_fault(broken([](HeadOrder& o) { o.row_addends[1] = 3; }),
               "row (head 0, q_tile 1) promises 3 addends, its mask has 2");
}

TEST(Verify, RefusesIndicesOutOfRange) {
  expect_fault(broken([](HeadOrder& o) { o.group = 0; }), "a group of 0 query heads");
  expect_fault(broken([](HeadOrder& o) {
                 o.runs.edit([](auto& runs) { runs[1].addend_step = INT32_MAX; });
               }),
               "run 1 of head 0");
  expect_fault(broken([](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[1].addend = -1; }); }),
               "run 1 of head 0");
  expect_fault(
      broken([](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[0].addend_every = 0; }); }),
      "run 0 of head 0");
  expect_fault(broken([](HeadOrder& o) { o.runs.push_back({.first = 9, .count = 1}); }),
               "run 2 of head 0");  // which no chain has
  expect_fault(broken([](HeadOrder& o) { o.chains[1].tile = 2; }), "chain 1 of head 0");
  expect_fault(broken([](HeadOrder& o) { o.chains[0].addends = INT32_MAX; }), "chain 0 of head 0");
  expect_fault(broken([](HeadOrder& o) { o.tasks[1].chain_end = 9; }), "task 1 of head 0");
}

// Nothing of it is proved, and reading it as a plan ended the process.
TEST(Verify, RefusesAnOrderThatNoHeadFollows) {
  Plan plan = two_by_two();
  plan.orders.push_back(broken([](HeadOrder& o) { o.chains[1].run_end = 1 << 30; }).orders[0]);
  expect_fault(plan, "no head follows order 1");
  plan.order_of_head = {2};
  expect_fault(plan, "head 0 follows order 2, which does not exist");
}

TEST(Verify, NamesATileInACycle) {
  // Chain 0 walks down and waits for chain 1 in row 0; chain 1 walks up and waits in row 1.
  expect_fault(broken([](HeadOrder& o) {
                 o.runs = {{.first = 0, .count = 2, .addend = 1, .addend_step = -1},
                           {.first = 1, .count = 2, .step = -1, .addend = 1, .addend_step = -1}};
               }),
               "tile (head 0, q_head 0, q_tile 0, kv_tile 0) waits in a cycle");
}

TEST(Verify, FindsTheResidencyOfWaitsForLaterTasks) {
  // Addends against the issue order: task 0 waits for task 1 in both rows.
  Plan plan = broken([](HeadOrder& o) {
    o.runs.edit([](auto& runs) { std::swap(runs[0].addend, runs[1].addend); });
  });
  EXPECT_EQ(verify(plan), 2);
  plan.placement.tasks.edit([](auto& tasks) { std::swap(tasks[0], tasks[1]); });
  EXPECT_EQ(verify(plan), 1);
}

TEST(Verify, RefusesAStaticSequenceThatCannotEnd) {
  Plan plan = two_by_two();
  plan.placement = {.name = "static",
                    .queue = false,
                    .workers = 1,
                    .worker_begin = {0, 2},
                    .tasks = {{0, 1}, {0, 0}}};
  expect_fault(plan, "tile (head 0, q_head 0, q_tile 0, kv_tile 1) waits in a cycle for addend 0");
  plan.placement.tasks.edit([](auto& tasks) { std::swap(tasks[0], tasks[1]); });
  EXPECT_EQ(verify(plan), 1);
}

TEST(Verify, ChecksThePlacement) {
  Plan plan = two_by_two();
  plan.placement.tasks.edit([](auto& tasks) { tasks.pop_back(); });
  expect_fault(plan, "task 1 of head 0 is not placed");
  plan.placement.tasks = {{0, 0}, {0, 0}};
  expect_fault(plan, "task 0 of head 0 is placed twice");
  plan.placement.tasks = {{0, 0}, {0, 2}};
  expect_fault(plan, "task 2 of head 0 does not exist");
}

TEST(Verify, ChecksChainsThatShareATile) {
  // Query heads of a group in chains of their own.
  const auto split = [](int32_t second_addend, int32_t last_addend = 1) {
    return broken([&](HeadOrder& o) {
      o.group = 2;
      o.runs.push_back(o.runs[0]);
      o.runs.push_back(o.runs[1]);
      o.runs.edit([](auto& runs) { runs[2].q_head = runs[3].q_head = 1; });
      o.chains = {{.tile = 0, .run_begin = 0, .run_end = 1, .addend = 0, .addends = 2},
                  {.tile = 0, .run_begin = 2, .run_end = 3, .addend = second_addend, .addends = 2},
                  {.tile = 1, .run_begin = 1, .run_end = 2, .addend = 0, .addends = 2},
                  {.tile = 1, .run_begin = 3, .run_end = 4, .addend = last_addend, .addends = 2}};
      o.tasks = {{0, 1}, {1, 2}, {2, 3}, {3, 4}};
    });
  };
  Plan plan = split(1);
  plan.placement.tasks = {{0, 0}, {0, 1}, {0, 2}, {0, 3}};
  EXPECT_EQ(verify(plan), 1);
  plan = split(0);
  plan.placement.tasks = {{0, 0}, {0, 1}, {0, 2}, {0, 3}};
  expect_fault(plan, "its chain has addend 0 of 2, out of range or given twice");
  plan = split(1, INT32_MAX);  // to which nothing may be added
  plan.placement.tasks = {{0, 0}, {0, 1}, {0, 2}, {0, 3}};
  expect_fault(plan, "its chain has addend 2147483647 of 2, out of range or given twice");
}

// Both query heads of a group in every chain: the second is proved by repeating the first, and on
// its own where it does not.
TEST(Verify, FindsFaultsOfTheSecondQueryHeadAlone) {
  const auto walked = [](const std::function<void(HeadOrder&)>& breaks) {
    return broken([&](HeadOrder& o) {
      o.group = 2;
      o.runs = {{.first = 0, .count = 2, .addend = 0},
                {.q_head = 1, .first = 0, .count = 2, .addend = 0},
                {.first = 0, .count = 2, .addend = 1},
                {.q_head = 1, .first = 0, .count = 2, .addend = 1}};
      o.chains = {{.tile = 0, .run_begin = 0, .run_end = 2},
                  {.tile = 1, .run_begin = 2, .run_end = 4}};
      breaks(o);
    });
  };
  EXPECT_EQ(verify(walked([](HeadOrder&) {})), 1);
  expect_fault(walked([](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[3].addend = 0; }); }),
               "tile (head 0, q_head 1, q_tile 0, kv_tile 1) has addend 0, which its row gave");
  expect_fault(walked([](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[1].count = 1; }); }),
               "tile (head 0, q_head 1, q_tile 1, kv_tile 0) is never visited");
  expect_fault(walked([](HeadOrder& o) {
                 o.runs.edit([](auto& runs) { runs[1].q_head = runs[3].q_head = 5; });
               }),
               "run 1 of head 0");
  expect_fault(walked([](HeadOrder& o) { o.chains[1].run_end = 3; }),
               "tile (head 0, q_head 1, q_tile 0, kv_tile 1) is never visited");
  expect_fault(
      walked([](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[3].slice_count = 1; }); }),
      "tile (head 0, q_head 1, q_tile 0, kv_tile 1) is masked by other slices");
  // The second head adds right to left, so each task waits for the other: a cycle.
  expect_fault(walked([](HeadOrder& o) {
                 o.runs.edit([](auto& runs) { std::swap(runs[1].addend, runs[3].addend); });
                 o.runs.edit([](auto& runs) { std::swap(runs[0], runs[1]); });
               }),
               "waits in a cycle");
  // Without the cycle, the first task waits for the second in one head.
  EXPECT_EQ(verify(walked([](HeadOrder& o) {
              o.runs.edit([](auto& runs) {
                for (auto& run : runs) run.addend = 1 - run.addend;
              });
            })),
            2);
}

TEST(Verify, FindsTheResidencyOfTasksPlacedBackwards) {
  Plan plan = two_by_two();
  plan.placement.tasks.edit([](auto& tasks) { std::swap(tasks[0], tasks[1]); });
  EXPECT_EQ(verify(plan), 2);
  // Two heads, one of them backwards.
  plan.order_of_head = {0, 0};
  plan.placement.tasks = {{0, 0}, {1, 1}, {0, 1}, {1, 0}};
  EXPECT_EQ(verify(plan), 3);
  plan.placement.tasks = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};
  EXPECT_EQ(verify(plan), 1);
}

TEST(Fingerprint, ChangesWithTheBitsOnly) {
  const Plan plan = two_by_two();
  Plan other = plan;
  other.placement.tasks.edit([](auto& tasks) { std::swap(tasks[0], tasks[1]); });
  other.problem.batch = 7;
  EXPECT_EQ(other.fingerprint(), plan.fingerprint());
  EXPECT_EQ(plan.fingerprint().size(), 16u);
  other.problem.dtype = Dtype::bf16;
  EXPECT_NE(other.fingerprint(), plan.fingerprint());
  EXPECT_NE(broken([](HeadOrder& o) {
              o.runs.edit([](auto& runs) { std::swap(runs[0].addend, runs[1].addend); });
            }).fingerprint(),
            plan.fingerprint());
}

// Under dropout a row draws by where its document starts, which slices and edges do not say.
TEST(Fingerprint, SeesDocumentsUnderDropoutAlone) {
  const auto with_breaks = [](std::vector<int64_t> breaks, double dropout) {
    Plan plan = broken([&](HeadOrder& o) {
      const HeadMask mask{4, 4, {{0, 2, 0, 2}, {2, 4, 2, 4}}, breaks, breaks};
      o.tiles = std::make_shared<const TileMap>(mask, TileShape{2, 2});
    });
    plan.problem.dropout = dropout;
    return plan.fingerprint();
  };
  EXPECT_EQ(with_breaks({2}, 0), with_breaks({}, 0));
  EXPECT_NE(with_breaks({2}, 0.3), with_breaks({}, 0.3));
  EXPECT_EQ(with_breaks({}, 0.3), with_breaks({}, 0));
}

// And behind the padding of the mask's own, which slices do not tell from a window.
TEST(Fingerprint, SeesPaddingUnderDropoutAlone) {
  const auto with_padding = [](int64_t keys, double dropout) {
    Plan plan = broken([&](HeadOrder& o) {
      HeadMask mask{4, 4, {{0, 4, 2, 4}}, {}, {}};
      mask.k_padding = keys;
      o.tiles = std::make_shared<const TileMap>(mask, TileShape{2, 2});
    });
    plan.problem.dropout = dropout;
    return plan.fingerprint();
  };
  EXPECT_EQ(with_padding(2, 0), with_padding(0, 0));
  EXPECT_NE(with_padding(2, 0.3), with_padding(0, 0.3));
}

/// FNV-1a, byte by byte, over the words that plan.h names.
std::string slow_fingerprint(const Plan& plan) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add_byte = [&](uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  const auto add = [&](int64_t word) {
    for (int k = 0; k < 64; k += 8) add_byte(static_cast<uint8_t>(word >> k));
  };
  const auto add_list = [&](const std::vector<int64_t>& words) {
    add(std::ssize(words));
    for (const int64_t word : words) add(word);
  };
  add(kContractVersion);
  add(std::ssize(plan.arithmetic));
  for (const char c : plan.arithmetic) add_byte(static_cast<uint8_t>(c));
  add(static_cast<int64_t>(plan.pass));
  add_list(
      {plan.problem.head_dim, plan.problem.head_dim_v, static_cast<int64_t>(plan.problem.dtype)});
  const HeadOrder& order = *plan.orders[0];
  add_list(order.tiles->q_edges);
  add_list(order.tiles->kv_edges);
  add(std::ssize(order.tiles->slices()));
  for (const Slice& s : order.tiles->slices())
    add_list({s.q_begin, s.q_end, s.k_begin, s.k_end, s.lo, s.hi});
  add(order.group);
  for (const Chain& chain : order.chains) {
    add_list({chain.tile, chain.q_head, chain.addend, chain.addends});
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      const verbatim::Run run = order.runs[r];
      add_list({run.q_head, run.first, run.count, run.step, run.addend, run.addend_step,
                run.addend_every});
    }
  }
  return fmt::format("{:016x}", hash);
}

TEST(Fingerprint, IsThatOfItsBytesOneByOne) {
  EXPECT_EQ(two_by_two().fingerprint(), slow_fingerprint(two_by_two()));
  const int32_t values[] = {0,     1,     -1,      -2,       255,       256,       65535,
                            65536, 70000, 1 << 24, -1 << 24, INT32_MAX, INT32_MIN, (1 << 24) - 1};
  const Plan plan = broken([&](HeadOrder& o) {
    const HeadMask mask{4, 4, {{0, 2, 0, 4}, {2, 4, 0, 3, -2, 1}, {3, 4, 3, 4, -1 << 25}}, {}, {}};
    o.tiles = std::make_shared<const TileMap>(mask, TileShape{2, 2});
    for (const int32_t value : values) {
      o.runs.push_back({.q_head = value, .first = value, .count = 1, .step = -1});
      o.runs.push_back({.count = value, .step = value, .addend = value, .addend_step = value});
    }
    o.chains[1].run_end = static_cast<int32_t>(o.runs.size());
  });
  EXPECT_EQ(plan.fingerprint(), slow_fingerprint(plan));
}

TEST(PlanJson, ComesBackEqual) {
  Plan plan = two_by_two();
  plan.residency = verify(plan);
  const Plan again = plan_from_json(to_json(plan));
  EXPECT_EQ(to_json(again), to_json(plan));
  EXPECT_EQ(again.fingerprint(), plan.fingerprint());
  EXPECT_EQ(again.orders[0]->runs, plan.orders[0]->runs);
}

TEST(PlanJson, RefusesWhatVerifyRefuses) {
  EXPECT_THROW(plan_from_json("{"), Error);
  EXPECT_THROW(plan_from_json("{}"), Error);
  Plan longer = two_by_two();
  longer.problem.kv_len = 5;
  EXPECT_THROW(plan_from_json(to_json(longer)), Error);
  EXPECT_THROW(plan_from_json(to_json(broken([](HeadOrder& o) { o.group = 0; }))), Error);
  EXPECT_THROW(plan_from_json(to_json(broken(
                   [](HeadOrder& o) { o.runs.edit([](auto& runs) { runs[1].addend = 0; }); }))),
               Error);
}

TEST(PlanJson, NamesWhatIsWrong) {
  const auto good = nlohmann::json::parse(to_json(two_by_two()));
  // The details of the Error that the plan raises once `change` has been made to its JSON.
  const auto refused = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = good;
    change(json);
    try {
      plan_from_json(json.dump());
    } catch (const Error& e) {
      return e.details();
    }
    return Error::Details{"nothing", "", "", ""};
  };
  EXPECT_EQ(refused([](auto&) {}).argument, "nothing");
  const auto expect = [&](const std::string& argument, const std::string& got,
                          const std::string& expected, const auto& change) {
    const Error::Details details = refused(change);
    EXPECT_EQ(details.argument, argument);
    EXPECT_EQ(details.got, got);
    EXPECT_EQ(details.expected, expected);
  };
  for (const auto& [key, value] : good.items())
    if (key != "residency" && key != "fingerprint")  // which are found anew
      expect(key, "nothing", "a member", [&](auto& json) { json.erase(key); });
  const auto order = [](auto& json) -> auto& { return json["orders"][0]; };
  expect("orders[0].runs[1]", "a list of 8", "of 9",
         [&](auto& json) { order(json)["runs"][1].erase(8); });
  expect("orders[0].runs[1][2]", "4294967298", "an integer of 32 bits",
         [&](auto& json) { order(json)["runs"][1][2] = (int64_t{1} << 32) + 2; });
  expect("orders[0].chains[0][6]", "2", "0 or 1",
         [&](auto& json) { order(json)["chains"][0][6] = 2; });
  expect("orders[0].chains[0][1]", "0.5", "an integer",
         [&](auto& json) { order(json)["chains"][0][1] = 0.5; });
  expect("orders[0].tile[0]", "18446744073709551615", "an integer below 2^63",
         [&](auto& json) { order(json)["tile"][0] = UINT64_MAX; });
  expect("orders[0].tasks", "an object", "a list",
         [&](auto& json) { order(json)["tasks"] = nlohmann::json::object(); });
  expect("orders[0].q_edges[1]", "3", "1 to 2", [&](auto& json) {
    order(json)["q_edges"] = {0, 3, 4};
  });
  expect("orders[0].kv_edges", "an empty list", "0 first",
         [&](auto& json) { order(json)["kv_edges"] = nlohmann::json::array(); });
  expect("orders[0].sequences", "2 starts",
         "[0, 0], then edges between which every slice lies, and edges at their padding",
         [&](auto& json) {
           order(json)["sequences"] = {{0, 0}, {2, 2}};
         });
  // Padding that begins inside a tile.
  expect("orders[0].sequences", "1 starts",
         "[0, 0], then edges between which every slice lies, and edges at their padding",
         [&](auto& json) { order(json)["slices"][0][3] = 3; });
  expect("orders[0].group", "2", "1", [&](auto& json) { order(json)["group"] = 2; });
  expect("order_of_head[0]", "4294967296", "an integer of 32 bits",
         [](auto& json) { json["order_of_head"] = {int64_t{1} << 32}; });
  expect("heads of order_of_head", "2", "1",
         [](auto& json) { json["order_of_head"].push_back(0); });
  expect("placement.queue", "1", "true or false",
         [](auto& json) { json["placement"]["queue"] = 1; });
  expect("placement.workers", "null", "an integer",
         [](auto& json) { json["placement"]["workers"] = nullptr; });
  expect("pass", "sideways", "forward or backward", [](auto& json) { json["pass"] = "sideways"; });
  expect("fingerprint", "0123", two_by_two().fingerprint(),
         [](auto& json) { json["fingerprint"] = "0123"; });
}

TEST(PlanJson, ReadsTheCorpus) {
  test::check_corpus("plan_json", [](const std::string& text) { plan_from_json(text); });
}

TEST(PlanJson, LimitsDepthAndMemory) {
  EXPECT_THROW(plan_from_json(std::string(1 << 20, '[')), Error);
  EXPECT_THROW(plan_from_json(R"({"pass":"forward","pass":"forward"})"), Error);
  // Short texts that stand for 2^30 tiles, and for chains of 2^24 query heads.
  auto json = nlohmann::json::parse(to_json(two_by_two()));
  json["orders"][0]["q_edges"] = {0, 1 << 30};
  EXPECT_THROW(plan_from_json(json.dump()), Error);
  Plan wide = broken([](HeadOrder& o) {
    const HeadMask nothing{4, 4, {}, {}, {}};
    o.pass = Pass::forward;
    o.tiles = std::make_shared<const TileMap>(nothing, TileShape{2, 2});
    o.runs.clear();
    o.group = 1 << 24;
    o.chains = {{.tile = 0}, {.tile = 1}};
    o.row_addends.clear();
  });
  wide.pass = Pass::forward;
  wide.problem.q_heads = 1 << 24;
  try {
    plan_from_json(to_json(wide));
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("q_head 1, q_tile 0"), std::string::npos) << e.what();
  }
}

TEST(Level, NamesComeBack) {
  for (const Level level :
       {Level::not_guaranteed, Level::run_to_run, Level::gpu_to_gpu, Level::invariant})
    EXPECT_EQ(level_from_string(to_string(level)), level);
  EXPECT_THROW(level_from_string("bitwise"), Error);
}

}  // namespace
}  // namespace verbatim
