#include "plan/alike.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "plan/check_order.h"
#include "plan/whole_chains.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

std::vector<Run> runs_of(const HeadOrder& order, const Chain& chain) {
  const std::vector<Run> all = order.runs.all();
  return {all.begin() + chain.run_begin, all.begin() + chain.run_end};
}

/// Rows are the same chains, as long as place and alike ones last, and say of each what it is.
void expect_rows(const HeadOrder& order, const ChainRows& all) {
  auto row = all.rows.begin();
  for (const auto& [first, count] : all.alike) {
    for (int32_t c = first; c < first + count; c += row++->count) {
      ASSERT_NE(row, all.rows.end());
      ASSERT_EQ(row->chain, c);
      ASSERT_LE(row->end(), first + count);
      if (c > first) {
        ASSERT_NE(std::pair(row->addend, row->addends),
                  std::pair((row - 1)->addend, (row - 1)->addends));
      }
      for (int32_t i = c; i < row->end(); ++i) {
        const Chain& chain = order.chains[i];
        ASSERT_EQ(chain.tile, row->tile_of(i));
        ASSERT_EQ(std::pair(chain.addend, chain.addends), std::pair(row->addend, row->addends));
      }
    }
  }
  ASSERT_EQ(row, all.rows.end());
}

bool is_piece(const HeadOrder& order, size_t c) {
  return order.chains[c].continues || order.chains[c].pauses;
}

/// All chains as issued, each time alike.
void expect_chains(const HeadOrder& order, const ChainRows& all) {
  std::vector<int32_t> chains, issued;
  for (const Task& task : order.tasks)
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) issued.push_back(c);
  for (const auto& [first, count] : all.alike) {
    for (int32_t i = 0; i < count; ++i) {
      const Chain& chain = order.chains[first + i];
      ASSERT_FALSE(count > 1 && is_piece(order, static_cast<size_t>(first + i)));
      chains.push_back(first + i);
      std::vector<Run> runs = runs_of(order, order.chains[first]);
      for (Run& run : runs) run.addend += i;
      ASSERT_EQ(runs_of(order, chain), runs);
      if (i > 0) {
        const int32_t step = order.chains[first + 1].tile - order.chains[first].tile;
        ASSERT_EQ(std::abs(step), 1);
        ASSERT_EQ(chain.tile, order.chains[first].tile + i * step);
      }
    }
  }
  ASSERT_EQ(chains, issued);
  expect_rows(order, all);
}

void expect_alike(const HeadOrder& order) {
  const ChainRows all = rows_of_chains(order);
  expect_chains(order, all);
  std::vector<int32_t> sequence(order.tasks.size());
  std::iota(sequence.begin(), sequence.end(), 0);
  ASSERT_EQ(counts_up({order, 0}, all), counts_up({order, 0}, sequence));
}

TEST(Alike, ChainsOfEveryOrder) {
  int seen = 0;
  for (const OrderInfo& info : orders()) {
    if (info.pass == Pass::forward) continue;
    for (const char* suffix : {"", "/rows:64", "/split/rows:64"}) {
      SCOPED_TRACE(std::string(info.name) + suffix);
      for (const Mask& mask : {masks::causal(256, 256), masks::full(256, 256),
                               masks::causal_sliding_window(256, 256, 100)}) {
        const auto tiles = std::make_shared<const TileMap>(mask.variants()[0], TileShape{16, 8});
        std::shared_ptr<const HeadOrder> order;
        try {
          order = make_order(Pass::backward, std::string(info.name) + suffix, tiles, 3);
        } catch (const Error&) {
          continue;  // an order without such chunks, or not for this mask
        }
        expect_alike(*order);
        ++seen;
      }
    }
  }
  EXPECT_GT(seen, 30);
}

using Visits = Run;  // in a test, Run is GoogleTest's

bool is_next(const Run& run, const Run& before) {
  return PackedRuns(std::vector{run}).all().is_next(PackedRuns(std::vector{before}).all());
}

TEST(Alike, ARunIsNextByItsAddendAlone) {
  const Visits before{.first = 3, .count = 1, .addend = 5};
  EXPECT_TRUE(is_next({.first = 3, .count = 1, .addend = 6}, before));
  for (const Visits& other :
       {before, Visits{.first = 3, .count = 1, .addend = 4},
        Visits{.first = 3, .count = 1, .addend = 7}, Visits{.first = 4, .count = 1, .addend = 6},
        Visits{.first = 3, .count = 2, .addend = 6},
        Visits{.first = 3, .count = 1, .step = -1, .addend = 6},
        Visits{.q_head = 1, .first = 3, .count = 1, .addend = 6},
        Visits{.first = 3, .count = 1, .addend = 6, .slice_count = 1}})
    EXPECT_FALSE(is_next(other, before));
  for (const int32_t last : {(1 << 18) - 1, 1 << 20})  // the most that a word holds; beyond it
    EXPECT_FALSE(is_next({.first = 3, .count = 1, .addend = last + 1},
                         {.first = 3, .count = 1, .addend = last}));
}

