#include "core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "verbatim/error.h"

namespace verbatim {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* operation, const fs::path& path, std::string why) {
  throw Error(ErrorCode::io, operation, fmt::format("'{}': {}", path.string(), why),
              {.argument = path.string(), .got = "", .expected = "", .nearest = ""});
}

/// Why `path` cannot be a folder: `there` is in the way.
[[noreturn]] void refuse_folder(const fs::path& path, const fs::path& there, std::string why) {
  const std::string above = there.parent_path().string();
  throw Error(ErrorCode::io, kMakeFolder, fmt::format("'{}' cannot be made", path.string()),
              {path.string(), fmt::format("'{}': {}", there.string(), why),
               "a folder, or a path in one where files may be made", above.empty() ? "." : above});
}

/// What is at a path that is to be written.
fs::file_status found_at(const fs::path& path) {
  std::error_code why;
  const fs::file_status there = fs::status(path, why);
  if (!fs::status_known(there)) fail(kWriteFile, path, why.message());
  return there;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

/// Of `file`, behind links, and what is there: a pipe, a terminal or, through a link of /proc, what
/// a program has open, whose place a new file cannot take.
bool is_kept(const fs::path& file, const fs::file_status& there) {
  std::error_code none;
  return fs::is_symlink(fs::symlink_status(file, none)) ||
         (fs::exists(there) && !fs::is_regular_file(there));
}

// A file of a name nobody has; removed again unless it was renamed away.
struct TemporaryFile {
  explicit TemporaryFile(const fs::path& beside) {
    static std::atomic<int64_t> number = 0;
    int fd = -1;
    do {
      // Not of the name beside it, to which nothing can be added where it is as long as may be.
      name = folder_of(beside) / fmt::format(".verbatim-{}-{}", getpid(), number++);
      // With the mode of any other new file, unlike mkstemp(), whose mode all threads would see
      // changed: umask() is the process's.
      fd = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST);
    if (fd < 0) fail(kWriteFile, beside, std::strerror(errno));
    close(fd);
  }
  ~TemporaryFile() {
    if (!renamed) unlink(name.c_str());
  }
  std::string name;
  bool renamed = false;
};

void write_stream(const std::string& target, const fs::path& path, std::ios::openmode mode,
                  const std::function<void(std::ostream&)>& write) {
  std::ofstream stream(target, std::ios::binary | mode);
  if (!stream) fail(kWriteFile, path, std::strerror(errno));
  stream.exceptions(std::ios::badbit | std::ios::failbit);  // at once, while errno says why
  try {
    write(stream);
    stream.close();
  } catch (const std::ios_base::failure&) {
    fail(kWriteFile, path, fmt::format("could not write all of it: {}", std::strerror(errno)));
  }
}

/// Where `path` is what this process prints to: behind what was printed, before what will be.
void add_to(const fs::path& path, const std::function<void(std::ostream&)>& write) {
  std::fflush(nullptr);
  write_stream(path.string(), path, std::ios::app, write);
  for (const int printed : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat a, b;
    if (stat(path.c_str(), &a) == 0 && fstat(printed, &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
      lseek(printed, 0, SEEK_END);  // a pipe has no such place
  }
}

}  // namespace

std::vector<std::byte> read_file(const fs::path& path, int64_t max_bytes) {
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream) fail("file.read", path, std::strerror(errno));
  const int64_t size = stream.tellg();
  std::error_code none;
  if (size < 0 || fs::is_directory(path, none)) fail("file.read", path, "not a regular file");
  if (size > max_bytes)
    fail("file.read", path, fmt::format("{} bytes are more than the limit of {}", size, max_bytes));
  std::vector<std::byte> bytes(size);
  stream.seekg(0);
  if (!stream.read(reinterpret_cast<char*>(bytes.data()), size))
    fail("file.read", path, "ended early");
  return bytes;
}

Error about_file(const Error& error, const fs::path& path) {
  const size_t begin = error.operation().size() + 3;  // what() is "[operation] what is wrong"
  return {error.code(), error.operation() + " of " + path.string(), error.what() + begin};
}

std::string read_text(const fs::path& path) {
  const std::vector<std::byte> bytes = read_file(path, int64_t{64} << 20);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

fs::path behind_links(fs::path path) {
  constexpr int kMostLinks = 40;  // as the kernel follows
  std::error_code none;
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(path, none)); ++i) {
    if (fs::weakly_canonical(folder_of(path), none).native().starts_with("/proc/")) break;
    path = folder_of(path) / fs::read_symlink(path, none);
  }
  return path;
}

void check_writable(const fs::path& path) {
  const fs::file_status there = found_at(path);
  if (fs::is_directory(there)) fail(kWriteFile, path, "is a directory");
  const fs::path file = behind_links(path);
  // "/." asks for a folder that lets names be looked up, too: a file may be writable as well.
  const fs::path written = is_kept(file, there) ? path : folder_of(file) / ".";
  if (access(written.c_str(), W_OK) != 0) fail(kWriteFile, path, std::strerror(errno));
}

void write_file(const fs::path& path, const std::function<void(std::ostream&)>& write) {
  check_writable(path);
  const fs::path file = behind_links(path);
  if (is_kept(file, found_at(path))) return add_to(path, write);
  TemporaryFile temporary(file);
  write_stream(temporary.name, path, std::ios::trunc, write);
  if (std::rename(temporary.name.c_str(), file.c_str()) != 0)
    fail(kWriteFile, path, std::strerror(errno));
  temporary.renamed = true;
}

void write_file(const fs::path& path, std::string_view text) {
  write_file(path, [&](std::ostream& out) { out.write(text.data(), std::ssize(text)); });
}

void check_folder(const fs::path& path) {
  fs::path there = path;
  std::error_code none;
  while (!fs::exists(there, none) && there.has_relative_path()) there = there.parent_path();
  if (there.empty()) there = ".";
  if (!fs::is_directory(there, none)) refuse_folder(path, there, "no folder");
  if (access(there.c_str(), W_OK | X_OK) != 0) refuse_folder(path, there, std::strerror(errno));
}

void make_folder(const fs::path& path) {
  check_folder(path);
  std::error_code failed;
  fs::create_directories(path, failed);
  if (failed) refuse_folder(path, path, failed.message());
}

std::string find_program(std::string_view name) {
  const char* const path = std::getenv("PATH");
  for (std::string_view left = path ? path : ""; !left.empty();) {
    const size_t end = std::min(left.find(':'), left.size());
    const std::string program = fmt::format("{}/{}", left.substr(0, end), name);
    std::error_code none;
    if (fs::is_regular_file(program, none) && access(program.c_str(), X_OK) == 0) return program;
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return "";
}

}  // namespace verbatim
