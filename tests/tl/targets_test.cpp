// Targets: every file is known, a wrong one is refused by name, and reasoning knows its rates.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "tl/kernel.h"
#include "tl/programs.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

std::string file_of(const std::string& target) {
  return read_text(TARGETS + ("/" + target) + ".json");
}

TEST(Targets, EveryFileIsKnownByItsName) {
  std::set<std::string> files, known;
  for (const auto& entry : std::filesystem::directory_iterator(TARGETS))
    if (entry.path().extension() == ".json") files.insert(entry.path().stem());
  for (const tl::Target& target : tl::targets()) known.insert(target.name);
  EXPECT_EQ(known, files);
  for (const std::string& name : files)
    EXPECT_EQ(tl::target_from_json(file_of(name)).summary, tl::find_target(name).summary);
}

TEST(Targets, AWrongFileIsRefusedByName) {
  struct Wrong {
    const char *from, *to, *named;
  };
  for (const auto& [from, to, named] :
       {Wrong{"\"registers\": 65536,", "", "registers"},
        {"\"registers\": 65536", "\"registers\": 0", "registers"},
        {"\"warps\": 1", "\"warps\": 1.5", "warps"},
        {"\"async_copies\": true", "\"async_copies\": 1", "async_copies"},
        {"\"f16\": 312, ", "", "f16"},
        {"\"bf16\": 312", "\"bf16\": \"312\"", "bf16"},
        {"2039", "-2039", "memory_gb_per_s"}})
    try {
      tl::target_from_json(replaced(file_of("a100"), from, to));
      ADD_FAILURE() << to;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
}

TEST(Targets, RatesSayWhichDtypesTheyTake) {
  EXPECT_EQ(tl::find_target("t4").dtypes(), "f16");
  EXPECT_EQ(tl::find_target("a100").dtypes(), "f16, bf16");
  EXPECT_EQ(tl::find_target("h200").dtypes(), "f16, bf16, e4m3");
}

tl::VisitWork work_of(const std::string& name, TileShape tile, int64_t stages) {
  tl::ReasonOptions options = reason_options(64, "a100", tile);
  options.stages = stages;
  return tl::visit_work(tl::examine(tl::reason(sketch(name), name, options), {}).kernel);
}

TEST(Targets, AVisitIsItsProductsAndItsTraffic) {
  for (const int64_t stages : {1, 2}) {
    const tl::VisitWork forward = work_of("forward", {128, 32}, stages);
    EXPECT_EQ(forward.flops, 4 * 128 * 32 * 64);
    EXPECT_EQ(forward.bytes, 2 * 32 * 64 * 2);  // K and V
    const tl::VisitWork backward = work_of("backward", {64, 64}, stages);
    EXPECT_EQ(backward.flops, 10 * 64 * 64 * 64);
    // Q and dO, L and D, and dQ in f32, read and written.
    EXPECT_EQ(backward.bytes, 2 * 64 * 64 * 2 + 2 * 64 * 4 + 2 * 64 * 64 * 4);
  }
}

TEST(Targets, AChoiceOfTilesSaysWhatBoundsIt) {
  const auto line = [](int64_t head_dim, const char* target, TileShape tile) {
    const std::string text =
        tl::reason(sketch("forward"), "f", reason_options(head_dim, target, tile));
    const size_t at = text.find("param BN");
    return text.substr(at, text.find('\n', at) - at);
  };
  // 4 * 128 * 128 * 64 operations at 312e12 / 108 a second, 32 KiB at 2039e9 / 108.
  EXPECT_EQ(
      line(64, "a100", {128, 128}),
      "param BN = 128  // keys of a tile: so that a warp has 32 queries; a visit takes 1.45 us "
      "of products, 1.74 of memory: bound by products if L2 has 17 % of it");
  EXPECT_EQ(line(64, "h200", {256, 64}),
            "param BN = 64  // keys of a tile: as asked for; a visit takes 0.56 us of products, "
            "0.45 of memory: bound by products");
}

}  // namespace
}  // namespace verbatim::test
