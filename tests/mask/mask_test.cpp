#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "random_mask.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "";
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Mask, KeyLengthsHideKeysPerBatchEntry) {
  const int64_t lengths[] = {5, 0, 8, 5};
  const Mask mask = masks::causal(8, 8).with_key_lengths(lengths);
  EXPECT_EQ(mask.batch(), 4);
  EXPECT_EQ(mask.kv_heads(), 1);
  EXPECT_EQ(mask.variants().size(), 3u);
  EXPECT_EQ(mask.variant(0, 7), mask.variant(3, 0));
  for (int64_t b = 0; b < 4; ++b) {
    for (int64_t q = 0; q < 8; ++q) {
      for (int64_t k = 0; k < 8; ++k) {
        EXPECT_EQ(mask.head(b, 0).contains(q, k), k <= q && k < lengths[b]);
      }
    }
  }
  EXPECT_EQ(mask.area(4, 6, 2), 6 * (30 + 0 + 36 + 30));
  const auto params = nlohmann::json::parse(mask.params_json());
  EXPECT_EQ(params, nlohmann::json::parse(R"({"key_lengths":[5,0,8,5]})"));
}

TEST(Mask, KeyLengthsNameTheBadEntry) {
  const Mask mask = masks::full(4, 6);
  const auto with = [&](std::vector<int64_t> lengths) {
    return message_of([&] { mask.with_key_lengths(lengths); });
  };
  EXPECT_TRUE(holds(with({3, 7}), "got 7, expected 0 to 6 (nearest: 6)"));
  EXPECT_TRUE(holds(with({-1}), "(nearest: 0)"));
  EXPECT_NE(with({}), "");
  EXPECT_NE(message_of([&] {
              const int64_t two[] = {1, 2}, three[] = {1, 2, 3};
              mask.with_key_lengths(two).with_key_lengths(three);
            }),
            "");
}

TEST(Mask, LengthsHideThePaddingOfQueriesAndKeys) {
  const int64_t q_lengths[] = {5, 0, 8, 5}, key_lengths[] = {6, 3, 9, 6};
  for (const Side side : {Side::right, Side::left}) {
    const Mask mask = masks::causal(8, 9).with_lengths(q_lengths, key_lengths, side);
    EXPECT_EQ(mask.batch(), 4);
    EXPECT_EQ(mask.variants().size(), 3u);
    for (int64_t b = 0; b < 4; ++b) {
      const auto inside = [&](int64_t x, int64_t length, int64_t axis) {
        return side == Side::left ? x >= axis - length : x < length;
      };
      for (int64_t q = 0; q < 8; ++q)
        for (int64_t k = 0; k < 9; ++k)
          EXPECT_EQ(mask.head(b, 0).contains(q, k),
                    k <= q + 1 && inside(q, q_lengths[b], 8) && inside(k, key_lengths[b], 9));
    }
    const auto params = nlohmann::json::parse(mask.params_json());
    EXPECT_EQ(params["side"], side == Side::left ? "left" : "right");
    EXPECT_EQ(params["q_lengths"].size(), 4u);
  }
  const int64_t three[] = {1, 2, 3}, far[] = {1, 2, 9};
  EXPECT_TRUE(holds(message_of([&] { masks::full(8, 8).with_lengths(three, q_lengths); }),
                    "expected 3, as q_lengths"));
  EXPECT_TRUE(
      holds(message_of([&] { masks::full(8, 8).with_lengths(far, three); }), "q_lengths[2]"));
}

