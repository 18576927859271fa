// Programs in the interpreter against the reference in double precision, and their bits.
//
// VERBATIM_TL_CASES: random problems of each pass (100); VERBATIM_TL_SEED: number of the first (1);
// VERBATIM_TL_REPEATS: runs of the backward whose bits are compared (5).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>

#include "backend/cpu/cases.h"
#include "core/random.h"
#include "mask/random_mask.h"
#include "tl/programs.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"
#include "verbatim/verbatim.h"

namespace verbatim::test {
namespace {

constexpr double kLimit = 2;  // of the error ratio: FlashAttention's factor

int64_t number(const char* variable, int64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoll(value);
}

template <class T, size_t n>
T pick(Rng& rng, const std::array<T, n>& values) {
  return values[uniform(rng, 0, n - 1)];
}

/// A problem that both sketches can be completed for, and how it is planned.
struct Drawn {
  Problem problem;
  Mask mask;
  std::string target, backward_order;
  TileShape tile;
  int32_t workers;

  std::string text() const {
    return fmt::format("{} {} target {} tiles {}x{} order {} workers {}", to_json(problem),
                       mask.name(), target, tile.q, tile.kv, backward_order, workers);
  }
};

Mask random_mask(Rng& rng, int64_t longest) {
  if (uniform(rng, 0, 6) == 0)
    return masks::uniform_block_sparse(uniform(rng, 1, longest), uniform(rng, 1, longest), 16, 24,
                                       0.4, rng(), 1);
  Mask mask = random_case(static_patterns()[uniform(rng, 0, std::ssize(static_patterns()) - 1)],
                          rng, longest)
                  .mask;
  if (uniform(rng, 0, 5) != 0) return mask;
  const std::array rows{uniform(rng, 0, mask.q_len())}, keys{uniform(rng, 0, mask.kv_len())};
  return mask.with_lengths(rows, keys, uniform(rng, 0, 1) ? Side::left : Side::right);
}

Drawn draw(uint64_t seed) {
  Rng rng(seed);
  const Mask mask = random_mask(rng, pick(rng, std::array<int64_t, 4>{20, 70, 150, 300}));
  Problem p;
  p.batch = mask.batch() == 1 && uniform(rng, 0, 3) == 0 ? 2 : mask.batch();
  p.kv_heads = uniform(rng, 1, 2);
  p.q_heads = p.kv_heads * uniform(rng, 1, 3);
  p.q_len = mask.q_len();
  p.kv_len = mask.kv_len();
  std::tie(p.head_dim, p.head_dim_v) =
      pick(rng, std::array{std::pair{64, 64}, std::pair{64, 64}, std::pair{128, 128},
                           std::pair{192, 128}, std::pair{64, 32}});
  if (uniform(rng, 0, 3) == 0) p.scale = static_cast<double>(uniform(rng, -100, 100)) / 100;
  const tl::Target& target = tl::targets()[uniform(rng, 0, std::ssize(tl::targets()) - 1)];
  p.dtype = target.takes(Dtype::bf16) && uniform(rng, 0, 1) ? Dtype::bf16 : Dtype::f16;
  std::vector<std::string> orders;
  for (const OrderInfo& info : verbatim::orders())
    if (info.pass == Pass::backward && info.level >= Level::gpu_to_gpu)
      for (const char* suffix : {"", "/split", "/split:2"})
        orders.push_back(std::string(info.name) + suffix);
  orders.push_back("auto");
  return {p,
          mask,
          target.name,
          orders[uniform(rng, 0, std::ssize(orders) - 1)],
          {pick(rng, std::array<int64_t, 3>{64, 64, 128}),
           pick(rng, std::array<int64_t, 4>{32, 64, 64, 128})},
          static_cast<int32_t>(uniform(rng, 0, 5))};
}

std::string complete(const char* name, const Drawn& d) {
  tl::ReasonOptions options{d.problem, d.tile, d.target, Level::invariant};
  try {
    return tl::reason(sketch(name), name, options);
  } catch (const Error& error) {  // too large a tile: what is nearest
    if (std::sscanf(error.details().nearest.c_str(), "--tile-q %ld --tile-kv %ld", &options.tile.q,
                    &options.tile.kv) != 2)
      throw;
    return tl::reason(sketch(name), name, options);
  }
}

TileShape tile_of(const std::string& program) {
  TileShape tile;
  const size_t at = program.find("param BM = ");
  std::sscanf(program.c_str() + at, "param BM = %ld", &tile.q);
  std::sscanf(program.c_str() + program.find("param BN = "), "param BN = %ld", &tile.kv);
  return tile;
}

/// Both passes by programs. Their tiles may differ, so each pass is its own Attention.
struct Programs {
  std::string forward, backward;

