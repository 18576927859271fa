// Which arithmetic runs what: by names and sizes that all entries of a batch have in common.
#include <gtest/gtest.h>

#include "contract/contract.h"
#include "core/random.h"
#include "verbatim/error.h"
#include "verbatim/plan.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

Problem problem(int64_t head_dim, int64_t head_dim_v) {
  Problem p;
  p.q_len = p.kv_len = 300;
  p.head_dim = head_dim;
  p.head_dim_v = head_dim_v;
  p.dtype = Dtype::bf16;
  return p;
}
Problem problem(int64_t head_dim) { return problem(head_dim, head_dim); }

std::string of(Pass pass, const Problem& p, const std::string& order = "auto") {
  return arithmetic_of("sm90", pass, p, contract::tile(pass, p), order);
}

TEST(Arithmetic, IsTheSameWhateverTheNeighbours) {
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    Problem alone = problem(std::array{36, 64, 96, 128, 192}[random.between(0, 4)]);
    if (random.chance(0.5)) alone.head_dim_v = std::min<int64_t>(alone.head_dim, 128);
    alone.dtype = std::array{Dtype::f32, Dtype::bf16, Dtype::f16}[random.between(0, 2)];
    Problem among = alone;
    among.batch = random.between(1, 64);
    among.kv_heads = random.between(1, 16);
    among.q_heads = among.kv_heads * random.between(1, 16);
    among.q_len = random.between(0, 20000);
    among.kv_len = random.between(0, 20000);
    for (const Pass pass : {Pass::forward, Pass::backward})
      for (const char* order : {"auto", "descending", "ascending/split"})
        EXPECT_EQ(of(pass, alone, order), of(pass, among, order)) << to_json(among);
  }
}

TEST(Contract, TilesFollowFromBothHeadDims) {
  using contract::tile;
  for (const auto& [qk, v, forward, backward] :
       {std::tuple{8, 64, TileShape{192, 128}, TileShape{128, 128}},
        {64, 72, {128, 128}, {64, 128}},
        {128, 128, {128, 128}, {64, 128}},
        {136, 8, {128, 64}, {64, 128}},
        {192, 128, {128, 64}, {64, 128}},
        {192, 136, {64, 64}, {64, 64}},
        {128, 192, {64, 64}, {64, 64}},
        {200, 128, {64, 64}, {64, 64}},
        {256, 256, {64, 64}, {64, 64}}}) {
    EXPECT_EQ(tile(Pass::forward, qk, v), forward) << qk << " " << v;
    EXPECT_EQ(tile(Pass::backward, qk, v), backward) << qk << " " << v;
  }
}

TEST(Arithmetic, TakesTheHopperKernelsWhereTheyCan) {
  EXPECT_EQ(of(Pass::forward, problem(64)), contract::kSm90);
  EXPECT_EQ(of(Pass::backward, problem(128), "descending/split:2"), contract::kSm90);
  for (int64_t head_dim = 8; head_dim <= 128; head_dim += 8)  // what is between runs padded
    for (const Pass pass : {Pass::forward, Pass::backward})
      EXPECT_EQ(of(pass, problem(head_dim)), contract::kSm90) << head_dim;
  EXPECT_EQ(of(Pass::forward, problem(192, 128)), contract::kSm90);
  EXPECT_EQ(of(Pass::backward, problem(192, 128)), contract::kSm90);
  EXPECT_EQ(of(Pass::forward, problem(192, 128), "descending/split"), contract::kSm80);
  for (const auto& [softcap, dropout] : {std::pair{20.0, 0.0}, {0.0, 0.1}}) {
    Problem latent = problem(192, 128);
    latent.softcap = softcap;
    latent.dropout = dropout;
    EXPECT_EQ(of(Pass::forward, latent), contract::kSm90);
    EXPECT_EQ(of(Pass::backward, latent), contract::kSm80);
  }
  for (const auto& [qk, v] : {std::pair{192, 192},
                              {136, 136},
                              {36, 36},
                              {128, 192},
                              {160, 128},
                              {192, 64},
                              {128, 64},
                              {80, 72}})
    for (const Pass pass : {Pass::forward, Pass::backward})
      EXPECT_EQ(of(pass, problem(qk, v)), contract::kSm80) << qk << " " << v;
  EXPECT_EQ(of(Pass::forward, problem(64), "descending/split"), contract::kSm80);
  EXPECT_EQ(arithmetic_of("sm90", Pass::forward, problem(64), {64, 64}, "auto"), contract::kSm80);
  EXPECT_EQ(arithmetic_of("sm90", Pass::forward, problem(192, 128), {64, 64}, "auto"),
            contract::kSm80);
  EXPECT_EQ(arithmetic_of("sm80", Pass::forward, problem(64),
                          contract::tile(Pass::forward, problem(64)), ""),
            contract::kSm80);
  EXPECT_THROW(arithmetic_of("sm75", Pass::forward, problem(64), {64, 64}, "auto"), Error);
}

TEST(Arithmetic, IsPartOfTheFingerprint) {
  PlanOptions options;
  const Mask mask = masks::causal(300, 300);
  const Plan cpu = make_plan(problem(64), mask, options);
  options.arithmetic = "sm90";
  const Plan hopper = make_plan(problem(64), mask, options);
  EXPECT_EQ(cpu.arithmetic, contract::kCpu);
  EXPECT_NE(cpu.fingerprint(), hopper.fingerprint());
  EXPECT_EQ(plan_from_json(to_json(hopper)).arithmetic, contract::kSm90);
}

TEST(Arithmetic, PlansOfOtherVersionsAreNotRead) {
  const std::string text = to_json(make_plan(problem(64), masks::causal(300, 300), {}));
  const std::string member = "\"contract\":" + std::to_string(kContractVersion);
  std::string old = text;
  old.replace(old.find(member), member.size(), "\"contract\":1");
  try {
    plan_from_json(old);
    ADD_FAILURE() << "was read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("another version of the contract"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace verbatim
