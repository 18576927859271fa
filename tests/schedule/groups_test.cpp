// Orders whose chains walk a group: in parts, evenly, by chunks of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "schedule/row_chunks.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

// "/split:N": chains of a KV tile that visit equal shares of the group, to within one head.
TEST(Orders, SplitAGroupInParts) {
  const auto tiles =
      std::make_shared<const TileMap>(masks::causal(64, 64).variants().front(), TileShape{16, 32});
  const auto heads_of = [&](const std::string& name, int32_t group) {
    const auto order = make_order(Pass::backward, name, tiles, group);
    std::vector<std::pair<int32_t, int32_t>> heads;  // first and last of each chain of KV tile 0
    for (const Chain& chain : order->chains) {
      if (chain.tile != 0) continue;
      EXPECT_EQ(chain.addend, std::ssize(heads));
      heads.emplace_back(order->runs[chain.run_begin].q_head,
                         order->runs[chain.run_end - 1].q_head);
    }
    return heads;
  };
  using Heads = std::vector<std::pair<int32_t, int32_t>>;
  for (const std::string name : {"descending", "shift"}) {
    EXPECT_EQ(heads_of(name + "/split:2", 8), (Heads{{0, 3}, {4, 7}})) << name;
    EXPECT_EQ(heads_of(name + "/split:4", 7), (Heads{{0, 1}, {2, 3}, {4, 5}, {6, 6}})) << name;
    EXPECT_EQ(heads_of(name + "/split:9", 2), heads_of(name + "/split", 2)) << name;
    EXPECT_EQ(heads_of(name, 2), (Heads{{0, 1}})) << name;
  }
  for (const char* name :
       {"descending/split:", "descending/split:0", "descending/split:1", "descending/split:2x",
        "descending/split2", "descending/split:-2", "descending/split:99999999999"}) {
    EXPECT_THROW(make_order(Pass::backward, name, tiles, 8), Error) << name;
  }
  EXPECT_THROW(make_order(Pass::forward, "descending/split:2", tiles, 8), Error);
}

// "/even:N": a question in N parts, and of the answers that it is longer than as few as keep their
// chains no longer than a part of it.
TEST(Orders, SplitLongKvTilesInEvenParts) {
  const Mask mask = masks::share_question(std::vector<int64_t>{32, 512, 64, 416});
  const auto tiles = std::make_shared<const TileMap>(mask.variants().front(), TileShape{16, 32});
  const auto parts_of = [&](const std::string& name, int32_t group) {
    const auto order = make_order(Pass::backward, name, tiles, group);
    std::vector<int32_t> parts(tiles->kv_tiles());
    int64_t longest = 0, of_question = 0;
    for (const Chain& chain : order->chains) {
      parts[chain.tile] = chain.addends;
      longest = std::max(longest, order->visits(chain));
      if (chain.tile == 0) of_question = std::max(of_question, order->visits(chain));
    }
    EXPECT_EQ(longest, of_question) << name;
    return parts;
  };
  // Rows that see each KV tile: 64; 32, 30, ..., 2; 4, 2; 26, 24, ..., 2.
  std::vector<int32_t> parts = parts_of("descending/even:4", 8);
  EXPECT_EQ(parts[0], 4);
  EXPECT_EQ(parts[1], 2);  // 8 * 32 visits, of a part 4 * 32 = 2 * 64
  EXPECT_EQ(parts[9], 1);  // 8 * 16
  EXPECT_EQ(parts[8], 2);  // 8 * 18
  EXPECT_EQ(parts.back(), 1);
  parts = parts_of("right_to_left/even:8", 8);
  EXPECT_EQ(parts[0], 8);
  EXPECT_EQ(parts[1], 4);
  EXPECT_EQ(parts[2], 4);  // 30 rows: of three heads 90 visits, of two 60
  for (const int32_t count : parts_of("ascending/even:2", 2)) EXPECT_LE(count, 2);
  for (const char* name : {"descending/even", "descending/even:", "descending/even:1",
                           "descending/even:2x", "shift/even:2", "none/even:2"}) {
    EXPECT_THROW(make_order(Pass::backward, name, tiles, 8), Error) << name;
  }
  EXPECT_THROW(make_order(Pass::forward, "descending/even:2", tiles, 8), Error);
}