TEST(Alike, PiecesAreByThemselves) {
  HeadOrder order;
  order.pass = Pass::backward;
  order.runs = {{.first = 0, .count = 1, .addend = 0},
                {.first = 0, .count = 1, .addend = 1},
                {.first = 1, .count = 1, .addend = 1},
                {.first = 1, .count = 1, .addend = 0}};
  order.chains = {{.tile = 0, .run_begin = 0, .run_end = 1},
                  {.tile = 1, .run_begin = 1, .run_end = 2},
                  {.tile = 1, .run_begin = 2, .run_end = 3, .continues = true},
                  {.tile = 2, .run_begin = 3, .run_end = 4}};
  mark_pieces(order.chains);
  order.tasks = {{0, 1}, {1, 2}, {3, 4}, {2, 3}};
  EXPECT_EQ(rows_of_chains(order).alike.size(), 4u);
}

/// Those before it repeat one another, and so does the piece itself.
TEST(Alike, AFirstPieceBehindRepeatsIsByItself) {
  HeadOrder order;
  order.pass = Pass::backward;
  for (int32_t c = 0; c < 7; ++c) {
    order.runs.push_back({.first = 0, .count = 1, .addend = c});
    order.chains.push_back({.tile = c, .run_begin = c, .run_end = c + 1});
    order.tasks.push_back({c, c + 1});
  }
  order.chains.back().tile = 5;
  order.chains.back().continues = true;
  mark_pieces(order.chains);
  const ChainRows all = rows_of_chains(order);
  EXPECT_EQ(all.alike.size(), 3u);
  expect_chains(order, all);
}

/// Chains that mostly repeat the one before, on tiles mostly behind each other; some are cut.
HeadOrder random_order(Random& rng) {
  const auto below = [&](int64_t n) { return static_cast<int32_t>(rng.between(0, n - 1)); };
  HeadOrder order;
  order.pass = Pass::backward;
  const int32_t size = 1 + below(3), heads = 1 + below(2);
  for (int32_t blocks = 1 + below(3); blocks > 0; --blocks) {
    const int32_t first = below(3), addend = below(4);
    for (int32_t time = below(7); time >= 0; --time)
      for (int32_t i = 0; i < size * heads; ++i)
        order.runs.push_back({.q_head = i / size,
                              .first = first + 2 * (i % size),
                              .count = 1 + below(20) / 19,
                              .addend = addend + 6 - time});
  }
  const auto runs = static_cast<int32_t>(order.runs.size());
  int32_t tile = 20, step = 1, addend = 0, at = 0, length = size * heads;
  for (int32_t c = 0, chains = 1 + below(12); c < chains; ++c) {
    if (below(15) == 0) length = below(4);
    if (below(20) == 0) at = below(runs + 1);
    if (below(12) == 0) addend = below(3);
    if (below(15) == 0) step = -step;
    const int32_t end = std::min(runs, at + length);
    order.chains.push_back({.tile = tile,
                            .run_begin = at,
                            .run_end = end,
                            .addend = addend,
                            .addends = 4,
                            .continues = c > 0 && below(10) == 0});
    at = end;
    tile += step * (1 + below(25) / 24);
  }
  mark_pieces(order.chains);
  const auto chains = static_cast<int32_t>(order.chains.size());
  for (int32_t c = 0, end = 0; c < chains; c = end) {
    end = std::min(chains, c + 1 + below(4));
    order.tasks.push_back({c, end});
  }
  if (below(4) == 0) std::ranges::reverse(order.tasks);
  return order;
}

TEST(Alike, ChainsOfRandomOrders) {
  Random rng(7);
  for (int i = 0; i < 5000 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const HeadOrder order = random_order(rng);
    expect_chains(order, rows_of_chains(order));
  }
}

/// Threads read stretches of them, and none is cut.
TEST(Alike, ManyChainsAsFew) {
  constexpr int32_t kGroups = 41, kChains = 10007;
  HeadOrder order;
  order.pass = Pass::backward;
  std::vector<Visits> runs;
  for (int32_t c = 0; c < kGroups * kChains; ++c) {
    runs.push_back({.first = 0, .count = 1, .addend = c % kChains});
    order.chains.push_back({.tile = c % kChains, .run_begin = c, .run_end = c + 1});
  }
  order.runs = Runs(runs);
  order.tasks = {{0, kGroups * kChains}};
  const ChainRows all = rows_of_chains(order);
  ASSERT_EQ(all.alike.size(), kGroups);
  ASSERT_EQ(all.rows.size(), kGroups);
  for (int32_t g = 0; g < kGroups; ++g) {
    EXPECT_EQ(std::pair(all.alike[g].chain, all.alike[g].count), std::pair(g * kChains, kChains));
    EXPECT_EQ(std::pair(all.rows[g].chain, all.rows[g].count), std::pair(g * kChains, kChains));
  }
}

TEST(Alike, ChunksOfAFullMaskAreOne) {
  const Mask mask = masks::full(256, 256);
  const auto tiles = std::make_shared<const TileMap>(mask.variants()[0], TileShape{16, 16});
  const auto order = make_order(Pass::backward, "descending/rows:64", tiles, 2);
  EXPECT_EQ(rows_of_chains(*order).alike.size(), 4u);
}

}  // namespace
}  // namespace verbatim
