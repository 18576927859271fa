// mpirun on this machine, as a child process.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
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
constexpr const char* kLaunched = "VERBATIM_LAUNCHED";  // by launch(): set in the environment

std::string find_launcher() {
  if (std::string mpirun = find_program("mpirun"); !mpirun.empty()) return mpirun;
  throw Error(
      ErrorCode::unsupported, kOperation, "there is no launcher",
      {"world", "no mpirun on PATH", "Open MPI's (the package openmpi-bin)", "the engine replay"});
}

/// A launcher that starts no ranks, as `got` tells.
[[noreturn]] void refuse_launcher(ErrorCode code, const std::string& launcher, const char* got) {
  throw Error(code, kOperation, launcher + " starts no ranks of Open MPI",
              {"world", got, "the mpirun of Open MPI first on PATH (the package openmpi-bin)",
               "the engine replay"});
}

std::vector<std::string> command_line(const std::string& launcher, int32_t ranks,
                                      std::span<const std::string> command) {
  std::vector<std::string> words{launcher, "-n", fmt::to_string(ranks)};
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
  int output, errors;  // what it writes to stdout and to stderr
};

Child start(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // ranks that outlive mpirun become our children
  int output[2], errors[2];
  if (pipe(output) != 0 || pipe(errors) != 0) fail("pipe");
  const pid_t process = fork();
  if (process < 0) fail("fork");
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);                 // mpirun then ends the ranks
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);  // else it takes what we are given
    dup2(output[1], STDOUT_FILENO);
    dup2(errors[1], STDERR_FILENO);
    for (const int file : {output[0], output[1], errors[0], errors[1]}) close(file);
    setenv(kLaunched, "1", 1);
    execv(arguments[0], arguments.data());
    _exit(kFailed);
  }
  close(output[1]);
  close(errors[1]);
  return {process, output[0], errors[0]};
}

/// What mpirun and its ranks wrote to stderr.
class Errors {
 public:
  explicit Errors(Say say) : say_(std::move(say)) {}

  void add(std::string_view text) {
    for (const char c : text) {
      if (c != '\n') {
        line_ += c;
      } else {
        take(std::exchange(line_, {}));
      }
    }
  }
  void end() {
    if (!line_.empty()) take(std::exchange(line_, {}));
  }
  bool said() const { return said_; }
  bool done() const { return done_; }
  const std::string& rest() const { return rest_; }

 private:
  void take(const std::string& line) {
    if (line.starts_with("verbatim: ")) {
      if (!std::exchange(said_, true)) say_(line);  // others follow from the first
    } else if (line.find(kDone) != std::string::npos) {
      done_ = true;
    } else {
      rest_ += line + "\n";
    }
  }

  Say say_;
  bool said_ = false, done_ = false;
  std::string line_, rest_;
};

/// Hands on what `child` writes, as it comes, until it has closed both. mpirun would hand on what
/// ranks print, but end well where that is lost.
void read_all(const Child& child, const Say& print, const Say& complain) {
  pollfd files[] = {{child.output, POLLIN, 0}, {child.errors, POLLIN, 0}};
  char buffer[4096];
  while (files[0].fd >= 0 || files[1].fd >= 0) {
    if (poll(files, 2, -1) < 0) continue;
    for (pollfd& file : files) {
      if (file.fd < 0 || file.revents == 0) continue;
      const ssize_t size = read(file.fd, buffer, sizeof buffer);
      if (size > 0) {
        (&file == files ? print : complain)({buffer, static_cast<size_t>(size)});
      } else {
        close(std::exchange(file.fd, -1));
      }
    }
  }
}

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

bool launcher_reads() { return std::getenv(kLaunched) != nullptr; }

int launch(int32_t ranks, std::span<const std::string> command, const Say& print, const Say& say) {
  load_mpi();
  const std::string launcher = find_launcher();
  if (launcher_reads())  // else this would start processes, and each of them others
    refuse_launcher(ErrorCode::unsupported, launcher, "a process that is no rank");
  const Child child = start(command_line(launcher, ranks, command));
  Errors errors(say);
  read_all(child, print, [&](std::string_view text) { errors.add(text); });
  errors.end();
  const int status = wait_for_all(child.process);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
  // 1 and 2 are the ranks' own, unless mpirun says them of itself.
  const bool of_ranks =
      errors.said() || errors.rest().find("exited with non-zero status") != std::string::npos;
  if (code == 0 && !errors.done())
    refuse_launcher(ErrorCode::device, launcher, "its end, with code 0, and nothing of rank 0");
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
