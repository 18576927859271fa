#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "contract/rules.h"
#include "mask/slice.h"
#include "plan/walk.h"
#include "plans.h"
#include "schedule/orders/orders.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

using test::plan_of;

struct Case {
  std::string name;
  HeadMask mask;
};

std::vector<Case> cases() {
  const auto head = [](const Mask& mask) { return mask.variants().front(); };
  const std::vector<int64_t> docs{5, 0, 33, 1, 64, 17, 80};
  return {{"full", head(masks::full(200, 200))},
          {"full, long keys", head(masks::full(70, 500))},
          {"causal", head(masks::causal(200, 200))},
          {"causal, more keys", head(masks::causal(90, 250))},
          {"causal, more queries", head(masks::causal(250, 90))},
          {"window", head(masks::causal_sliding_window(300, 300, 40))},
          {"two-sided window", head(masks::full_sliding_window(300, 300, 33))},
          {"documents", head(masks::causal_document(docs))},
          {"full documents", head(masks::full_document(docs))},
          {"share_question", head(masks::share_question(docs))},
          {"causal_blockwise", head(masks::causal_blockwise(docs))},
          {"global", head(masks::global_sliding(200, 20, 30))},
          {"no query", head(masks::full(0, 100))},
          {"no key", head(masks::full(100, 0))},
          {"one", head(masks::causal(1, 1))}};
}

constexpr TileShape kShapes[] = {{16, 16}, {8, 16}, {16, 8}, {10, 32}};

// Every order of every pass, group 1 and 3, walked, split, in parts and by chunks of rows.
template <class F>
void for_each_order(F&& f) {
  for (const OrderInfo& info : orders()) {
    for (const std::string_view suffix : {"", "/split", "/split:2", "/even:2", "/even:3",
                                          "/rows:40", "/split:2/rows:24", "/even:2/rows:100"}) {
      if (info.pass == Pass::forward && suffix == "/split:2") continue;
      const bool of_columns =
          suffix.find("/even") != suffix.npos || suffix.find("/rows") != suffix.npos;
      if (of_columns && !order::takes_columns(info)) continue;
      for (const int32_t group : {1, 3}) f(info.pass, info.name + std::string(suffix), group);
    }
  }
}

TEST(Orders, VisitEveryTileOnceInAProvableOrder) {
  for (const Case& c : cases()) {
    for (const TileShape shape : kShapes) {
      const auto tiles = std::make_shared<const TileMap>(c.mask, shape);
      for_each_order([&](Pass pass, const std::string& name, int32_t group) {
        SCOPED_TRACE(c.name + ", " + name);
        const auto order = make_order(pass, name, tiles, group);
        EXPECT_EQ(order->name, name);
        EXPECT_EQ(order->visits(), tiles->count() * group);
        ASSERT_NO_THROW(verify(plan_of(order, 2, "queue", 4)));
      });
    }
  }
}

// One field of one run or chain of a good order changed: no such order may pass.
TEST(Orders, AreRefusedOnceAnyFieldIsWrong) {
  std::mt19937 rng(3);
  int refused = 0;
  for (const Case& c : cases()) {
    const auto tiles = std::make_shared<const TileMap>(c.mask, TileShape{8, 16});
    for_each_order([&](Pass pass, const std::string& name, int32_t group) {
      const auto good = make_order(pass, name, tiles, group);
      if (good->runs.empty()) return;
      for (int fault = 0; fault < 6; ++fault) {
        HeadOrder order = *good;
        std::vector<verbatim::Run> runs = order.runs.all();
        verbatim::Run& run = runs[rng() % runs.size()];
        switch (fault) {
          case 0:
            ++run.first;
            break;
          case 1:
            ++run.count;
            break;
          case 2:
            --run.count;
            break;
          case 3:
            run.slice_count = run.slice_count == 0 ? 1 : 0;
            break;
          case 4:
            run.q_head = run.q_head == 0 ? group - 1 : run.q_head - 1;
            break;
          default:
            ++run.addend;
            break;
        }
        order.runs = Runs(runs);
        if (fault == 4 && group == 1) continue;
        if (fault == 5 && pass == Pass::forward) continue;  // its visit order is the sum's order
        SCOPED_TRACE(c.name + ", " + name + ", fault " + std::to_string(fault));
        const auto bad = std::make_shared<const HeadOrder>(order);
        EXPECT_THROW(verify(plan_of(bad, 1, "queue", 4)), Error);
        ++refused;
      }
    });
  }
  EXPECT_GT(refused, 1000);
}

