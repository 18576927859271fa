// Reasoning: every sketch on every target is completed, twice the same, or refused by name.
#include <gtest/gtest.h>

#include "tl/kernel.h"
#include "tl/programs.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim::test {
namespace {

struct Sizes {
  int64_t head_dim, head_dim_v;
};

tl::ReasonOptions with_sizes(Sizes sizes, const std::string& target) {
  tl::ReasonOptions options = reason_options(sizes.head_dim, target);
  options.problem.head_dim_v = sizes.head_dim_v;
  return options;
}

/// The tile that a program has unless it is asked for another, or does not fit.
TileShape usual_tile(const tl::ReasonOptions& options, Pass pass) {
  const tl::Target& target = tl::find_target(options.target);
  const int64_t head_dim = options.problem.head_dim;
  if (pass == Pass::forward && target.mma.warps > 1 && head_dim > 128) return {128, 128};
  if (pass == Pass::backward || target.mma.warps > 1 || head_dim > 128)
    return default_tile(options.problem, pass);
  return {128, head_dim > 64 || !target.async_copies ? 64 : 128};
}

TEST(Reason, CompletesEverySketchForEveryTarget) {
  int smaller = 0;
  for (const char* name : {"forward", "backward"})
    for (const tl::Target& target : tl::targets())
      for (const Sizes sizes : {Sizes{64, 64}, Sizes{128, 128}, Sizes{192, 128}}) {
        SCOPED_TRACE(name + (" " + target.name) + " " + std::to_string(sizes.head_dim));
        tl::ReasonOptions options = with_sizes(sizes, target.name);
        const std::string text = tl::reason(sketch(name), name, options);
        EXPECT_EQ(tl::reason(sketch(name), name, options), text);
        EXPECT_TRUE(tl::check(text, {}).empty());
        EXPECT_EQ(tl::format(text, name), text);
        const TileShape tile = tl::examine(text, {}).kernel.tile;
        options.tile = usual_tile(options, *name == 'f' ? Pass::forward : Pass::backward);
        try {
          tl::reason(sketch(name), name, options);
          EXPECT_EQ(tile, options.tile);
        } catch (const Error& error) {  // asked for, it is refused; else the largest is taken
          EXPECT_EQ(error.code(), ErrorCode::unsupported);
          EXPECT_EQ(tile, nearest_tile(error));
          ++smaller;
        }
      }
  EXPECT_GE(smaller, 8);
}

TEST(Reason, AWarpgroupHas64QueriesAndOthersCopyAhead) {
  const auto kernel = [](Sizes sizes) {
    const tl::ReasonOptions options = with_sizes(sizes, "h200");
    return tl::examine(tl::reason(sketch("forward"), "f", options), {}).kernel;
  };
  EXPECT_EQ(kernel({64, 64}).warps, 12);
  EXPECT_EQ(kernel({64, 64}).stages, 4);
  for (const Sizes sizes : {Sizes{128, 128}, Sizes{192, 128}}) {
    EXPECT_EQ(kernel(sizes).warps, 8);
    EXPECT_EQ(kernel(sizes).stages, 2);
  }
}

TEST(Reason, FewerStagesWhereMoreCtasRunAtOnce) {
  const auto kernel = [](int64_t head_dim, const char* target) {
    return tl::examine(tl::reason(sketch("forward"), "f", reason_options(head_dim, target)), {})
        .kernel;
  };
  EXPECT_EQ(kernel(64, "a100").stages, 2);   // two CTAs of 80 KiB
  EXPECT_EQ(kernel(128, "a100").stages, 1);  // two of 64 KiB, not one of 96
  EXPECT_EQ(kernel(128, "l40s").stages, 2);  // one of either
  EXPECT_EQ(kernel(128, "a100").warps, 4);
}

TEST(Reason, TakesTheSizesThatAreAskedFor) {
  tl::ReasonOptions options = reason_options(64, "a100", {128, 32});
  options.stages = 1;
  options.warps = 8;
  options.measured = "some GPU";
  const std::string text = tl::reason(sketch("forward"), "f", options);
  const tl::Kernel kernel = tl::examine(text, {}).kernel;
  EXPECT_EQ(kernel.tile, (TileShape{128, 32}));
  EXPECT_EQ(kernel.stages, 1);
  EXPECT_EQ(kernel.warps, 8);
  EXPECT_NE(text.find("param BM = 128  // queries of a tile: measured on some GPU"),
            std::string::npos);
  options.tile = {64, 32};  // 4 blocks of 16 queries
  try {
    tl::reason(sketch("forward"), "f", options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(nearest_tile(error), (TileShape{128, 128}));
  }
}

TEST(Reason, ASmallTileHasAWarpFor16Rows) {
  for (const int64_t rows : {16, 32}) {
    const std::string text =
        tl::reason(sketch("selected"), "s", reason_options(128, "a100", {rows, 64}));
    EXPECT_NE(text.find("param warps = " + std::to_string(rows / 16)), std::string::npos) << text;
  }
}

TEST(Reason, EverySizeIsDoneOrRefused) {
  int done = 0, refused = 0;
  for (const char* target : {"t4", "a100", "l40s", "h200"})
    for (const char* name : {"forward", "backward", "selected"})
      for (const int64_t q : {0, 16, 64, 128, 192})
        for (const int64_t stages : {0, 1, 9})
          for (const int64_t warps : {0, 1, 4, 8, 12}) {
            tl::ReasonOptions sizes = reason_options(128, target, {q, q == 0 ? 0 : 64});
            sizes.stages = stages;
            sizes.warps = warps;
            try {
              tl::reason(sketch(name), name, sizes);
              ++done;
            } catch (const Error& error) {
              EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
              EXPECT_FALSE(error.details().nearest.empty()) << error.what();
              ++refused;
            }
          }
  EXPECT_GT(done, 50);
  EXPECT_GT(refused, 50);
}

TEST(Reason, EveryChoiceIsWhole) {
  for (const char* target : {"t4", "a100", "h200"})
    for (const char* name : {"forward", "backward"}) {
      const std::vector<tl::ReasonOptions> all =
          tl::choices(sketch(name), name, reason_options(128, target));
      EXPECT_GE(all.size(), 2u) << target << " " << name;
      for (const tl::ReasonOptions& one : all) {
        const tl::Kernel kernel = tl::examine(tl::reason(sketch(name), name, one), {}).kernel;
        EXPECT_EQ(kernel.tile, one.tile);
        EXPECT_EQ(kernel.stages, one.stages);
        EXPECT_EQ(kernel.warps, one.warps);
      }
      // What reason() takes unasked is among them, once.
      const tl::Kernel own =
          tl::examine(tl::reason(sketch(name), name, reason_options(128, target)), {}).kernel;
      EXPECT_EQ(std::ranges::count_if(all,
                                      [&](const tl::ReasonOptions& one) {
                                        return one.tile == own.tile && one.stages == own.stages &&
                                               one.warps == own.warps;
                                      }),
                1)
          << target << " " << name;
    }
  tl::ReasonOptions asked = reason_options(128, "a100", {128, 64});
  asked.warps = 8;
  for (const tl::ReasonOptions& one : tl::choices(sketch("forward"), "f", asked)) {
    EXPECT_EQ(one.tile, asked.tile);
    EXPECT_EQ(one.warps, 8);
  }
}

TEST(Reason, AMemoComesBackAndItsKeyIsTheProgram) {
  const tl::ReasonOptions options = reason_options(64);
  const std::string text = sketch("forward"), key = tl::choice_key(text, options);
  EXPECT_EQ(tl::choice_key("// a comment\n" + text, options), key);
  EXPECT_NE(tl::choice_key(text, reason_options(128)), key);
  EXPECT_NE(tl::choice_key(replaced(text, "Mask S", "Mask S with causal"), options), key);
  const tl::ChoiceMemo memo{"some GPU", {{key, {{64, 32}, 1, 4}}}};
  const tl::ChoiceMemo again = tl::choice_memo_from_json(tl::to_json(memo));
  EXPECT_EQ(again.device, memo.device);
  EXPECT_EQ(again.choices.at(key).tile, (TileShape{64, 32}));
  EXPECT_EQ(tl::to_json(again), tl::to_json(memo));
  for (const auto& [from, to] : {std::pair{"32", "0"},
                                 {"\"warps\": 4", "\"warps\": \"4\""},
                                 {"some GPU", "some\\nparam GPU"}})  // a second line of the program
    EXPECT_THROW(tl::choice_memo_from_json(replaced(tl::to_json(memo), from, to)), Error) << to;
}

TEST(Reason, EveryChoiceHasItsReason) {
  const std::string text = code("forward", 128);
  for (const char* choice :
       {"param target", "param BM", "param BN", "param stages", "param warps",
        "Allocate K in shared", "Allocate S in register", "Reshape S", "Wait K"}) {
    const size_t at = text.find(choice);
    ASSERT_NE(at, std::string::npos) << choice;
    EXPECT_NE(text.substr(at, text.find('\n', at) - at).find("//"), std::string::npos) << choice;
  }
}

TEST(Reason, AnEditedProgramHasAnotherHashAndACommentHasNot) {
  const auto hash = [](const std::string& text) {
    return tl::hash_of(tl::examine(text, {}).program);
  };
  const std::string text = code("backward");
  EXPECT_EQ(hash(text + "\n\n// a comment\n"), hash(text));
  EXPECT_NE(hash(replaced(text, "param stages = 2", "param stages = 1")), hash(text));
}

TEST(Reason, RefusesADtypeThatTheTargetLacks) {
  tl::ReasonOptions options = reason_options(64, "t4");
  options.problem.dtype = Dtype::bf16;
  try {
    tl::reason(sketch("forward"), "forward", options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.details().argument, "dtype");
    EXPECT_EQ(error.details().nearest, "f16");
  }
}

TEST(Reason, RefusesAFaultySketchWithItsFaults) {
  const std::string wrong = replaced(sketch("forward"), "K^T", "K");
  try {
    tl::reason(wrong, "wrong.tl", reason_options(64));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("wrong.tl:"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("transpose"), std::string::npos);
  }
}

}  // namespace
}  // namespace verbatim::test
