#include "processes.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/mpi.h"
#include "result.h"

namespace verbatim::app {
namespace {

constexpr int32_t kMostProcesses = 256;  // on one machine

int code_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours && ours->code() != ErrorCode::device ? kBadInput : kBroken;
}

void print(std::string_view line) { fmt::print(stderr, "{}\n", line); }

/// This command again, as every rank runs it.
int start_processes(int32_t ranks) {
  if (ranks < 1 || ranks > kMostProcesses)
    fail("this machine does not run so many processes",
         {"--world", fmt::format("local:{}", ranks), fmt::format("1 to {} of them", kMostProcesses),
          fmt::format("local:{}", ranks < 1 ? 1 : kMostProcesses)});
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe")};
  words.insert(words.end(), arguments().begin(), arguments().end());
  return dist::launch(ranks, words, print);
}

}  // namespace

bool is_first_process() {
  const auto launched = dist::launched();
  return !launched || launched->rank == 0;
}

void complain(const std::string& message) {
  if (is_first_process()) print("verbatim: " + message);
}

int explain(const std::exception& error) {
  complain(error.what());
  return code_of(error);
}

int in_world(const WorldOptions& options, const InProcesses& command) {
  const int32_t ranks = options.given() ? options.make().world : 1;
  if (options.starts_processes()) return start_processes(ranks);
  if (!options.has_processes()) return command(nullptr);
  dist::Mpi mpi;
  dist::Processes processes(mpi, options.seconds_to_wait());
  int code = 0;
  try {
    try {
      code = command(&processes);
    } catch (const Error& error) {
      if (processes.asked()) throw;
      processes.agree("", &error);  // refuses at every rank
    }
  } catch (const dist::Refused& refusal) {
    code = explain(refusal);
  } catch (const std::exception& error) {
    print(fmt::format("verbatim: {}", error.what()));
    mpi.abort(code_of(error));
  }
  mpi.stop();
  return code;
}

}  // namespace verbatim::app