TEST(Mask, IntersectBroadcastsAndKeepsDistinctVariants) {
  const int64_t lengths[] = {5, 8, 8};
  const Mask padded = masks::full(8, 8).with_key_lengths(lengths);
  const std::vector<std::vector<masks::Block>> lists = {{{0, 0}}, {{0, 1}, {1, 1}}};
  const Mask sparse = masks::uniform_block_sparse(8, 8, 4, 4, lists);
  const Mask both = padded.intersect(sparse);
  EXPECT_EQ(both.batch(), 3);
  EXPECT_EQ(both.kv_heads(), 2);
  // Key block 0 lies below both lengths, so its head has one variant for all entries.
  EXPECT_EQ(both.variants().size(), 3u);
  EXPECT_EQ(both.variant(0, 0), both.variant(1, 0));
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t q = 0; q < 8; ++q) {
        for (int64_t k = 0; k < 8; ++k) {
          EXPECT_EQ(both.head(b, h).contains(q, k),
                    padded.head(b, h).contains(q, k) && sparse.head(b, h).contains(q, k));
        }
      }
    }
  }
  EXPECT_EQ(both.name(), "full&uniform_block_sparse");
  const auto params = nlohmann::json::parse(both.intersect(masks::causal(8, 8)).params_json());
  ASSERT_EQ(params["masks"].size(), 3u);
  EXPECT_EQ(params["masks"][0]["params"]["key_lengths"].size(), 3u);
  EXPECT_EQ(params["masks"][2]["name"], "causal");

  const int64_t two[] = {1, 2};
  EXPECT_NE(message_of([&] { padded.intersect(masks::full(8, 8).with_key_lengths(two)); }), "");
}

TEST(Mask, AreaCountsBatchAndHeads) {
  EXPECT_EQ(masks::causal(4, 4).area(3, 8, 2), 3 * 8 * 10);
  const std::vector<std::vector<masks::Block>> lists = {{{0, 0}}, {{0, 0}, {1, 0}}};
  const Mask sparse = masks::uniform_block_sparse(8, 8, 4, 4, lists);
  EXPECT_EQ(sparse.area(2, 6, 2), 2 * 3 * (16 + 32));
  EXPECT_NE(message_of([&] { sparse.area(2, 6, 3); }), "");
  EXPECT_NE(message_of([&] { sparse.area(2, 5, 2); }), "");
  const int64_t n = int64_t{1} << 30;
  EXPECT_TRUE(holds(message_of([&] { masks::full(n, n).area(8, 1, 1); }), "63 bits"));
  EXPECT_TRUE(holds(message_of([&] { masks::full(4, 4).area(4 * n, 4 * n, 1); }), "63 bits"));
}

TEST(Mask, ConstructionRefusesWhatDoesNotFit) {
  const HeadMask head{4, 4, {{0, 4, 0, 4}}, {}, {}};
  const HeadMask other{4, 5, {}, {}, {}};
  const HeadMask overlapping{4, 4, {{0, 4, 0, 4}, {3, 4, 0, 4}}, {}, {}};
  EXPECT_EQ(message_of([&] { Mask("m", "{}", {head}, {0, 0}, 1, 2); }), "");
  EXPECT_TRUE(holds(message_of([&] { Mask("m", "{}", overlapping); }), "overlap"));
  EXPECT_TRUE(holds(message_of([&] { Mask("m", "[1]", head); }), "JSON object"));
  EXPECT_TRUE(holds(message_of([&] { Mask("m", "{", head); }), "JSON object"));
  EXPECT_NE(message_of([&] { Mask("m", "{}", {head, other}, {0, 1}, 1, 2); }), "");
  EXPECT_NE(message_of([&] { Mask("m", "{}", {head}, {1}, 1, 1); }), "");
  EXPECT_NE(message_of([&] { Mask("m", "{}", {head}, {-1}, 1, 1); }), "");
  EXPECT_NE(message_of([&] { Mask("m", "{}", {head}, {0, 0}, 1, 1); }), "");
  EXPECT_NE(message_of([&] { Mask("m", "{}", {}, {}, 0, 1); }), "");
  EXPECT_NE(message_of([&] { masks::full(2, 2).variant(-1, 0); }), "");
  EXPECT_NE(message_of([&] { Mask("m", "{}", {head}, {0, 0}, 1, 2).variant(0, 2); }), "");
}

