#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "random_mask.h"

namespace verbatim {
namespace {

using test::Rng;

nlohmann::json case_of(const Mask& mask, const std::string& text) {
  auto visible = nlohmann::json::array();
  for (int64_t b = 0; b < mask.batch(); ++b) {
    auto heads = nlohmann::json::array();
    for (int64_t h = 0; h < mask.kv_heads(); ++h) {
      auto rows = nlohmann::json::array();
      for (int64_t q = 0; q < mask.q_len(); ++q) {
        std::string row;
        for (int64_t k = 0; k < mask.kv_len(); ++k) {
          row += mask.head(b, h).contains(q, k) ? '1' : '0';
        }
        rows.push_back(row);
      }
      heads.push_back(rows);
    }
    visible.push_back(heads);
  }
  return {{"source", to_mask_mod(mask)},
          {"text", text},
          {"q_len", mask.q_len()},
          {"kv_len", mask.kv_len()},
          {"visible", visible}};
}

TEST(MaskMod, EvaluatesToTheMaskInPython) {
  if (std::system("python3 -c '' 2> /dev/null") != 0) GTEST_SKIP() << "python3 is not installed";
  auto cases = nlohmann::json::array();
  for (const std::string& pattern : test::static_patterns()) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Rng rng(seed);
      const test::MaskCase c = test::random_case(pattern, rng, 40);
      cases.push_back(case_of(c.mask, c.text + " seed " + std::to_string(seed)));
    }
  }
  const int64_t docs[] = {1, 2, 3, 0, 4, 1, 2, 3, 2, 2}, lengths[] = {20, 7, 0};
  const Mask sparse = masks::uniform_block_sparse(20, 20, 4, 4, 0.5, 7, 3);
  cases.push_back(case_of(masks::causal_document(docs), "many documents"));
  cases.push_back(case_of(sparse, "block sparse"));
  cases.push_back(case_of(masks::full(20, 20).with_key_lengths(lengths), "key lengths"));
  cases.push_back(
      case_of(sparse.intersect(masks::causal(20, 20).with_key_lengths(lengths)), "all"));

  const std::string path = std::filesystem::path(testing::TempDir()) / "mask_mod_cases.json";
  std::ofstream(path) << cases;
  const std::string command = "python3 " MASK_MOD_DRIVER " " + path;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

TEST(MaskMod, IsReadable) {
  EXPECT_EQ(to_mask_mod(masks::causal(8, 10)),
            "# \"causal\": 8 queries x 10 keys\n"
            "def mask_mod(b, h, q_idx, kv_idx):\n"
            "    return (\n"
            "        (kv_idx - q_idx <= 2)\n"
            "    )\n");
}

TEST(MaskMod, NamesCannotEscapeTheirComment) {
  const Mask mask("a\nimport os", R"({"b\nimport os":1})", HeadMask{1, 1, {}, {}, {}});
  EXPECT_EQ(to_mask_mod(mask).find("\nimport os"), std::string::npos);
}

}  // namespace
}  // namespace verbatim