TEST(Orders, RefuseAGroupOfNoHeads) {
  const auto tiles = std::make_shared<const TileMap>(masks::full(8, 8).head(0, 0), TileShape{4, 4});
  for (const int32_t group : {0, -3})
    EXPECT_THROW(make_order(Pass::backward, "ascending", tiles, group), Error);
}

TEST(Orders, NumberAddendsByTheirPermutation) {
  // The addend of a tile, found the slow way: how many tiles of its row come before it. Chunks
  // start anew in every sequence.
  const auto position = [](const std::string& name, int32_t kv_tile, const TileMap& tiles) {
    if (name == "right_to_left") return -kv_tile;
    if (name != "chunked_descending") return kv_tile;
    int64_t begin = 0;
    for (const Sequence& s : tiles.sequences)
      if (s.k_begin <= tiles.kv_edges[kv_tile]) begin = s.k_begin;
    const auto first = std::ranges::lower_bound(tiles.kv_edges, begin) - tiles.kv_edges.begin();
    const int32_t own = kv_tile - static_cast<int32_t>(first);
    return own / 8 * 8 + 7 - own % 8;
  };
  for (const Case& c : cases()) {
    const auto tiles = std::make_shared<const TileMap>(c.mask, TileShape{8, 16});
    for (const std::string name :
         {"ascending", "descending", "right_to_left", "chunked_descending"}) {
      SCOPED_TRACE(c.name + ", " + name);
      std::map<int32_t, std::map<int32_t, int32_t>> rows;  // q_tile -> position -> addend
      const auto order = make_order(Pass::backward, name, tiles, 1);
      for (const Task& task : order->tasks) {
        int32_t last = -1;
        for_each_visit(*order, task, [&](const Chain& chain, const verbatim::Run& run, int32_t i) {
          const int32_t row = run.tile(i);
          rows[row][position(name, chain.tile, *tiles)] = run.addend_of(i);
          if (last >= 0) {
            EXPECT_EQ(row > last, name != "descending");
          }
          last = row;
        });
      }
      for (const auto& [row, addends] : rows) {
        int32_t expected = 0;
        for (const auto& [where, addend] : addends) EXPECT_EQ(addend, expected++) << row;
      }
    }
  }
}

/// All visits of an order by kept tile, in the sequence of its sums: tiles counted from `kept` and
/// `streamed`, chains that keep others than `tiles` left out.
using Visits = std::map<int32_t, std::vector<std::array<int32_t, 6>>>;
Visits visits_of(const HeadOrder& order, int32_t kept, int32_t tiles, int32_t streamed) {
  Visits found;
  for (const Chain& chain : order.chains) {
    if (chain.tile < kept || chain.tile >= kept + tiles) continue;
    auto& visits = found[chain.tile - kept];
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      const verbatim::Run& run = order.runs[r];
      for (int32_t i = 0; i < run.count; ++i)
        visits.push_back({chain.q_head, chain.addend, chain.addends, run.q_head,
                          run.tile(i) - streamed, run.addend_of(i)});
    }
  }
  // Chains that share a tile may be issued in any sequence.
  for (auto& [tile, visits] : found)
    std::stable_sort(visits.begin(), visits.end(), [](const auto& a, const auto& b) {
      return std::pair(a[0], a[1]) < std::pair(b[0], b[1]);
    });
  return found;
}

