// The bits of the contract's present version. A change of tiles, constants, order rules or kernels
// that changes one of them has to raise kContractVersion or the number of an arithmetic. Then
// VERBATIM_WRITE_GOLDEN=FILE contract_test --gtest_filter='Golden.*' writes what is computed here,
// on a CPU and, where there is one, on a Hopper GPU, and keeps the rest.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "backend/backend.h"
#include "core/file.h"
#include "core/random.h"
#include "core/sha256.h"
#include "support/guarded_tensor.h"
#include "verbatim/verbatim.h"

namespace verbatim::test {
namespace {

using Json = nlohmann::ordered_json;

struct Case {
  std::string name;
  Problem problem;
  Mask mask;
  Level level = Level::invariant;
};

Case make_case(std::string name, const Mask& mask, int64_t q_heads, int64_t kv_heads,
               int64_t head_dim, int64_t batch = 1, int64_t head_dim_v = 0) {
  Problem p;
  p.batch = batch;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.q_len = mask.q_len();
  p.kv_len = mask.kv_len();
  p.head_dim = head_dim;
  p.head_dim_v = head_dim_v > 0 ? head_dim_v : head_dim;
  p.dtype = Dtype::bf16;
  return {std::move(name), p, mask};
}

/// Small ones, which are run.
std::vector<Case> run_cases() {
  const std::vector<int64_t> documents{380, 0, 147, 61}, lengths{250, 610};
  std::vector<Case> cases{
      make_case("full", masks::full(1700, 1700), 8, 2, 64),
      make_case("causal", masks::causal(500, 565), 4, 4, 128),
      make_case("documents", masks::causal_document(documents), 6, 2, 64),
      make_case("question", masks::share_question(documents), 8, 1, 128),
      make_case("window", masks::causal_sliding_window(610, 610, 200), 2, 1, 192),
      make_case("padded", masks::causal(610, 610).with_key_lengths(lengths), 4, 2, 128, 2),
      make_case("blocks", masks::uniform_block_sparse(610, 610, 64, 64, 0.3, 7, 2), 4, 2, 96),
      make_case("gaps", masks::uniform_block_sparse(2000, 2000, 64, 64, 0.2, 7, 2), 4, 2, 128),
      make_case("global", masks::global_sliding(1500, 100, 100), 10, 2, 128),
      make_case("latent", masks::causal(400, 465), 2, 2, 192, 1, 128),
      make_case("dropout", masks::causal(400, 400), 4, 2, 64)};
  cases.back().problem.softcap = 20;
  cases.back().problem.dropout = 0.2;
  cases.push_back(make_case("counted", masks::full(1000, 1000), 8, 1, 128));
  cases.back().level = Level::gpu_to_gpu;
  return cases;
}

/// Large ones, of which the plans are compared: each rule of `auto` decides some.
std::vector<Case> planned_cases() {
  const std::vector<int64_t> documents{1606, 18, 3147, 124, 561, 433, 2303}, one{3000, 2600, 2592},
      blocks{1237, 2307, 4034, 235, 212, 167};
  return {make_case("full 4k", masks::full(4096, 4096), 16, 16, 128),
          make_case("full 8k, groups", masks::full(8192, 8192), 64, 8, 128),
          make_case("full 1k, groups", masks::full(1024, 1024), 64, 8, 64),
          make_case("causal 2k", masks::causal(2048, 2048), 16, 16, 64),
          make_case("causal 8k, groups", masks::causal(8192, 8192), 64, 8, 128),
          make_case("causal 16k, groups", masks::causal(16384, 16384), 28, 4, 128),
          make_case("full, few queries", masks::full(500, 8192), 64, 8, 128),
          make_case("full 12k, groups", masks::full(12288, 12288), 64, 8, 128),
          make_case("full 24k, groups", masks::full(24576, 24576), 32, 4, 128),
          make_case("documents 8k", masks::causal_document(documents), 32, 8, 128),
          make_case("question 8k", masks::share_question(one), 32, 8, 128),
          make_case("blockwise 8k", masks::causal_blockwise(blocks), 64, 8, 128),
          make_case("global 8k", masks::global_sliding(8192, 397, 397), 64, 8, 128),
          make_case("global 8k, groups of 5", masks::global_sliding(8192, 397, 397), 40, 8, 128),
          make_case("prefix 8k", masks::prefix_lm_causal(8192, 6724), 64, 8, 128),
          make_case("blocks 8k, groups", masks::uniform_block_sparse(8192, 8192, 64, 64, 0.3, 1, 8),
                    32, 8, 128),
          make_case("blocks 16k", masks::uniform_block_sparse(16384, 16384, 128, 128, 0.3, 1, 2), 2,
                    2, 128),
          make_case("wide heads", masks::causal(4096, 4096), 16, 4, 256)};
}

Json& golden() {
  static Json json = Json::parse(std::ifstream(GOLDEN));
  return json;
}

/// Adds `value` under `path` to what the next golden file will be, when one is asked for.
void keep(const std::vector<std::string>& path, const Json& value) {
  const char* to = std::getenv("VERBATIM_WRITE_GOLDEN");
  if (!to) return;
  Json& json = golden();
  Json* at = &json;
  for (const std::string& key : path) at = &(*at)[key];
  *at = value;
  json["contract"] = kContractVersion;
  for (const ArithmeticInfo& info : arithmetics()) json["arithmetics"][info.family] = info.id;
  write_file(to, json.dump(1) + "\n");
}

constexpr const char* kAdvice =
    "bits of the contract have changed: raise kContractVersion, or the number of the arithmetic, "
    "say so in CHANGELOG.md and write the golden file anew";

TEST(Golden, IsOfThisVersion) {
  ASSERT_EQ(golden().at("contract"), kContractVersion) << "write the golden file anew";
  for (const ArithmeticInfo& info : arithmetics())
    EXPECT_EQ(golden().at("arithmetics").at(info.family), info.id) << "write it anew";
}

TEST(Golden, PlansKeepTheirOrders) {
  std::vector<Case> cases = planned_cases();
  for (Case& each : run_cases()) cases.push_back(std::move(each));
  for (const auto& [name, problem, mask, level] : cases) {
    Json found;
    for (const char* family : {"cpu", "sm80", "sm90"}) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        PlanOptions options;
        options.pass = pass;
        options.level = level;
        options.arithmetic = family;
        options.machine = make_machine("h200");
        found[family].push_back(make_plan(problem, mask, options).fingerprint());
      }
    }
    EXPECT_EQ(golden()["plans"][name], found) << name << ": " << kAdvice;
    keep({"plans", name}, found);
  }
}