TEST(Masks, RefuseParametersOutOfRange) {
  using namespace masks;
  const int64_t docs[] = {3, 4}, negative[] = {3, -4}, huge[] = {int64_t{1} << 30, 1};
  const int64_t one[] = {2}, three[] = {1, 1, 1}, bad[] = {1, -1};
  const auto window = message_of([&] { causal_sliding_window(4, 4, -1); });
  EXPECT_TRUE(holds(window, "[mask.causal_sliding_window] window is out of range; got -1"));
  EXPECT_TRUE(holds(window, "(nearest: 0)"));
  EXPECT_NE(message_of([&] { full_sliding_window(4, 4, -1); }), "");
  EXPECT_TRUE(holds(message_of([&] { full(-1, 4); }), "q_len"));
  EXPECT_TRUE(holds(message_of([&] { causal(4, INT64_MIN); }), "kv_len"));
  EXPECT_NE(message_of([&] { causal((int64_t{1} << 30) + 1, 4); }), "");
  EXPECT_TRUE(holds(message_of([&] { full_document(negative); }), "doc_lengths[1]"));
  EXPECT_TRUE(holds(message_of([&] { causal_document(huge); }), "doc_lengths[1]"));
  EXPECT_NE(message_of([&] { global_sliding(4, -1, 1); }), "");
  EXPECT_NE(message_of([&] { global_sliding(4, 1, -1); }), "");
  EXPECT_NE(message_of([&] { prefix_lm_causal(4, -1); }), "");
  EXPECT_EQ(message_of([&] { prefix_lm_document(docs, one); }), "");
  EXPECT_TRUE(holds(message_of([&] { prefix_lm_document(docs, three); }), "1 or 2 numbers"));
  EXPECT_NE(message_of([&] { prefix_lm_document(docs, bad); }), "");
  EXPECT_TRUE(holds(message_of([&] { block_causal_document(docs, 0); }), "(nearest: 1)"));
  const int64_t cu[] = {0, 3, 7}, falling[] = {0, 3, 2}, late[] = {1, 3, 7};
  EXPECT_EQ(message_of([&] { from_cu_seqlens(cu, cu, true); }), "");
  EXPECT_TRUE(holds(message_of([&] { from_cu_seqlens(falling, cu, true); }), "cu_seqlens_q[2]"));
  EXPECT_TRUE(holds(message_of([&] { from_cu_seqlens(cu, late, true); }), "cu_seqlens_k[0]"));
  EXPECT_NE(message_of([&] { from_cu_seqlens(cu, docs, true); }), "");
  EXPECT_NE(message_of([&] { from_cu_seqlens({}, {}, true); }), "");
}

TEST(Masks, WindowsShowKeysOnBothSides) {
  const int64_t cu_q[] = {0, 3, 3, 10}, cu_k[] = {0, 5, 6, 11};
  for (const std::optional<int64_t> left : {std::optional<int64_t>(), {0}, {2}, {-1}, {99}}) {
    for (const std::optional<int64_t> right : {std::optional<int64_t>(), {0}, {1}, {-2}, {99}}) {
      const Mask mask = masks::windows(cu_q, cu_k, left, right);
      for (int64_t q = 0; q < 10; ++q) {
        for (int64_t k = 0; k < 11; ++k) {
          const int s = q < 3 ? 0 : 2;
          const int64_t after = k - (q + cu_k[s + 1] - cu_q[s + 1]);
          const bool seen = cu_k[s] <= k && k < cu_k[s + 1] && (!left || -after <= *left) &&
                            (!right || after <= *right);
          EXPECT_EQ(mask.head(0, 0).contains(q, k), seen) << q << " " << k;
        }
      }
      const std::string spec = R"({"name": "windows", "params": )" + mask.params_json() + "}";
      EXPECT_EQ(masks::make(spec, 10, 11, 1), mask);
    }
  }
  EXPECT_EQ(masks::windows(cu_q, cu_k, {}, 0).head(0, 0),
            masks::from_cu_seqlens(cu_q, cu_k, true).head(0, 0));
}

TEST(Masks, MisspeltNamesGetTheNearest) {
  const auto named = [](const std::string& name) {
    return message_of([&] { masks::make(R"({"params": {}, "name": ")" + name + "\"}", 4, 4, 1); });
  };
  EXPECT_TRUE(holds(named("casual"), "(nearest: causal)"));
  EXPECT_TRUE(holds(named("full_documents"), "(nearest: full_document)"));
}

TEST(Masks, TakeParametersBeyondThePlane) {
  const int64_t one[] = {0, 9};
  EXPECT_EQ(masks::windows(one, one, INT64_MAX, INT64_MAX).head(0, 0),
            masks::windows(one, one, {}, {}).head(0, 0));
  EXPECT_EQ(masks::causal_sliding_window(9, 9, INT64_MAX).head(0, 0),
            masks::causal(9, 9).head(0, 0));
  EXPECT_EQ(masks::prefix_lm_causal(9, INT64_MAX).head(0, 0), masks::full(9, 9).head(0, 0));
  const int64_t docs[] = {9};
  EXPECT_EQ(masks::block_causal_document(docs, INT64_MAX).area(1, 1, 1), 81);
}