// What makes packing invisible to the bits, for every order and for auto.
TEST(Orders, AreTheSameForADocumentAloneAndPacked) {
  std::mt19937 rng(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % n); };
  int mixed = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<int64_t> docs(2 + below(5));
    for (int64_t& length : docs) length = below(4) == 0 ? 0 : 1 + below(below(2) ? 900 : 60);
    const bool long_and_short = round % 8 == 7;  // a group of 8 is split in the long one alone
    if (long_and_short) docs = {6144, 2048};
    const int64_t prefix[] = {below(100)};
    const Mask masks[] = {masks::causal_document(docs), masks::full_document(docs),
                          masks::prefix_lm_document(docs, prefix)};
    const HeadMask& mask = masks[below(3)].head(0, 0);
    const TileShape shape = long_and_short ? TileShape{64, 128} : kShapes[below(4)];
    const auto packed = std::make_shared<const TileMap>(mask, shape);
    const auto check = [&](Pass pass, const std::string& name, int32_t group) {
      const auto whole = make_order(pass, name, packed, group);
      mixed += name == "auto" && whole->name == "auto";
      int64_t begin = 0;
      int32_t q_tile = 0, kv_tile = 0;
      for (const int64_t length : docs) {
        const HeadMask crop = mask.crop(begin, begin + length, begin, begin + length);
        const auto tiles = std::make_shared<const TileMap>(crop, shape);
        const auto alone = make_order(pass, name, tiles, group);
        const bool backward = pass == Pass::backward;
        const int32_t kept = backward ? tiles->kv_tiles() : tiles->q_tiles();
        ASSERT_EQ(visits_of(*alone, 0, kept, 0),
                  visits_of(*whole, backward ? kv_tile : q_tile, kept, backward ? q_tile : kv_tile))
            << name << ", document at " << begin << " of " << length << ", round " << round;
        begin += length;
        q_tile += tiles->q_tiles();
        kv_tile += tiles->kv_tiles();
      }
    };
    for_each_order(check);
    for (const Pass pass : {Pass::forward, Pass::backward})
      for (const int32_t group : {1, 8}) check(pass, "auto", group);
  }
  EXPECT_GT(mixed, 3);  // the rule chose differently for documents of one head
}

/// `mask` in a plane of other lengths, its first row and key at (q, k).
HeadMask moved(const HeadMask& mask, int64_t q, int64_t k, int64_t q_len, int64_t kv_len) {
  HeadMask whole{q_len, kv_len, {}, {}, {}};
  for (const Slice& s : mask.slices) whole.slices.push_back(shift(s, -q, -k));
  for (const int64_t edge : mask.q_breaks) whole.q_breaks.push_back(edge + q);
  for (const int64_t edge : mask.k_breaks) whole.k_breaks.push_back(edge + k);
  return whole;
}

/// What the order of `padded` makes of the rows from `q` and the keys from `k` on that `alone` has.
void expect_same_order(const TileMap& alone, const TileMap& padded, int64_t q, int64_t k, Pass pass,
                       const std::string& name, int32_t group) {
  const auto tile_at = [](const std::vector<int64_t>& edges, int64_t position) {
    return static_cast<int32_t>(std::ranges::lower_bound(edges, position) - edges.begin());
  };
  const int32_t q_tile = tile_at(padded.q_edges, q), kv_tile = tile_at(padded.kv_edges, k);
  const bool backward = pass == Pass::backward;
  const int32_t kept = backward ? kv_tile : q_tile, streamed = backward ? q_tile : kv_tile;
  const auto order_of = [&](const TileMap& tiles) {
    return make_order(pass, name, std::make_shared<const TileMap>(tiles), group);
  };
  const auto whole = order_of(padded);
  ASSERT_NO_THROW(verify(plan_of(whole, 2, "queue", 300)));
  const int32_t tiles = backward ? alone.kv_tiles() : alone.q_tiles();
  // Rows beside the core see keys too: they are no part of the sums alone.
  Visits found = visits_of(*whole, kept, tiles, streamed);
  const int32_t rows = alone.q_tiles();
  for (auto& [tile, visits] : found)
    if (backward) std::erase_if(visits, [&](const auto& v) { return v[4] < 0 || v[4] >= rows; });
  ASSERT_EQ(visits_of(*order_of(alone), 0, tiles, 0), found);
}

