#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "random_mask.h"
#include "support/corpus.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using test::Rng;
using test::uniform;

void expect_equal(const Mask& a, const Mask& b) {
  ASSERT_EQ(a.name(), b.name());
  ASSERT_EQ(nlohmann::json::parse(a.params_json()), nlohmann::json::parse(b.params_json()));
  ASSERT_EQ(a.batch(), b.batch());
  ASSERT_EQ(a.kv_heads(), b.kv_heads());
  ASSERT_EQ(a.variants(), b.variants());
  for (int64_t i = 0; i < a.batch(); ++i) {
    for (int64_t h = 0; h < a.kv_heads(); ++h) ASSERT_EQ(a.variant(i, h), b.variant(i, h));
  }
}

TEST(MaskJson, RoundTrips) {
  for (const std::string& pattern : test::static_patterns()) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      Rng rng(seed);
      const test::MaskCase c = test::random_case(pattern, rng, 60);
      SCOPED_TRACE(fmt::format("seed {}: {}", seed, c.text));
      const std::string text = to_json(c.mask);
      expect_equal(mask_from_json(text), c.mask);
      ASSERT_EQ(to_json(mask_from_json(text)), text);
    }
  }
  const int64_t lengths[] = {30, 40};
  const Mask rich = masks::uniform_block_sparse(40, 40, 8, 8, 0.5, 7, 4)
                        .intersect(masks::causal(40, 40).with_key_lengths(lengths));
  ASSERT_GT(rich.variants().size(), 4u);
  expect_equal(mask_from_json(to_json(rich)), rich);
}

TEST(MaskJson, NameAndParametersMakeTheMaskAgain) {
  const auto remade = [](const Mask& mask) {
    const nlohmann::json json = {{"name", mask.name()},
                                 {"params", nlohmann::json::parse(mask.params_json())}};
    return masks::make(json.dump(), mask.q_len(), mask.kv_len(), mask.kv_heads());
  };
  for (const std::string& pattern : test::static_patterns()) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Rng rng(seed);
      const test::MaskCase c = test::random_case(pattern, rng, 60);
      SCOPED_TRACE(fmt::format("seed {}: {}", seed, c.text));
      expect_equal(remade(c.mask), c.mask);
    }
  }
  const int64_t lengths[] = {30, 40}, edges[] = {0, 10, 40};
  const std::vector<masks::Block> blocks[] = {{{0, 0}, {1, 1}}, {{1, 0}}};
  for (const Mask& mask : {masks::uniform_block_sparse(40, 40, 8, 8, 0.5, 7, 4),
                           masks::uniform_block_sparse(40, 40, 20, 20, blocks),
                           masks::variable_block_sparse(edges, edges, 0.5, 7, 2),
                           masks::variable_block_sparse(edges, edges, blocks)}) {
    expect_equal(remade(mask), mask);
    expect_equal(remade(mask.intersect(masks::causal(40, 40).with_key_lengths(lengths))),
                 mask.intersect(masks::causal(40, 40).with_key_lengths(lengths)));
  }
  const int64_t shorter[] = {20, 35};
  for (const Side side : {Side::right, Side::left}) {
    const Mask padded = masks::causal(40, 40).with_lengths(shorter, lengths, side);
    expect_equal(remade(padded), padded);
    expect_equal(remade(padded.with_key_lengths(shorter)), padded.with_key_lengths(shorter));
  }
}

TEST(MaskJson, UnknownNamesAndParametersAreRefused) {
  const auto message = [](const char* text) -> std::string {
    try {
      masks::make(text, 4, 4, 1);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message(R"({"name": "cuasal", "params": {}})").find("got 'cuasal'"), std::string::npos);
  EXPECT_NE(message(R"({"name": "causal", "params": {"window": 3}})").find("got window"),
            std::string::npos);
  EXPECT_NE(message(R"({"name": "full_sliding_window", "params": {}})").find("'window' is missing"),
            std::string::npos);
  EXPECT_NE(message(R"({"name": "uniform_block_sparse",
                        "params": {"block_q": 2, "block_k": 2, "blocks": [[[0, 0, 0]]]}})")
                .find("[q_block, k_block]"),
            std::string::npos);
  // A hint is followed: what it says is not refused again.
  EXPECT_EQ(message("[]").find("nearest"), std::string::npos);
  EXPECT_NE(message(R"({"name": "causal", "window": 3})").find("nearest: params"),
            std::string::npos);
  EXPECT_EQ(message(R"({"name": "causal", "params": {}, "window": 3})").find("nearest"),
            std::string::npos);
  EXPECT_NE(message(R"({"name": "causal", "params": {}, "q_len": 4, "variant_of": [0]})")
                .find("'kv_len' is missing"),
            std::string::npos);
  EXPECT_NE(message(R"({"name": "uniform_block_sparse",
                        "params": {"block_q": 2, "block_k": 2, "blocks": [[0, 0]]}})")
                .find("nearest: [[[0, 0]]]"),
            std::string::npos);
  EXPECT_NE(message(R"({"name": "causal", "params": []})").find("expected an object"),
            std::string::npos);
}

