// mpirun on this machine, as a child process.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "core/file.h"
#include "dist/mpi.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

constexpr const char* kOperation = "dist.launch";
constexpr int kFailed = 3;

std::string find_launcher() {
  if (std::string mpirun = find_program("mpirun"); !mpirun.empty()) return mpirun;
  throw Error(
      ErrorCode::unsupported, kOperation, "there is no launcher",
      {"world", "no mpirun on PATH", "Open MPI's (the package openmpi-bin)", "the engine replay"});
}

std::vector<std::string> command_line(int32_t ranks, std::span<const std::string> command) {
  std::vector<std::string> words{find_launcher(), "-n", fmt::to_string(ranks)};
  // More ranks than cores; no other machine; and no reads of another process's memory, which
  // containers forbid.
  for (const char* word :
       {"--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated", "--mca", "btl",
        "self,vader", "--mca", "btl_vader_single_copy_mechanism", "none"})
    words.emplace_back(word);
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::device, kOperation, fmt::format("{} failed", what));
}

struct Child {
  pid_t process;
  int errors;  // what it writes to stderr
};

Child start(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // ranks that outlive mpirun become our children
  int ends[2];
  if (pipe(ends) != 0) fail("pipe");
  const pid_t process = fork();
  if (process < 0) fail("fork");
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);                 // mpirun then ends the ranks
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);  // else it takes what we are given
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    execv(arguments[0], arguments.data());
    _exit(kFailed);
  }
  close(ends[1]);
  return {process, ends[0]};
}

/// What mpirun and its ranks wrote to stderr.
class Errors {
 public:
  explicit Errors(const std::function<void(std::string_view)>& say) : say_(say) {}

  void read_all(int file) {
    char buffer[4096];
    std::string line;
    for (ssize_t size; (size = read(file, buffer, sizeof buffer)) > 0;) {
      for (const char c : std::string_view(buffer, static_cast<size_t>(size))) {
        if (c != '\n') {
          line += c;
        } else {
          take(std::exchange(line, {}));
        }
      }
    }
    if (!line.empty()) take(line);
    close(file);
  }
  bool said() const { return said_; }
  const std::string& rest() const { return rest_; }

 private:
  void take(const std::string& line) {
    if (line.starts_with("verbatim: ")) {
      if (!std::exchange(said_, true)) say_(line);  // others follow from the first
    } else {
      rest_ += line + "\n";
    }
  }

  const std::function<void(std::string_view)>& say_;
  bool said_ = false;
  std::string rest_;
};

/// "rank 2 with PID 0 on node x exited on signal 9 (Killed)" of mpirun's own words; empty: no rank
/// was killed.
std::string killed_rank(const std::string& text) {
  const size_t begin = text.find("noticed that process rank ");
  if (begin == std::string::npos) return "";
  const size_t rank = text.find("rank ", begin), end = text.find_first_of(" \n", rank + 5);
  const size_t signal = text.find("exited on signal ", end);
  const std::string_view all(text);
  return fmt::format("{} {}", all.substr(rank, end - rank),
                     signal == std::string::npos
                         ? "was killed"
                         : all.substr(signal, text.find_first_of(".\n", signal) - signal));
}

/// Waits for mpirun, and for ranks that it left behind, which it has told to end: those that have
/// not after some seconds are killed. Returns the status of mpirun.
int wait_for_all(pid_t launcher) {
  int status = 0;
  if (waitpid(launcher, &status, 0) < 0) fail("waitpid");
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (pid_t found; (found = waitpid(-1, nullptr, WNOHANG)) >= 0;) {
    if (found > 0) continue;
    if (std::chrono::steady_clock::now() > late) {
      std::ifstream children(fmt::format("/proc/self/task/{}/children", getpid()));
      for (pid_t child; children >> child;) kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return status;
}

}  // namespace

int launch(int32_t ranks, std::span<const std::string> command,
           const std::function<void(std::string_view)>& say) {
  load_mpi();
  const Child child = start(command_line(ranks, command));
  Errors errors(say);
  errors.read_all(child.errors);
  const int status = wait_for_all(child.process);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
  // 1 and 2 are the ranks' own, unless mpirun says them of itself.
  const bool of_ranks =
      errors.said() || errors.rest().find("exited with non-zero status") != std::string::npos;
  if (code == 0 || ((code == 1 || code == 2) && of_ranks)) return code;
  const std::string killed = killed_rank(errors.rest());
  if (!killed.empty()) {
    say(fmt::format("verbatim: [{}] {}", kOperation, killed));
  } else if (!errors.said()) {
    say(fmt::format("verbatim: [{}] mpirun {} {}\n{}", kOperation,
                    WIFSIGNALED(status) ? "was killed by signal" : "ended with",
                    WIFSIGNALED(status) ? WTERMSIG(status) : code, errors.rest()));
  }
  return kFailed;
}

}  // namespace verbatim::dist