// What makes padding invisible to the bits: right and left, of queries and keys or of keys alone.
TEST(Orders, AreTheSameForASequenceAloneAndPadded) {
  const uint64_t seed = 5;
  std::mt19937 rng(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % n); };
  for (int round = 0; round < 30; ++round) {
    const bool is_long = round % 6 == 5;  // `auto` rotates or splits it; its padding it would not
    const int64_t n = is_long ? 1024 * (1 + below(4)) : 1 + below(below(2) ? 900 : 60);
    const int64_t docs[] = {n / 3, 0, n - n / 3}, edges[] = {0, (n + 1) / 2, n};
    std::vector<Mask> masks = {masks::full(n, n),
                               masks::causal(n, n),
                               masks::causal_sliding_window(n, n, below(n)),
                               masks::full_sliding_window(n, n, below(n)),
                               masks::causal_document(docs),
                               masks::full_document(docs),
                               masks::share_question(docs),
                               masks::causal_blockwise(docs),
                               masks::global_sliding(n, below(n), below(n)),
                               masks::prefix_lm_causal(n, below(n)),
                               masks::block_causal_document(docs, 1 + below(n)),
                               masks::full(n, n + 200),
                               masks::causal(n, n + 200),
                               masks::causal_sliding_window(n, n + 200, below(n)),
                               masks::full(n + 200, n)};
    if (n > 1) masks.push_back(masks::variable_block_sparse(edges, edges, 0.6, 1, 1));
    const TileShape shape = is_long ? TileShape{64, 128} : kShapes[below(4)];
    for (const Mask& mask : masks) {
      const HeadMask& head = mask.head(0, 0);
      const TileMap alone(head, shape);
      const int64_t q_pad = below(is_long ? 9000 : 700), k_pad = below(is_long ? 9000 : 700);
      const auto check = [&](const char* how, const HeadMask& padded, int64_t q, int64_t k) {
        const TileMap tiles(padded, shape);
        const auto compare = [&](Pass pass, const std::string& name, int32_t group) {
          SCOPED_TRACE(fmt::format("seed {}, round {}, {} {} {} by {} {}, {}, group {}", seed,
                                   round, mask.name(), mask.params_json(), how, q_pad, k_pad, name,
                                   group));
          expect_same_order(alone, tiles, q, k, pass, name, group);
        };
        if (!is_long) for_each_order(compare);
        for (const Pass pass : {Pass::forward, Pass::backward})
          for (const int32_t group : {1, 4, 8}) compare(pass, "auto", group);
      };
      check("right", moved(head, 0, 0, head.q_len + q_pad, head.kv_len + k_pad), 0, 0);
      if (head.q_len != head.kv_len) continue;
      check("left", moved(head, q_pad, q_pad, n + q_pad, n + q_pad), q_pad, q_pad);
      if (mask.name() != "full" && mask.name() != "causal") continue;
      // Hidden as keys only: rows beside those of the keys see them.
      const int64_t length = n + q_pad;
      HeadMask right =
          (mask.name() == "full" ? masks::full(length, length) : masks::causal(length, length))
              .with_key_lengths(std::array{n})
              .head(0, 0);
      check("right, keys only", right, 0, 0);
      HeadMask left = right;
      left.slices = mask.name() == "full"
                        ? std::vector<Slice>{{0, length, q_pad, length}}
                        : std::vector<Slice>{{q_pad, length, q_pad, length, Slice::kNoLow, 0}};
      check("left, keys only", left, q_pad, q_pad);
    }
  }
}

TEST(Orders, NeedOneWorkerWhenKvMajor) {
  const auto tiles =
      std::make_shared<const TileMap>(masks::causal(500, 500).variants().front(), TileShape{8, 16});
  for (const char* name : {"ascending", "descending", "right_to_left", "chunked_descending"})
    for (const char* placement : {"queue", "head_swizzled", "head_swizzled:2"})
      EXPECT_EQ(verify(plan_of(make_order(Pass::backward, name, tiles, 2), 3, placement, 7)), 1)
          << name << ", " << placement;
}

