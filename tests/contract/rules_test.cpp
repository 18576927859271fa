// The rules of `auto`: what they may see, and what they choose.
#include "contract/rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

namespace verbatim::contract {
namespace {

TileMap tiles(const Mask& mask, int64_t head_dim = 128) {
  return TileMap(mask.head(0, 0), tile(Pass::backward, head_dim, head_dim));
}

std::string order(const Mask& mask, int32_t group, int64_t head_dim = 128) {
  return auto_order(Pass::backward, tiles(mask, head_dim), group);
}

std::string deciding_rule(const Mask& mask, int32_t group) {
  const Shape shape(tiles(mask), group);
  return std::ranges::find_if(order_rules(),
                              [&](const OrderRule& rule) { return rule.applies(shape); })
      ->name;
}

TEST(Rules, TheForwardHasOneOrder) {
  for (const int64_t q_len : {1, 300, 5000})
    for (const int64_t kv_len : {q_len, int64_t{20000}})
      EXPECT_EQ(auto_order(Pass::forward, tiles(masks::causal(q_len, kv_len)), 4), "descending");
}

TEST(Rules, EachDecidesSomething) {
  std::set<std::string> deciding;
  for (const Mask& mask :
       {masks::causal(16384, 16384), masks::full(4096, 4096), masks::global_sliding(8192, 397, 397),
        masks::causal(4096, 4096), masks::causal(1024, 1024),
        masks::uniform_block_sparse(4096, 4096, 64, 64, 0.3, 1, 1)})
    deciding.insert(deciding_rule(mask, 8));
  EXPECT_EQ(deciding.size(), order_rules().size());
}

TEST(Rules, ChooseAsMeasured) {  // on an H200: docs/lab/regret.md
  EXPECT_EQ(order(masks::full(4096, 4096), 1), "shift");
  EXPECT_EQ(order(masks::full(4096, 4096), 8), "shift");
  EXPECT_EQ(order(masks::full(8192, 8192), 1), "shift");
  EXPECT_EQ(order(masks::full(8192, 8192), 8), "shift");
  EXPECT_EQ(order(masks::full(65536, 4096), 8), "shift");
  EXPECT_EQ(order(masks::full(8193, 8193), 1), "descending");  // would rotate in chunks
  EXPECT_EQ(order(masks::causal(8192, 8192), 1), "descending");
  // From 4 KV tiles on, where a group keeps few chains rotating, two query tiles apart.
  for (const int64_t length : {512, 1024, 1408}) {
    EXPECT_EQ(order(masks::full(length, length), 8), "shift") << length;
    EXPECT_NE(order(masks::full(length, length), 1), "shift") << length;
    EXPECT_NE(order(masks::full(length, length), 8, 64), "shift") << length;
  }
  EXPECT_NE(order(masks::full(384, 384), 8), "shift");
  EXPECT_NE(order(masks::full(8192, 512), 8), "shift");  // few chains, all of them long
  EXPECT_NE(order(masks::full(512, 1024), 8), "shift");  // one visit behind each other
  EXPECT_EQ(order(masks::full(1024, 2048), 8), "shift");
  EXPECT_NE(order(masks::full(960, 2048), 8), "shift");  // several chains would start at one row
  EXPECT_NE(order(masks::causal(1024, 1024), 16), "descending");  // few chains, all of them long
  // Some KV tiles are seen by far more rows than others, from different query tiles, and from one.
  const std::vector<int64_t> documents{1237, 2307, 4034, 235, 212, 167};
  EXPECT_EQ(order(masks::share_question(documents), 8), "descending/even:4");
  EXPECT_EQ(order(masks::causal_blockwise(documents), 8), "descending/split");
}

// H200: docs/lab/groups.md.
TEST(Rules, EachQueryHeadHasChainsOfItsOwnWhereTheyAreLongEnough) {
  const std::string alone = "descending/split";
  for (const int64_t length : {3072, 4096, 8192, 16320})
    for (const int32_t group : {2, 3, 7, 8, 16})
      EXPECT_EQ(order(masks::causal(length, length), group), alone) << length << " " << group;
  for (const int64_t head_dim : {64, 192})
    EXPECT_EQ(order(masks::causal(8192, 8192), 8, head_dim), alone) << head_dim;
  EXPECT_EQ(order(masks::causal(65536, 65536), 3), alone);
  EXPECT_EQ(order(masks::causal(65536, 65536), 8, 64), alone);
  EXPECT_EQ(order(masks::prefix_lm_causal(8192, 6724), 8), alone);
  for (const int64_t length : {8193, 12288, 16320})  // too long to rotate
    EXPECT_EQ(order(masks::full(length, length), 8), alone) << length;
  // Not: too short, too many query heads, no group, or starting apart.
  for (const int64_t length : {1024, 2048, 2900})
    EXPECT_NE(order(masks::causal(length, length), 8), alone) << length;
  EXPECT_NE(order(masks::causal(8192, 8192), 32), alone);
  EXPECT_NE(order(masks::causal(8192, 8192), 1), alone);
  EXPECT_NE(order(masks::causal_sliding_window(8192, 8192, 1024), 8), alone);
  EXPECT_NE(order(masks::full(2048, 2048), 8), alone);
}

// H200: docs/lab/chunks.md, docs/lab/groups.md.
TEST(Rules, LongSequencesOfGroupsWalkChunksOfRows) {
  const std::string chunks = "right_to_left/rows:2048";
  for (const int64_t length : {16384, 16385, 20000, 65536, 1 << 20})
    for (const int32_t group : {4, 7, 16})
      EXPECT_EQ(order(masks::causal(length, length), group), chunks) << length << " " << group;
  EXPECT_EQ(order(masks::causal(16384, 16384), 8, 192), chunks);
  EXPECT_EQ(order(masks::prefix_lm_causal(32768, 8192), 8), chunks);
  EXPECT_EQ(order(masks::full(16384, 16384), 8), chunks);
  EXPECT_EQ(order(masks::full(32768, 32768), 4), chunks);
  EXPECT_EQ(order(masks::full(65536, 65536), 8), chunks);
  // Not: too short, chains of few visits, few query heads, rotating, or starting apart.
  EXPECT_NE(order(masks::causal(16320, 16320), 8), chunks);
  EXPECT_NE(order(masks::causal(2048, 65536), 8), chunks);
  EXPECT_NE(order(masks::causal(32768, 32768), 8, 64), chunks);
  EXPECT_NE(order(masks::causal(32768, 32768), 3), chunks);
  EXPECT_EQ(order(masks::full(16384, 8192), 8), "shift");
  EXPECT_EQ(order(masks::causal_sliding_window(65536, 65536, 16384), 8), "descending");
  EXPECT_EQ(order(masks::global_sliding(32768, 128, 2048), 8), "descending/even:4");
}

// H200: docs/lab/matched.md.
TEST(Rules, UnderMasksWithGapsVisitsAreMatched) {
  const auto blocks = [](int64_t length, int64_t block, double share) {
    return masks::uniform_block_sparse(length, length, block, block, share, 1, 1);
  };
  for (const int64_t length : {4096, 8192, 16384, 65536})
    EXPECT_EQ(order(blocks(length, 128, 0.2), 8), "matched/split") << length;
  for (const int64_t length : {8192, 16384, 65536})
    EXPECT_EQ(order(blocks(length, 64, 0.2), 1), "matched") << length;
  // Nearly all blocks are seen: hardly a tile is hidden.
  EXPECT_NE(order(blocks(8192, 64, 0.97), 32), "matched/split");
}

// Few heads are cut in as many parts as fill a wave, many in none; who may not know, in between.
TEST(Rules, CountWhatRunsTogetherWhereTheyMay) {
  const TileMap alone = tiles(masks::causal(1024, 1024));
  EXPECT_EQ(auto_order(Pass::backward, alone, 16, alone.count()), "descending/split");
  EXPECT_EQ(auto_order(Pass::backward, alone, 16, 1000 * alone.count()), "descending");
  EXPECT_NE(auto_order(Pass::backward, alone, 16), "descending/split");
  EXPECT_NE(auto_order(Pass::backward, alone, 16), "descending");
}

// H200: docs/lab/regret.md.
TEST(Rules, RotatingChainsAreAsManyPartsAsFillTheWorkers) {
  const auto known = [](int64_t length, int32_t group, int64_t heads, int64_t head_dim = 128) {
    const TileMap full = tiles(masks::full(length, length), head_dim);
    return auto_order(Pass::backward, full, group, heads * full.count());
  };
  EXPECT_EQ(known(2048, 8, 1), "shift/split");
  EXPECT_EQ(known(4096, 8, 1), "shift/split:4");
  EXPECT_EQ(known(8192, 8, 1), "shift/split:2");
  EXPECT_EQ(known(8192, 8, 2), "shift");
  EXPECT_EQ(known(1024, 8, 8), "shift/split:2");
  EXPECT_EQ(known(1024, 8, 16), "shift");
  EXPECT_EQ(known(1024, 8, 2, 64), "shift/split");  // one visit behind each other
  EXPECT_NE(known(1024, 8, 16, 64), "shift");
  EXPECT_EQ(known(4096, 1, 1), "shift");
  // Sets of 24 KV tiles: of two parts six, of which five go side by side.
  EXPECT_EQ(known(3072, 8, 3), "shift/split");
  EXPECT_EQ(known(3072, 8, 8), "shift");  // in pieces
  EXPECT_EQ(known(8193, 8, 1), "descending/split");
}

TEST(Rules, PartsAreEqualWhereEveryKvTileHasThem) {
  for (int32_t group = 1; group <= 16; ++group)
    for (const int64_t length : {300, 1000, 3000, 9000, 20000}) {
      Shape shape(tiles(masks::causal(length, length)), group);
      EXPECT_EQ(group % best_parts(shape, false), 0) << group << " of " << length;
      EXPECT_LE(best_parts(shape, true), std::max(group / 2, 4)) << group << " of " << length;
      shape.heads = 1;
      EXPECT_EQ(group % best_parts(shape, false), 0) << group << " of " << length;
    }
}

// H200: docs/lab/regret.md.
TEST(Rules, LongKvTilesAreCutInAnyNumberOfParts) {
  const auto known = [](int64_t length, int32_t group, int64_t heads) {
    const TileMap head = tiles(masks::global_sliding(length, length / 16, length / 16));
    return auto_order(Pass::backward, head, group, heads * head.count());
  };
  const std::array expected{"descending/even:2", "descending/even:3", "descending/even:4",
                            "descending/even:3", "descending/even:3", "descending/even:4",
                            "descending/even:4"};
  for (int32_t group = 2; group <= 8; ++group)
    EXPECT_EQ(known(8192, group, 0), expected[group - 2]) << group;
  EXPECT_EQ(known(8192, 5, 64), "descending/even:2");
  // One or two heads alone.
  for (const int64_t length : {2048, 16384})
    for (const int64_t heads : {1, 2})
      EXPECT_EQ(known(length, 7, heads), "descending/split") << length << " " << heads;
  EXPECT_EQ(known(2048, 1, 1), "descending");
}

// More visits a chain never ask for fewer parts, where nothing else changes.
TEST(Rules, LongerChainsHaveAsManyPartsOrMore) {
  int64_t before = 1;
  for (const int64_t rows : {128, 512, 2048, 8192}) {
    const Shape shape(tiles(masks::full(rows, 256)), 16);
    const int64_t parts = best_parts(shape, false);
    EXPECT_GE(parts, before) << rows;
    before = parts;
  }
}

TEST(Rules, EvenPartsMakeNoChainLongerThanTheLongest) {
  for (int64_t group = 1; group <= 16; ++group)
    for (int64_t parts = 1; parts <= group; ++parts)
      for (const int64_t visits : {1, 10, 50, 99, 100}) {
        const int64_t chains = even_parts(group, parts, visits, 100);
        const auto longest = [&](int64_t of) { return (group + of - 1) / of; };
        EXPECT_LE(visits * longest(chains), 100 * longest(parts));
        EXPECT_LE(chains, parts);
      }
}

}  // namespace
}  // namespace verbatim::contract
