#include "processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "dist/mpi.h"
#include "result.h"

namespace verbatim::app {
namespace {

constexpr double kDefaultTimeout = 300;  // seconds
constexpr int32_t kMostProcesses = 256;  // on one machine

/// What can be written is known before all work: what then fails to be is the system's failure.
int code_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  const bool broken = !ours || ours->code() == ErrorCode::device ||
                      ours->operation() == kWriteFile || ours->operation() == kMakeFolder;
  return broken ? kBroken : kBadInput;
}

/// Not by fmt::print(), which would throw out of main() where stderr is closed or full. With its
/// end at once: between two writes comes what other ranks write.
void print(std::string_view line) {
  const std::string text = fmt::format("{}\n", line);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

std::string message_of(const std::exception& error) {
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return memory ? "out of memory" : error.what();
}

void tell(const std::string& message) { print(fmt::format("verbatim: {}", message)); }

bool asks_for_world() {
  return std::ranges::any_of(arguments(), [](const std::string& word) {
    return word == "--world" || word.starts_with("--world=");
  });
}

/// This command again, as every rank runs it.
int start_processes(int32_t ranks) {
  if (ranks < 1 || ranks > kMostProcesses)
    fail("this machine does not run so many processes",
         {"--world", fmt::format("local:{}", ranks), fmt::format("1 to {} of them", kMostProcesses),
          fmt::format("local:{}", ranks < 1 ? 1 : kMostProcesses)});
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed)
    throw Error(ErrorCode::unsupported, "verbatim", "the path of this program is unknown",
                {"/proc/self/exe", failed.message(), "a /proc that is mounted", "mpirun -n N"});
  std::vector<std::string> words{program.string()};
  words.insert(words.end(), arguments().begin(), arguments().end());
  const auto pass_on = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);  // where it is lost, the end of main() tells
  };
  return dist::launch(ranks, words, pass_on, print);
}

/// Runs `command` as one rank of MPI.
int in_mpi(double timeout, const InProcesses& command) {
  dist::Mpi mpi;
  dist::Processes processes(mpi, timeout);
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
    const std::string message = message_of(error), own = fmt::format("rank {}", mpi.rank());
    tell(message.find(own) == std::string::npos ? own + ": " + message : message);
    mpi.abort(code_of(error));
  }
  mpi.stop();
  if (code == 0 && mpi.rank() == 0 && dist::launcher_reads()) print(dist::kDone);
  return code;
}

}  // namespace

bool is_first_process() {
  const auto launched = dist::launched();
  return !launched || launched->rank == 0;
}

int explain(const std::exception& error) {
  if (is_first_process() || !asks_for_world()) tell(message_of(error));
  return code_of(error);
}

int refuse_usage(const Error& error) {
  if (!asks_for_world() || !dist::launched()) return explain(error);
  try {
    return in_mpi(kDefaultTimeout, [&](dist::Processes*) -> int { throw error; });
  } catch (const Error& no_mpi) {
    return explain(no_mpi);
  }
}

int in_world(const WorldOptions& options, const InProcesses& command) {
  const double given = options.timeout.value_or(0);
  if (options.has_processes() && dist::launched())
    return in_mpi(given > 0 ? given : kDefaultTimeout, [&](dist::Processes* processes) {
      options.make();
      return command(processes);
    });
  const int32_t ranks = options.given() ? options.each().front().make().world : 1;
  return options.has_processes() ? start_processes(ranks) : command(nullptr);
}

}  // namespace verbatim::app