TEST(Orders, EncodeRegularMasksInAFewRunsPerChain) {
  const std::map<std::string, HeadMask> regular = {
      {"full", masks::full(8192, 8192).variants().front()},
      {"causal", masks::causal(8192, 8192).variants().front()},
      {"causal, odd offset", masks::causal(8192 - 64, 8192).variants().front()},
      {"window", masks::causal_sliding_window(8192, 8192, 1024).variants().front()}};
  for (const auto& [mask_name, mask] : regular) {
    for (const TileShape shape : {TileShape{64, 128}, TileShape{128, 128}}) {
      const auto tiles = std::make_shared<const TileMap>(mask, shape);
      for (const char* name : {"ascending", "descending", "right_to_left"}) {
        const auto order = make_order(Pass::backward, name, tiles, 1);
        EXPECT_LE(order->runs.size(), 6 * order->chains.size()) << mask_name << ", " << name;
      }
    }
  }
}

TEST(Orders, ForwardSplitCutsLongRows) {
  const auto tiles =
      std::make_shared<const TileMap>(masks::full(8, 1000).variants().front(), TileShape{8, 10});
  const auto order = make_order(Pass::forward, "descending/split", tiles, 2);
  ASSERT_EQ(order->chains.size(), 8u);  // 100 KV tiles in pieces of 32, for two query heads
  EXPECT_EQ(order->chains[0].addends, 4);
  EXPECT_EQ(order->runs[0].first, 99);
  EXPECT_EQ(order->runs[0].step, -1);
  EXPECT_EQ(order->runs[3].count, 4);
  EXPECT_EQ(order->chains[3].addend, 3);
  EXPECT_EQ(order->chains[4].q_head, 1);
}

TEST(Orders, NameTheNearestOfAnUnknownOne) {
  const auto tiles =
      std::make_shared<const TileMap>(masks::full(8, 8).variants().front(), TileShape{8, 8});
  try {
    make_order(Pass::backward, "decsending", tiles, 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.details().nearest, "descending");
  }
}

// Of a long sequence so many KV tiles rotate together that other heads' fill a wave beside them.
TEST(Orders, ShiftRotatesLongSequencesInChunks) {
  for (const auto& [kv_tiles, together] : {std::pair(64, 64),
                                           {65, 64},
                                           {80, 40},
                                           {96, 32},
                                           {128, 64},
                                           {160, 40},
                                           {192, 64},
                                           {256, 64}}) {
    EXPECT_EQ(contract::rotating_tiles(kv_tiles), together) << kv_tiles;
    const auto tiles = std::make_shared<const TileMap>(
        masks::full(32 * kv_tiles, 32 * kv_tiles).variants().front(), TileShape{16, 32});
    const auto order = make_order(Pass::backward, "shift", tiles, 1);
    ASSERT_EQ(std::ssize(order->tasks), kv_tiles);
    const std::string chunks = fmt::format("head_swizzled:2:{}", together);
    EXPECT_EQ(verify(test::plan_of(order, 2, chunks, 132)), together) << kv_tiles;
    // A row's sum takes chunk after chunk.
    std::vector<int32_t> last_of_chunk(tiles->q_tiles(), -1);
    for (int32_t begin = 0; begin < kv_tiles; begin += together) {
      std::vector<int32_t> last = last_of_chunk;
      for (int32_t c = begin; c < std::min(begin + together, kv_tiles); ++c) {
        const Chain& chain = order->chains[c];
        for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
          const auto& run = order->runs[r];
          for (int32_t i = 0; i < run.count; ++i) {
            const auto row = static_cast<size_t>(run.tile(i));
            ASSERT_GT(run.addend_of(i), last_of_chunk[row]) << "chain " << c << ", row " << row;
            last[row] = std::max(last[row], run.addend_of(i));
          }
        }
      }
      last_of_chunk = last;
    }
  }
}

TEST(MakePlan, GivesHeadsWithOneMaskOneOrder) {
  const Problem problem{.batch = 2, .q_heads = 6, .kv_heads = 3, .q_len = 300, .kv_len = 300};
  PlanOptions options;
  options.order = "descending";
  const Plan plan = make_plan(problem, masks::causal(300, 300), options);
  EXPECT_EQ(plan.orders.size(), 1u);
  EXPECT_EQ(plan.order_of_head.size(), 6u);
  EXPECT_EQ(plan.orders[0]->group, 2);
  EXPECT_THROW(make_plan(problem, masks::causal(300, 200), {}), Error);
}

}  // namespace
}  // namespace verbatim