TEST(Masks, BreakAtEveryDocument) {
  const int64_t docs[] = {0, 3, 0, 0, 4, 2, 0};
  const std::vector<int64_t> breaks{0, 3, 3, 3, 7, 9};
  const int64_t prefix[] = {1};
  for (const Mask& mask :
       {masks::full_document(docs), masks::causal_document(docs), masks::share_question(docs),
        masks::causal_blockwise(docs), masks::prefix_lm_document(docs, prefix),
        masks::block_causal_document(docs, 2)}) {
    EXPECT_EQ(mask.head(0, 0).q_breaks, breaks) << mask.name();
    EXPECT_EQ(mask.head(0, 0).k_breaks, breaks) << mask.name();
    const auto params = nlohmann::json::parse(mask.params_json());
    EXPECT_EQ(params["doc_lengths"].get<std::vector<int64_t>>(),
              std::vector<int64_t>(std::begin(docs), std::end(docs)));
  }
  const int64_t cu_q[] = {0, 0, 5, 9}, cu_k[] = {0, 2, 2, 6};
  const HeadMask packed = masks::from_cu_seqlens(cu_q, cu_k, true).head(0, 0);
  EXPECT_EQ(packed.q_breaks, (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(packed.k_breaks, (std::vector<int64_t>{2, 2}));
}

using Starts = std::vector<std::pair<int64_t, int64_t>>;
Starts starts(const HeadMask& mask) {
  Starts found;
  for (const Sequence& s : sequences(mask)) found.emplace_back(s.q_begin, s.k_begin);
  return found;
}

TEST(Sequences, AreDocumentsThatNoSliceJoins) {
  const Starts whole{{0, 0}};
  const int64_t docs[] = {3, 0, 4};
  const Starts each{{0, 0}, {3, 3}, {3, 3}};
  const int64_t prefix[] = {1};
  for (const Mask& mask :
       {masks::full_document(docs), masks::causal_document(docs),
        masks::prefix_lm_document(docs, prefix), masks::block_causal_document(docs, 2),
        masks::causal_document(docs).intersect(masks::full(7, 7))})
    EXPECT_EQ(starts(mask.head(0, 0)), each) << mask.name();
  for (const Mask& mask : {masks::share_question(docs), masks::causal_blockwise(docs),
                           masks::causal(7, 7), masks::full(0, 5)})
    EXPECT_EQ(starts(mask.head(0, 0)), whole) << mask.name();
  // Lengths of their own on either axis, and sequences without queries or keys.
  const int64_t cu_q[] = {0, 0, 5, 9}, cu_k[] = {0, 2, 2, 6};
  EXPECT_EQ(starts(masks::from_cu_seqlens(cu_q, cu_k, false).head(0, 0)),
            (Starts{{0, 0}, {0, 2}, {5, 2}}));
  // Slices that start in a document and leave it on one axis.
  EXPECT_EQ(starts({8, 8, {{0, 5, 0, 4}}, {4}, {4}}), whole);
  EXPECT_EQ(starts({8, 8, {{0, 4, 0, 5}}, {4}, {4}}), whole);
  EXPECT_EQ(starts({8, 8, {{4, 8, 3, 8}}, {4}, {4}}), whole);
  EXPECT_EQ(starts({8, 8, {{4, 8, 4, 8}}, {4}, {4}}), (Starts{{0, 0}, {4, 4}}));
  EXPECT_EQ(starts({8, 8, {{4, 8, 4, 8}}, {4}, {}}), whole);
}

TEST(Masks, AreNamedInTheOrderOfTheDocumentation) {
  ASSERT_EQ(masks::names().size(), 15u);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(masks::names()[i], test::static_patterns()[i]);
  EXPECT_STREQ(masks::names()[13], "variable_block_sparse");
  EXPECT_STREQ(masks::names()[14], "windows");
}

// Where padding begins and ends follows from the visible positions.
TEST(Sequences, KnowTheirPadding) {
  const auto only = [](const HeadMask& mask) {
    const auto found = sequences(mask);
    EXPECT_EQ(found.size(), 1u);
    return found.front();
  };
  const auto sequence = [](Interval q, Interval k, Interval core) {
    return Sequence{.q = q, .k = k, .core = core};
  };
  const int64_t n[] = {5};
  const auto padded = [&](const Mask& mask, Side side) {
    return only(mask.with_lengths(n, n, side).head(0, 0));
  };
  for (const Mask& mask : {masks::full(8, 8), masks::causal(8, 8), masks::global_sliding(8, 1, 2),
                           masks::causal_sliding_window(8, 8, 2), masks::prefix_lm_causal(8, 4)}) {
    EXPECT_EQ(only(mask.head(0, 0)), sequence({0, 8}, {0, 8}, {0, 8})) << mask.name();
    EXPECT_EQ(padded(mask, Side::right), sequence({0, 5}, {0, 5}, {0, 5})) << mask.name();
    EXPECT_EQ(padded(mask, Side::left), sequence({3, 8}, {3, 8}, {3, 8})) << mask.name();
  }
  // Rows and keys that differ in number, padded on the left: a chunk that continues a cache counts
  // from its own first key, which slices alone do not tell from a window.
  const int64_t rows[] = {2}, keys[] = {5};
  for (const Mask& mask : {masks::causal(3, 8), masks::causal_sliding_window(3, 8, 1)})
    EXPECT_EQ(only(mask.with_lengths(rows, keys, Side::left).head(0, 0)),
              sequence({1, 3}, {3, 8}, {1, 3}))
        << mask.name();
  EXPECT_EQ(only(masks::full(3, 8).with_lengths(rows, rows, Side::left).head(0, 0)),
            sequence({1, 3}, {6, 8}, {1, 3}));
  EXPECT_EQ(only(masks::causal(8, 3).with_lengths(keys, rows, Side::left).head(0, 0)),
            sequence({3, 8}, {1, 3}, {3, 8}));
  // Hidden as keys only, behind and before the others: all rows are computed, five are the core.
  EXPECT_EQ(only(masks::causal(8, 8).with_key_lengths(n).head(0, 0)),
            sequence({0, 8}, {0, 5}, {0, 5}));
  EXPECT_EQ(only({8, 8, {{0, 8, 3, 8}}, {}, {}}), sequence({0, 8}, {3, 8}, {3, 8}));
  EXPECT_EQ(only({8, 8, {{3, 8, 3, 8, Slice::kNoLow, 0}}, {}, {}}),
            sequence({3, 8}, {3, 8}, {3, 8}));
  // A decoded row, a chunk, alone and beside longer entries: tiles count from the first key.
  EXPECT_EQ(only(masks::causal_sliding_window(1, 8, 2).head(0, 0)),
            sequence({0, 1}, {0, 8}, {0, 1}));
  EXPECT_EQ(only({8, 9, {{0, 1, 5, 8}}, {}, {}}), sequence({0, 1}, {0, 8}, {0, 1}));
  EXPECT_EQ(only(masks::causal_sliding_window(3, 8, 2).head(0, 0)),
            sequence({0, 3}, {0, 8}, {0, 3}));
  // More queries than keys.
  EXPECT_EQ(only(masks::causal(8, 5).head(0, 0)), sequence({0, 8}, {0, 5}, {0, 8}));
  EXPECT_EQ(only(masks::full(8, 5).head(0, 0)), sequence({0, 8}, {0, 5}, {0, 5}));
  // Nothing to see.
  EXPECT_EQ(only(masks::full(8, 0).head(0, 0)), sequence({0, 8}, {0, 0}, {0, 8}));
  // In each document.
  const int64_t documents[] = {4, 0, 6};
  const HeadMask packed = masks::causal_document(documents).head(0, 0);
  const HeadMask moved{
      12, 12, {{1, 5, 1, 5, Slice::kNoLow, 0}, {5, 9, 5, 9, Slice::kNoLow, 0}}, {5, 5}, {5, 5}};
  EXPECT_EQ(sequences(packed)[2], (Sequence{4, 4, {4, 10}, {4, 10}, {4, 10}}));
  EXPECT_EQ(sequences(moved), (std::vector<Sequence>{{0, 0, {1, 5}, {1, 5}, {1, 5}},
                                                     {5, 5, {5, 5}, {5, 5}, {5, 5}},
                                                     {5, 5, {5, 9}, {5, 9}, {5, 9}}}));
}

}  // namespace
}  // namespace verbatim
