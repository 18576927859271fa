// From emitted CUDA C++ to a library, by nvcc. What it is told is chosen here: no text of a program
// is among it.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/file.h"
#include "verbatim/error.h"
#include "verbatim/tl.h"

namespace verbatim::tl {
namespace {

constexpr const char* kOperation = "tl.build";
constexpr const char* kSources = VERBATIM_SOURCES;
constexpr const char* kCutlass = VERBATIM_CUTLASS;

/// "sm_90" or "compute_80" as nvcc's -gencode.
std::string gencode(const std::string& arch) {
  const size_t digits = arch.find('_') + 1;
  const std::string kind = arch.substr(0, digits), number = arch.substr(digits);
  const size_t end = number.find_first_not_of("0123456789");
  const bool known = (kind == "sm_" || kind == "compute_") && !number.empty() && end != 0 &&
                     (end == std::string::npos || number.substr(end) == "a");
  if (!known)
    throw Error(ErrorCode::invalid_argument, kOperation, "there is no such architecture",
                {"arch", arch, "sm_N (machine code) or compute_N (PTX)", "sm_90"});
  return fmt::format("arch=compute_{},code={}", number, arch);
}

/// The nvcc of the PATH.
std::string find_nvcc() {
  if (std::string nvcc = find_program("nvcc"); !nvcc.empty()) return nvcc;
  const char* const path = std::getenv("PATH");
  throw Error(ErrorCode::unsupported, kOperation, "there is no nvcc on the PATH",
              {"PATH", path && *path ? path : "none", "a CUDA toolkit's bin folder in it",
               "/usr/local/cuda/bin"});
}

void require_headers() {
  std::error_code none;
  if (*kCutlass && std::filesystem::exists(kCutlass, none) &&
      std::filesystem::exists(kSources, none))
    return;
  throw Error(ErrorCode::unsupported, kOperation,
              "the headers that this build was configured with are missing",
              {"headers", *kCutlass ? fmt::format("{}, {}", kSources, kCutlass) : "no CUTLASS",
               "a build with -DVERBATIM_CUDA=ON, where it was made", ""});
}

/// Runs a program with its output in a file; its exit status.
int run(const std::vector<std::string>& words, const std::filesystem::path& output) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int failed = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed)
    throw Error(ErrorCode::io, kOperation,
                fmt::format("{} cannot be started: {}", words[0], std::strerror(failed)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

}  // namespace

std::filesystem::path build(const Emitted& emitted, const std::filesystem::path& folder,
                            std::vector<std::string> archs) {
  if (archs.empty())
    archs = {fmt::format("sm_{}", emitted.arch), fmt::format("compute_{}", emitted.arch)};
  std::vector<std::string> words{find_nvcc(),
                                 "-std=c++20",
                                 "-O3",
                                 "--expt-relaxed-constexpr",
                                 "--fmad=false",
                                 "--shared",
                                 "-Xcompiler=-fPIC,-fvisibility=hidden",
                                 fmt::format("-I{}/src", kSources),
                                 fmt::format("-I{}/include", kSources),
                                 "-isystem",
                                 kCutlass};
  for (const std::string& arch : archs) words.insert(words.end(), {"-gencode", gencode(arch)});
  require_headers();
  make_folder(folder);
  const auto file = [&](const char* extension) { return folder / (emitted.name + extension); };
  write_file(file(".cu"), emitted.source);
  words.insert(words.end(), {"-o", file(".part").string(), file(".cu").string()});
  const int status = run(words, file(".log"));
  const std::string said = status == 0 ? "" : read_text(file(".log"));
  std::error_code ignored;
  std::filesystem::remove(file(".log"), ignored);
  if (status == 0) {
    std::error_code failed;
    std::filesystem::rename(file(".part"), file(".so"), failed);
    if (!failed) return file(".so");
    std::filesystem::remove(file(".part"), ignored);
    throw Error(ErrorCode::io, kWriteFile,
                fmt::format("'{}': {}", file(".so").string(), failed.message()));
  }
  std::filesystem::remove(file(".part"), ignored);
  throw Error(ErrorCode::unsupported, kOperation,
              fmt::format("nvcc ends with {}:\n{}", status, said));
}

}  // namespace verbatim::tl
