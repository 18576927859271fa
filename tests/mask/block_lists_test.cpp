#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "mask/kept.h"
#include "random_mask.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using masks::BlockLists;
using test::Rng;
using test::uniform;

/// Random lists, of which some are equal, in arrays and as pairs.
struct Lists {
  int64_t batch, kv_heads;
  std::vector<int64_t> row_begin;
  std::vector<int32_t> columns;
  std::vector<std::vector<masks::Block>> pairs;

  Lists(Rng& rng, int64_t batch, int64_t kv_heads, int64_t q_blocks, int64_t k_blocks)
      : batch(batch), kv_heads(kv_heads) {
    for (int64_t list = 0; list < batch * kv_heads; ++list) {
      const bool again = list > 0 && uniform(rng, 0, 2) == 0;
      std::vector<masks::Block> own = again ? pairs.back() : std::vector<masks::Block>{};
      for (int64_t q = 0; q < q_blocks && !again; ++q)
        for (int64_t k = 0; k < k_blocks; ++k)
          if (uniform(rng, 0, 2) == 0) own.push_back({q, k});
      for (int64_t q = 0; q < q_blocks; ++q) {
        row_begin.push_back(std::ssize(columns));
        std::vector<int32_t> row;
        for (const masks::Block& block : own)
          if (block.q_block == q) row.push_back(static_cast<int32_t>(block.k_block));
        if (uniform(rng, 0, 1) == 0) std::ranges::shuffle(row, rng);
        columns.insert(columns.end(), row.begin(), row.end());
      }
      row_begin.push_back(std::ssize(columns));
      pairs.push_back(std::move(own));
    }
  }

  BlockLists arrays() const { return {batch, kv_heads, row_begin, columns}; }
  std::vector<std::vector<masks::Block>> of_entry(int64_t b) const {
    const auto first = pairs.begin() + b * kv_heads;
    return {first, first + kv_heads};
  }
};

void expect_same_heads(const Mask& mask, const Lists& lists, auto&& make) {
  ASSERT_EQ(mask.batch(), lists.batch);
  ASSERT_EQ(mask.kv_heads(), lists.kv_heads);
  for (int64_t b = 0; b < lists.batch; ++b) {
    const Mask entry = make(lists.of_entry(b));
    for (int64_t h = 0; h < lists.kv_heads; ++h) ASSERT_EQ(mask.head(b, h), entry.head(0, h));
  }
  std::vector<HeadMask> distinct;
  for (const HeadMask& head : mask.variants()) {
    ASSERT_TRUE(std::ranges::find(distinct, head) == distinct.end()) << "a variant comes twice";
    distinct.push_back(head);
  }
}

TEST(BlockLists, ArraysGiveTheMaskOfTheirPairs) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const int64_t q_len = uniform(rng, 0, 60), kv_len = uniform(rng, 0, 60);
    const int64_t block_q = uniform(rng, 1, 20), block_k = uniform(rng, 1, 70);
    const Lists lists(rng, uniform(rng, 1, 3), uniform(rng, 1, 3), (q_len + block_q - 1) / block_q,
                      (kv_len + block_k - 1) / block_k);
    const Mask mask = masks::uniform_block_sparse(q_len, kv_len, block_q, block_k, lists.arrays());
    expect_same_heads(mask, lists, [&](const auto& pairs) {
      return masks::uniform_block_sparse(q_len, kv_len, block_q, block_k, pairs);
    });
    const std::vector<int64_t> q_edges{0, 7, 9, 30}, k_edges{0, 1, 40, 64, 100};
    const Lists other(rng, 2, 2, 3, 4);
    expect_same_heads(
        masks::variable_block_sparse(q_edges, k_edges, other.arrays()), other,
        [&](const auto& pairs) { return masks::variable_block_sparse(q_edges, k_edges, pairs); });
    if (HasFatalFailure()) return;
  }
}

