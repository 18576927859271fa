// Ranks as processes of this machine: dist_local_ranks WORLD [FAULT]. Started by hand it starts
// them by mpirun and judges how they end; 77: nothing here can start processes.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "dist/dist_case.h"
#include "dist/faulty_wire.h"
#include "dist/mpi.h"
#include "dist/processes.h"

namespace verbatim::test {
namespace {

constexpr double kTimeout = 2;

/// Every mask with every strategy.
int run_all(dist::Processes& processes) {
  int runs = 0, differ = 0;
  for (const Mask& mask : every_mask(4)) {
    DistCase c(problem_of(200), mask, kTile);
    for (const std::string& strategy : strategy_names()) {
      const DistOptions options{.world = processes.size(), .strategy = strategy};
      const bool predicted = c.run_in(processes, options);
      if (processes.rank() != 0) continue;
      ++runs;
      if (predicted && c.tensors.hashes() == c.expected) continue;
      ++differ;
      fmt::print("{} {}: other {}\n", mask.name(), to_text(options),
                 predicted ? "bits" : "bytes than predicted");
    }
  }
  if (processes.rank() == 0) fmt::print("{} runs, {} differ\n", runs, differ);
  return differ == 0 ? 0 : 1;
}

int run_rank(const std::string& fault) {
  dist::Mpi mpi;
  FaultyWire wire(mpi, mpi.rank() == 1 ? fault : "", 18);  // in the backward
  dist::Processes processes(wire, fault.empty() ? 60 : kTimeout);
  try {
    int code = 0;
    if (fault.empty()) {
      code = run_all(processes);
    } else {
      DistCase c(problem_of(200), masks::causal(200, 200), kTile);
      c.run_in(processes, {.world = processes.size(), .strategy = "ring"});
    }
    mpi.stop();
    if (code == 0 && mpi.rank() == 0) fmt::print(stderr, "{}\n", dist::kDone);
    return code;
  } catch (const Error& error) {
    fmt::print(stderr, "verbatim: {}\n", error.what());
    mpi.abort(3);
  }
}

/// Starts the ranks; with a fault expects that all end in time with a message that says so.
int start(std::vector<std::string> words, const std::string& fault) {
  const int32_t ranks = std::atoi(words[1].c_str());
  std::string told;
  const auto begin = std::chrono::steady_clock::now();
  int code = 0;
  try {
    code = dist::launch(
        ranks, words, [](std::string_view text) { fmt::print("{}", text); },
        [&](std::string_view line) { told += line; });
  } catch (const Error& error) {
    fmt::print("{}\n", error.what());
    return 77;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("{}: code {} in {:.1f} s: {}\n", fault, code, took.count(), told);
  if (fault.empty()) return code;
  const char* const expected = fault == "doubled"                      ? "of rank 1 came twice"
                               : fault == "killed"                     ? "exited on signal 9"
                               : fault == "lost" || fault == "swapped" ? "lost or comes out of turn"
                                                                       : " in 2 s";
  // A rank that has done its steps notices when ranks meet.
  const bool has_step = fault == "killed" || told.find("at step") != std::string::npos ||
                        told.find("as ranks meet") != std::string::npos;
  const bool good = code == 3 && told.find(expected) != std::string::npos &&
                    told.find("rank 1") != std::string::npos && has_step &&
                    took.count() < kTimeout + 10;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace verbatim::test

int main(int argc, char** argv) {
  using namespace verbatim;
  if (argc < 2) return 2;
  const std::string fault = argc > 2 ? argv[2] : "";
  if (dist::launched()) return test::run_rank(fault);
  std::vector<std::string> words(argv, argv + argc);
  words[0] = std::filesystem::read_symlink("/proc/self/exe");
  return test::start(std::move(words), fault);
}