// "/rows:N": a chain for each chunk, in the direction of the order; addends of rows stay.
TEST(Orders, ChunksOfRowsHaveChainsOfTheirOwn) {
  const std::vector<int64_t> docs{130, 70};
  const auto tiles = std::make_shared<const TileMap>(
      masks::causal_document(docs).variants().front(), TileShape{16, 32});
  using Visit = std::array<int32_t, 3>;  // query head, query tile, addend
  const auto visits_of_chain = [](const HeadOrder& order, const Chain& chain) {
    std::vector<Visit> visits;
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      const verbatim::Run& run = order.runs[r];
      for (int32_t i = 0; i < run.count; ++i)
        visits.push_back({run.q_head, run.tile(i), run.addend_of(i)});
    }
    return visits;
  };
  // Three tiles a chunk; the second document starts with tile 9, and so does a chunk.
  const auto chunk = [](const Visit& visit) {
    return visit[1] < 9 ? visit[1] / 3 : 3 + (visit[1] - 9) / 3;
  };
  for (const std::string suffix : {"", "/split:2", "/even:3"}) {
    for (const std::string base : {"ascending", "descending", "right_to_left"}) {
      SCOPED_TRACE(base + suffix);
      const auto plain = make_order(Pass::backward, base + suffix, tiles, 5);
      const auto chunked = make_order(Pass::backward, base + suffix + "/rows:48", tiles, 5);
      EXPECT_EQ(plain->row_addends, chunked->row_addends);
      std::map<std::pair<int32_t, int32_t>, std::vector<Visit>> found;  // by KV tile, addend
      for (const Chain& chain : chunked->chains)
        EXPECT_TRUE(
            found.try_emplace({chain.tile, chain.addend}, visits_of_chain(*chunked, chain)).second);
      EXPECT_EQ(found.size(), chunked->chains.size());
      EXPECT_GT(found.size(), plain->chains.size());
      // Parts of a chunk, then those of the next.
      std::map<std::array<int32_t, 3>, std::vector<Visit>> expected;  // by KV tile, chunk, part
      for (const Chain& chain : plain->chains)
        for (const Visit& visit : visits_of_chain(*plain, chain)) {
          const int32_t number = base == "descending" ? -chunk(visit) : chunk(visit);
          expected[{chain.tile, number, chain.addend}].push_back(visit);
        }
      ASSERT_EQ(found.size(), expected.size());
      auto next = found.begin();
      for (const auto& [key, visits] : expected) {
        EXPECT_EQ(next->first.first, key[0]);
        EXPECT_EQ(next->second, visits);
        ++next;
      }
      for (const Chain& chain : chunked->chains)
        EXPECT_EQ(found.count({chain.tile, chain.addends - 1}), 1U);
    }
  }
  for (const char* name :
       {"descending/rows", "descending/rows:", "descending/rows:0", "descending/rows:-1",
        "descending/rows:6x", "shift/rows:48", "none/rows:48", "descending/rows:48/split:2",
        "descending/rows:48/rows:48"}) {
    EXPECT_THROW(make_order(Pass::backward, name, tiles, 5), Error) << name;
  }
  EXPECT_THROW(make_order(Pass::forward, "descending/rows:48", tiles, 5), Error);
}

TEST(Orders, AutoCutsTheRowsOfLongDocumentsAlone) {
  const std::vector<int64_t> documents{17000, 500, 20000};
  const Mask mask = masks::causal_document(documents);
  const auto tiles = std::make_shared<const TileMap>(mask.head(0, 0), TileShape{64, 128});
  const auto order = make_order(Pass::backward, "auto", tiles, 4);
  EXPECT_EQ(order->name, "auto");
  EXPECT_EQ(row_chunk_edges(*order),
            (std::vector<int64_t>{0,     2048,  4096,  6144,  8192,  10240, 12288,
                                  14336, 16384, 17000, 17500, 19548, 21596, 23644,
                                  25692, 27740, 29788, 31836, 33884, 35932, 37500}));
  EXPECT_EQ(row_chunk_edges(*make_order(Pass::backward, "auto", tiles, 3)),
            (std::vector<int64_t>{0, 17000, 17500, 37500}));
}

}  // namespace
}  // namespace verbatim