/// SHA-256 of each output.
Json hashes(const Case& c, const std::string& device, const std::string& family) {
  const Problem& p = c.problem;
  AttentionOptions options;
  options.device = device;
  options.plan.arithmetic = family;
  options.plan.level = c.level;
  const Attention attention(p, c.mask, options);
  const std::array<int64_t, 4> q_shape{p.batch, p.q_len, p.q_heads, p.head_dim},
      k_shape{p.batch, p.kv_len, p.kv_heads, p.head_dim},
      v_shape{p.batch, p.kv_len, p.kv_heads, p.head_dim_v},
      o_shape{p.batch, p.q_len, p.q_heads, p.head_dim_v};
  GuardedTensor q(p.dtype, q_shape), k(p.dtype, k_shape), v(p.dtype, v_shape), o(p.dtype, o_shape),
      dout(p.dtype, o_shape), dq(p.dtype, q_shape), dk(p.dtype, k_shape), dv(p.dtype, v_shape);
  GuardedTensor lse = GuardedTensor::rows({p.batch, p.q_heads, p.q_len});
  uint64_t seed = 11;
  for (GuardedTensor* input : {&q, &k, &v, &dout}) fill_normal(input->view(), seed++);
  attention.forward({q.view(), k.view(), v.view(), o.view(), lse.row_view()});
  attention.backward({q.view(), k.view(), v.view(), o.view(), dout.view(), lse.row_view(),
                      dq.view(), dk.view(), dv.view()});
  Json found;
  const std::pair<const char*, GuardedTensor*> outputs[] = {
      {"o", &o}, {"lse", &lse}, {"dq", &dq}, {"dk", &dk}, {"dv", &dv}};
  for (const auto& [name, output] : outputs) {
    const auto& bytes = output->bytes();
    found[name] = sha256(std::as_bytes(std::span(bytes)));
  }
  return found;
}

void expect_golden_bits(const std::string& device, const std::string& family) {
  for (const Case& c : run_cases()) {
    const Json found = hashes(c, device, family);
    EXPECT_EQ(golden()["bits"][family][c.name], found)
        << family << " " << c.name << ": " << kAdvice;
    keep({"bits", family, c.name}, found);
  }
}

TEST(Golden, TheCpuKeepsItsBits) { expect_golden_bits("cpu", "cpu"); }

TEST(Golden, AHopperGpuKeepsItsBits) {
  std::unique_ptr<Backend> backend;
  try {
    backend = make_backend("cuda");
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  if (backend->arithmetic() != "sm90")
    GTEST_SKIP() << "the bits are those of compute capability 9.0";
  for (const char* family : {"sm90", "sm80"}) expect_golden_bits("cuda", family);
}

}  // namespace
}  // namespace verbatim::test