TEST(BlockLists, ManyAreReadSideBySide) {
  Rng rng(5);
  const Lists lists(rng, 1, 8, 128, 128);
  ASSERT_GT(lists.columns.size(), 32768u);
  const Mask mask = masks::uniform_block_sparse(1024, 1024, 8, 8, lists.arrays());
  expect_same_heads(mask, lists, [&](const std::vector<std::vector<masks::Block>>& blocks) {
    return masks::uniform_block_sparse(1024, 1024, 8, 8, blocks);
  });
}

TEST(BlockLists, JsonNamesAMaskWhileItIsKept) {
  Rng rng(1);
  const auto made = [&](int64_t length) {
    const Lists lists(rng, 1, 2, 4, 4);
    return masks::uniform_block_sparse(length, length, length / 4, length / 4, lists.arrays());
  };
  const auto name_of = [](const Mask& mask) {
    return fmt::format(R"({{"name": "{}", "params": {}}})", mask.name(), mask.params_json());
  };
  const auto digest_of = [](const Mask& mask) {
    const size_t begin = mask.params_json().find(R"("blocks":")") + 10;
    return mask.params_json().substr(begin, 64);
  };
  const Mask owned = made(64), dropped = made(64);
  masks::own(digest_of(owned), owned);
  EXPECT_EQ(masks::make(name_of(dropped), 64, 64, 2), dropped);
  for (int64_t other = 0; other < 64; ++other) made(68 + 4 * other);
  EXPECT_EQ(masks::make(name_of(owned), 64, 64, 2), owned);
  try {
    masks::make(name_of(dropped), 64, 64, 2);
    FAIL() << "a mask without an owner is kept for ever";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("nobody keeps these blocks"), std::string::npos);
  }
  auto other = [&](const std::string& from, const std::string& to) {
    std::string text = name_of(owned);
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {other("\"block_q\":16", "\"block_q\":8"), other("uniform_block_sparse", "full"),
        R"({"name": "variable_block_sparse", "params": {"q_edges": [0, 64],
                                      "k_edges": [0, 64], "blocks": ")" +
            digest_of(owned) + R"("}})"})
    EXPECT_THROW(masks::make(text, 64, 64, 2), Error) << text;
  const std::vector<int64_t> lengths{20, 64};
  const Mask cut = owned.with_key_lengths(lengths), crossed = cut.intersect(masks::causal(64, 64));
  EXPECT_EQ(masks::make(name_of(cut), 64, 64, 2), cut);
  EXPECT_EQ(masks::make(name_of(crossed), 64, 64, 2), crossed);
  masks::disown(digest_of(owned));
  EXPECT_THROW(masks::disown(digest_of(owned)), Error);
}

TEST(BlockLists, ErrorsNameTheArrayTheHeadAndTheRow) {
  const std::vector<int64_t> edges{0, 4, 8}, rows{0, 1, 2, 2, 3, 4};
  const std::vector<int32_t> columns{0, 1, 1, 0};
  const auto expect = [&](BlockLists lists, const std::string& named) {
    try {
      masks::variable_block_sparse(edges, edges, lists);
      FAIL() << "expected: " << named;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  };
  const std::vector<int32_t> outside{0, 1, 2, 0}, below{0, 1, 1, -1};
  expect({1, 2, rows, outside}, "columns of batch entry 0, KV head 1, row 0");
  expect({2, 1, rows, below}, "columns of batch entry 1, KV head 0, row 1");
  const std::vector<int64_t> both{0, 2, 2};
  const std::vector<int32_t> twice{1, 1};
  expect({1, 1, both, twice}, "1 twice");
  const std::vector<int64_t> back{0, 2, 1}, beyond{0, 2, 5};
  expect({1, 1, back, columns}, "row_begin of batch entry 0, KV head 0, row 2");
  expect({1, 1, beyond, columns}, "expected 2 to 4");
  expect({1, 3, rows, columns}, "6 offsets");
  expect({0, 1, {}, {}}, "batch");
}

}  // namespace
}  // namespace verbatim