TEST(MaskJson, NamesWhatIsWrong) {
  const auto good = nlohmann::json::parse(to_json(masks::causal(4, 4)));
  const auto message = [&](auto change) -> std::string {
    nlohmann::json json = good;
    change(json);
    try {
      mask_from_json(json.dump());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "";
  };
  const auto expect = [&](const std::string& part, auto change) {
    const std::string text = message(change);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(message([](auto&) {}), "");
  for (const auto& [key, value] : good.items()) {
    expect("'" + key + "' is missing", [&](auto& json) { json.erase(key); });
    EXPECT_NE(message([&](auto& json) { json[key] = 1.5; }), "") << key;
    EXPECT_NE(message([&](auto& json) { json[key] = nullptr; }), "") << key;
  }
  auto slices = [](auto& json) -> auto& { return json["variants"][0]["slices"]; };
  expect("overlap", [&](auto& json) { slices(json).push_back({1, 2, 0, 1, nullptr, nullptr}); });
  expect("slices is out of range", [&](auto& json) { slices(json)[0][1] = 5; });
  expect("a list of 6", [&](auto& json) { slices(json)[0].push_back(1); });
  expect("wrong type or range", [&](auto& json) { slices(json)[0][1] = 1e300; });
  expect("wrong type or range", [&](auto& json) { slices(json)[0][1] = UINT64_MAX; });
  expect("a band", [&](auto& json) { slices(json)[0][4] = INT64_MIN; });
  expect("q_breaks", [&](auto& json) { json["variants"][0]["q_breaks"] = {5}; });
  expect("q_len", [&](auto& json) { json["q_len"] = -1; });
  expect("no such variant", [&](auto& json) { json["variant_of"] = {int64_t{1} << 32}; });
  expect("one variant per", [&](auto& json) { json["batch"] = 2; });
  // What only a mask by name has would hide nothing here.
  expect("there is no member 'key_lengths'", [&](auto& json) { json["key_lengths"] = {2}; });
  expect("nearest: k_breaks", [&](auto& json) {
    json["variants"][0].erase("k_breaks");
    json["variants"][0]["kv_breaks"] = {2};
  });
  EXPECT_NE(message([&](auto& json) { json["variants"] = nlohmann::json::array(); }), "");
}

TEST(MaskJson, ParametersThatAreEmptyAreNone) {
  const Mask mask("made", "", masks::causal(4, 4).variants(), {0}, 1, 1);
  EXPECT_EQ(mask.params_json(), "{}");
  EXPECT_EQ(mask_from_json(to_json(mask)), mask);
  EXPECT_NE(to_mask_mod(mask), "");
}

TEST(MaskJson, ReadsTheCorpus) {
  test::check_corpus("mask_json", [](const std::string& text) { mask_from_json(text); });
}

TEST(MaskJson, LimitsSizeAndDepth) {
  EXPECT_THROW(mask_from_json(std::string((64u << 20) + 1, ' ')), Error);
  EXPECT_THROW(mask_from_json(std::string(1 << 20, '[')), Error);
  const auto nested = [](int depth) {
    return R"({"name":"m","params":{"x":)" + std::string(depth, '[') + std::string(depth, ']') +
           R"(},"q_len":1,"kv_len":1,"batch":1,"kv_heads":1,"variant_of":[0],)" +
           R"("variants":[{"slices":[],"q_breaks":[],"k_breaks":[]}]})";
  };
  EXPECT_NO_THROW(mask_from_json(nested(60)));
  EXPECT_THROW(mask_from_json(nested(70)), Error);
}

TEST(MaskJson, SurvivesMutatedText) {
  const int64_t docs[] = {3, 4, 0, 2}, lengths[] = {5, 9};
  const std::string text = to_json(masks::share_question(docs).with_key_lengths(lengths));
  const std::string alphabet = "0123456789-+.eE[]{},:\"nul \\\xff";
  int accepted = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Rng rng(seed);
    std::string mutated = text;
    const int64_t changes = uniform(rng, 1, 4);
    for (int64_t i = 0; i < changes && !mutated.empty(); ++i) {
      const auto at = static_cast<size_t>(uniform(rng, 0, std::ssize(mutated) - 1));
      switch (uniform(rng, 0, 3)) {
        case 0:
          mutated.erase(at, uniform(rng, 1, 8));
          break;
        case 1:
          mutated.insert(at, mutated.substr(uniform(rng, 0, std::ssize(mutated) - 1), 12));
          break;
        default:
          mutated[at] = alphabet[rng() % alphabet.size()];
      }
    }
    try {
      const Mask mask = mask_from_json(mutated);
      ++accepted;
      for (const HeadMask& head : mask.variants()) ASSERT_NO_THROW(head.validate());
      if (mask.q_len() < 100 && mask.kv_len() < 100) {
        for (const HeadMask& head : mask.variants()) TileMap(head, {4, 4});
      }
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::invalid_argument) << "seed " << seed << ": " << e.what();
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace verbatim