  static AttentionOptions options(const std::string& program, const std::string& order = "auto",
                                  int32_t workers = 0) {
    AttentionOptions o;
    o.plan.level = Level::gpu_to_gpu;
    o.plan.tile = tile_of(program);
    o.plan.order = order;
    o.plan.workers = workers;
    o.kernels = {program};
    return o;
  }

  void run(const Case& c, const Drawn& d, int threads) const {
    Attention(d.problem, d.mask, options(forward)).forward(c.forward(), {.threads = threads});
    Attention(d.problem, d.mask, options(backward, d.backward_order, d.workers))
        .backward(c.backward(), {.threads = threads});
  }
};

void poison(Case& c) {
  for (GuardedTensor* output : {&c.o, &c.lse, &c.dq, &c.dk, &c.dv}) output->poison();
}

/// The outputs that are too far off.
std::string described(const Check& check) {
  std::string text;
  const std::array outputs{std::pair{"o", &check.o}, std::pair{"lse", &check.lse},
                           std::pair{"dq", &*check.dq}, std::pair{"dk", &*check.dk},
                           std::pair{"dv", &*check.dv}};
  for (const auto& [name, c] : outputs)
    if (!c->within(kLimit))
      text += fmt::format("{}: ratio {:.3g}, {} non-finite, at {} got {} expected {}\n", name,
                          c->ratio, c->nonfinite_mismatches, c->worst, c->got, c->expected);
  return text;
}

TEST(Programs, RandomProblems) {
  const int64_t first = number("VERBATIM_TL_SEED", 1), cases = number("VERBATIM_TL_CASES", 100);
  double worst = 0;
  std::map<std::string, int64_t> of_target;
  for (int64_t seed = first; seed < first + cases; ++seed) {
    const Drawn d = draw(seed);
    ++of_target[d.target];
    SCOPED_TRACE(fmt::format("VERBATIM_TL_SEED={} VERBATIM_TL_CASES=1: {}", seed, d.text()));
    const Programs programs{complete("forward", d), complete("backward", d)};
    Case c(d.problem, d.mask, seed);
    if (seed % 10 == 0 && d.problem.kv_len > 0) c.v.set(0, d.problem.kv_len / 2, 0, 3, NAN);
    if (seed % 10 == 5 && d.problem.q_len > 0) c.q.set(0, d.problem.q_len / 2, 0, 3, NAN);
    programs.run(c, d, 1);
    const Check check = c.check();
    EXPECT_TRUE(check.within(kLimit)) << described(check);
    EXPECT_TRUE(c.guards_intact());
    worst = std::max(worst, check.worst_ratio());
    if (HasFailure()) return;
  }
  fmt::print("{} problems by both sketches, {}, worst error ratio {:.2f}\n", cases, of_target,
             worst);
}

/// The forward of a problem in e4m3 by an L40S's program. Scales are powers of two and others.
struct E4m3Run {
  Drawn d;
  Case c;
  std::vector<float> q_scales, k_scales, v_scales;
  ForwardTensors tensors;

  E4m3Run(Drawn drawn, uint64_t seed)
      : d(in_e4m3(std::move(drawn))), c(d.problem, d.mask, seed), tensors(c.forward()) {
    Rng rng(seed);
    for (auto& [scales, heads] :
         {std::pair{&q_scales, d.problem.q_heads}, std::pair{&k_scales, d.problem.kv_heads},
          std::pair{&v_scales, d.problem.kv_heads}})
      for (int64_t h = 0; h < heads; ++h)
        scales->push_back(static_cast<float>(uniform(rng, 1, 64)) / 16);
    if (seed % 4 != 0) tensors.q.scales = q_scales.data();
    if (seed % 4 != 1) tensors.k.scales = k_scales.data();
    if (seed % 4 != 2) tensors.v.scales = v_scales.data();
  }
  void run() {
    Attention(d.problem, d.mask, Programs::options(complete("forward", d))).forward(tensors);
  }
  Check check() const {
    return check_forward(d.problem, d.mask, tensors, Selection::all(d.problem));
  }

