// Random problems on the CPU backend against the reference: values, NaNs, guards and bits.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "backend/cpu/passes.h"
#include "backend/reference/compare.h"
#include "core/random.h"
#include "fuzz/random_problem.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim::test {
namespace {

constexpr double kLimit = 2;  // of the error ratio: FlashAttention's factor

Plan plan_of(const RandomProblem& r, Pass pass) {
  const bool forward = pass == Pass::forward;
  PlanOptions options;
  options.pass = pass;
  options.order = forward ? r.forward_order : r.backward_order;
  options.placement = forward ? r.forward_placement : r.backward_placement;
  options.level = Level::run_to_run;
  options.tile = forward ? r.forward_tile : r.backward_tile;
  options.workers = r.workers;
  try {
    return make_plan(r.problem, r.mask, options);
  } catch (const Error& e) {
    // A rotating order waits for more workers than these or would hang on them: refused, rightly.
    if (e.code() != ErrorCode::invalid_plan && e.code() != ErrorCode::unsupported) throw;
    options.placement = "queue";
    options.workers = 0;
    return make_plan(r.problem, r.mask, options);
  }
}

void run(RandomProblem& r, const Plan& forward, const Plan& backward, int threads) {
  r.poison_outputs();
  const RunOptions options{.threads = threads};
  // Not through the backend, which spares a small problem its threads.
  cpu::run_forward(forward, r.forward(), options, cpu::kernels());
  cpu::run_backward(backward, r.backward(), options, cpu::kernels());
}

std::array<std::string, 4> input_bits(const RandomProblem& r) {
  return {sha256_of(r.q.view()), sha256_of(r.k.view()), sha256_of(r.v.view()),
          sha256_of(r.dout.view())};
}

std::string describe(const char* name, const Comparison& c) {
  if (c.within(kLimit)) return "";
  const auto [b, l, h, d] = c.worst;
  return fmt::format(
      "{}: ratio {:.3g}, {} non-finite mismatches, worst [{}, {}, {}, {}] got {} "
      "expected {} (error {:.3g}, same dtype {:.3g}, floor {:.3g}); ",
      name, c.ratio, c.nonfinite_mismatches, b, l, h, d, c.got, c.expected, c.error,
      c.baseline_error, c.floor);
}

// What is wrong with the problem's results; empty when nothing is.
std::string examine(RandomProblem& r, double& ratio) {
  const Plan forward = plan_of(r, Pass::forward), backward = plan_of(r, Pass::backward);
  const auto inputs = input_bits(r);
  run(r, forward, backward, r.threads);
  const auto first = r.hashes();

  const Check check = check_backward(r.problem, r.mask, r.backward(), Selection::all(r.problem), 1);
  ratio = check.worst_ratio();
  std::string wrong = describe("o", check.o) + describe("lse", check.lse) +
                      describe("dq", *check.dq) + describe("dk", *check.dk) +
                      describe("dv", *check.dv);

  const std::array<std::pair<const char*, const GuardedTensor*>, 9> tensors{{{"q", &r.q},
                                                                             {"k", &r.k},
                                                                             {"v", &r.v},
                                                                             {"dout", &r.dout},
                                                                             {"o", &r.o},
                                                                             {"lse", &r.lse},
                                                                             {"dq", &r.dq},
                                                                             {"dk", &r.dk},
                                                                             {"dv", &r.dv}}};
  for (const auto& [name, tensor] : tensors)
    if (!tensor->guards_intact()) wrong += fmt::format("a write outside {}; ", name);

  run(r, forward, backward, r.threads % 4 + 1);
  if (r.hashes() != first) wrong += "other bits with another thread count; ";
  if (input_bits(r) != inputs) wrong += "an input was written; ";
  return wrong;
}

int main(int argc, char** argv) {
  uint64_t seed = 1, first = 0, cases = 300;
  bool verbose = false;
  CLI::App app("Random problems against the reference; exit code 1 on a mismatch");
  app.add_option("--seed", seed, "of all cases")->capture_default_str();
  app.add_option("--first", first, "number of the first case")->capture_default_str();
  app.add_option("--cases", cases, "how many")->capture_default_str();
  app.add_option_function<uint64_t>(
      "--case", [&](const uint64_t& number) { first = number, cases = 1, verbose = true; },
      "run this one only and describe it");
  CLI11_PARSE(app, argc, argv);

  int failures = 0;
  double worst = 0;
  for (uint64_t number = first; number < first + cases; ++number) {
    std::string wrong, text;
    double ratio = 0;
    try {
      RandomProblem r = RandomProblem::make(seed, number);
      text = r.text();
      wrong = examine(r, ratio);
    } catch (const std::exception& e) {
      wrong = fmt::format("threw: {}", e.what());
    }
    worst = std::max(worst, ratio);
    if (verbose) fmt::print("{}\nratio {:.3f}\n", text, ratio);
    if (wrong.empty()) continue;
    ++failures;
    fmt::print("fuzz_problems --seed {} --case {}: {} {}\n", seed, number, wrong, text);
    std::fflush(stdout);
  }
  fmt::print("{} cases, {} mismatches, worst ratio {:.2f}\n", cases, failures, worst);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace verbatim::test

int main(int argc, char** argv) { return verbatim::test::main(argc, argv); }