 private:
  static Drawn in_e4m3(Drawn d) {
    d.problem.dtype = Dtype::e4m3;
    d.target = "l40s";
    return d;
  }
};

TEST(Programs, RandomProblemsInE4m3) {
  const int64_t first = number("VERBATIM_TL_SEED", 1), cases = number("VERBATIM_TL_CASES", 100);
  double worst = 0;
  for (int64_t seed = first; seed < first + cases; ++seed) {
    E4m3Run run(draw(seed), seed);
    SCOPED_TRACE(fmt::format("VERBATIM_TL_SEED={} VERBATIM_TL_CASES=1: {}", seed, run.d.text()));
    const Problem& p = run.d.problem;
    if (seed % 10 == 0 && p.kv_len > 0) run.c.v.set(0, p.kv_len / 2, 0, 3, NAN);
    if (seed % 10 == 5 && p.q_len > 0) run.c.q.set(0, p.q_len / 2, 0, 3, NAN);
    run.run();
    const Check check = run.check();
    EXPECT_TRUE(check.within(kLimit))
        << fmt::format("o {:.3g} of {:.3g} (floor {:.3g}), lse {:.3g}", check.o.error,
                       check.o.baseline_error, check.o.floor, check.lse.ratio);
    EXPECT_TRUE(run.c.guards_intact());
    worst = std::max(worst, check.worst_ratio());
    if (HasFailure()) return;
  }
  fmt::print("{} problems, worst error ratio {:.2f}\n", cases, worst);
}

TEST(Programs, AScaleOfE4m3IsOfItsHead) {
  Drawn d = draw(1);
  d.problem = {.q_heads = 2, .kv_heads = 2, .q_len = 70, .kv_len = 70};
  d.mask = masks::causal(70, 70);
  d.tile = {64, 64};
  E4m3Run run(d, 3);
  run.run();
  EXPECT_TRUE(run.check().within(kLimit));
  for (std::vector<float>* scales : {&run.q_scales, &run.k_scales, &run.v_scales}) {
    std::swap(scales->at(0), scales->at(1));
    EXPECT_FALSE(run.check().within(kLimit));
    std::swap(scales->at(0), scales->at(1));
  }
}

// Each of many keys is about e^-9 as likely as two: below what e4m3 holds of P as it is.
TEST(Programs, E4m3KeepsManySmallProbabilities) {
  Drawn d = draw(1);
  d.problem = {.q_len = 1, .kv_len = 3000};
  d.mask = masks::full(1, 3000);
  d.tile = {64, 64};
  E4m3Run run(d, 1);
  run.tensors.q.scales = run.tensors.k.scales = run.tensors.v.scales = nullptr;
  for (const int64_t key : {0, 2999})  // whichever tile comes first
    for (int64_t c = 0; c < 64; ++c) run.c.k.set(0, key, 0, c, 3.4f * run.c.q.get(0, 0, 0, c));
  fill_uniform(run.c.v.view(), 3, 1, 2);
  run.run();
  EXPECT_LT(run.check().o.error, 0x1p-5);
}

TEST(Programs, BackwardIsTheSameBitsForEveryThreadCountAndInPieces) {
  const int64_t repeats = number("VERBATIM_TL_REPEATS", 5);
  Drawn d{.problem = {.batch = 1,
                      .q_heads = 4,
                      .kv_heads = 2,
                      .q_len = 200,
                      .kv_len = 200,
                      .head_dim = 64,
                      .head_dim_v = 64,
                      .dtype = Dtype::bf16},
          .mask = masks::causal(200, 200),
          .target = "a100",
          .backward_order = "auto",
          .tile = {64, 32},
          .workers = 0};
  const Programs programs{complete("forward", d), complete("backward", d)};
  for (const char* order : {"descending", "ascending/split", "shift"}) {
    d.backward_order = order;
    d.workers = 0;
    Case c(d.problem, d.mask);
    programs.run(c, d, 1);
    const auto expected = c.hashes();
    for (const int threads : {1, 2, 5}) {
      for (int64_t i = 0; i < repeats; ++i) {
        poison(c);
        programs.run(c, d, threads);
        ASSERT_EQ(c.hashes(), expected) << order << ", " << threads << " threads, run " << i;
      }
    }
    d.workers = 1;  // chains that wait for each other are cut
    poison(c);
    programs.run(c, d, 2);
    EXPECT_EQ(c.hashes(), expected) << order;
  }
}

TEST(Programs, AWrongProgramIsWrongHere) {
  // The checker cannot know the formula: without its scale the softmax is another.
  Drawn d = draw(1);
  d.problem = {.q_len = 70, .kv_len = 70, .dtype = Dtype::bf16, .scale = 0.5};
  d.mask = masks::causal(70, 70);
  d.target = "a100";
  d.tile = {64, 64};
  const std::string right = complete("forward", d);
  for (const auto& [from, to] : {std::pair{"  Compute Multiply S, scale and get new S\n", ""},
                                 std::pair{"Compute Divide O, l and get new O\n", ""},
                                 std::pair{"LogSumExp m, l", "LogSumExp l, m"},
                                 std::pair{"Multiply S, scale", "Add S, scale"}}) {
    const std::string wrong = replaced(right, from, to);
    ASSERT_EQ(found(wrong), std::vector<std::string>{});
    Case c(d.problem, d.mask);
    Attention(d.problem, d.mask, Programs::options(wrong)).forward(c.forward());
    EXPECT_FALSE(
        check_forward(d.problem, d.mask, c.forward(), Selection::all(d.problem)).within(kLimit))
        << from;
  }
}

TEST(Programs, AnEditedProgramIsAnotherPromise) {
  Drawn d = draw(1);
  d.problem = {.q_len = 70, .kv_len = 70, .dtype = Dtype::bf16};
  d.mask = masks::causal(70, 70);
  d.target = "a100";
  d.tile = {64, 64};
  const std::string program = complete("backward", d);
  const auto fingerprint = [&](const std::string& text) {
    return Attention(d.problem, d.mask, Programs::options(text)).plan(Pass::backward).fingerprint();
  };
  EXPECT_EQ(fingerprint(program + "// a comment\n"), fingerprint(program));
  EXPECT_NE(fingerprint(replaced(program, "param stages = 2", "param stages = 1")),
            fingerprint(program));
}

/// The error of making an Attention of `program`.
Error refusal(const Problem& p, const Mask& mask, const AttentionOptions& options) {
  try {
    Attention(p, mask, options);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::io, "test", "nothing was refused");
}

TEST(Programs, WhatDoesNotFitIsRefusedByName) {
  Drawn d = draw(1);
  d.problem = {.q_len = 70, .kv_len = 70, .dtype = Dtype::bf16};
  d.mask = masks::causal(70, 70);
  d.target = "a100";
  d.tile = {64, 64};
  const std::string program = complete("forward", d);
  AttentionOptions options = Programs::options(program);
  EXPECT_NO_THROW(Attention(d.problem, d.mask, options));
  const auto argument = [&](const Problem& p, const AttentionOptions& o) {
    return refusal(p, d.mask, o).details().argument;
  };
  Problem p = d.problem;
  p.dtype = Dtype::f32;
  EXPECT_EQ(argument(p, options), "dtype");
  p = d.problem;
  p.head_dim = 128;
  EXPECT_EQ(argument(p, options), "head_dim");
  p = d.problem;
  p.dropout = 0.5;
  EXPECT_EQ(argument(p, options), "dropout");
  AttentionOptions o = options;
  o.plan.tile = {128, 64};
  EXPECT_EQ(argument(d.problem, o), "tile_q");
  EXPECT_EQ(refusal(d.problem, d.mask, o).details().expected, "64");
  o = options;
  o.forward_order = "descending/split";  // 40 KV tiles a row are two segments
  p = d.problem;
  p.kv_len = 64 * 40;
  EXPECT_EQ(refusal(p, masks::full(70, p.kv_len), o).details().argument, "forward_order");
  o = options;
  o.device = "cuda";
  EXPECT_EQ(argument(d.problem, o), "device");
  o = options;
  o.kernels = {program, program};
  EXPECT_EQ(argument(d.problem, o), "kernel");
  o.kernels = {sketch("forward")};
  EXPECT_EQ(refusal(d.problem, d.mask, o).details().got, "a sketch");
  o.kernels = {complete("selected", d)};
  EXPECT_EQ(refusal(d.problem, d.mask, o).details().got, "param sel = index");
  o.kernels = {replaced(program, "Compute Mask S", "Compute Mask S with full")};
  EXPECT_EQ(argument(d.problem, o), "mask");
  p = d.problem;
  p.dtype = Dtype::e4m3;
  o.kernels = {};
  EXPECT_EQ(refusal(p, d.mask, o).details().nearest, "bf16");
  o.kernels = {replaced(program, "  Reshape S", "  // Reshape S")};
  EXPECT_NE(std::string(refusal(d.problem, d.mask, o).what()).find("reshape"), std::string::npos);
}

}  // namespace
}  // namespace verbatim::test
