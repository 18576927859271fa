// Whole files, read with a bound and written all or not at all; where programs are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "verbatim/error.h"

namespace verbatim {

/// The operations that errors of write_file() and make_folder() name.
constexpr const char *kWriteFile = "file.write", *kMakeFolder = "file.folder";

/// The bytes of `path`. Throws Error(io) when it cannot be read or holds more than `max_bytes`.
std::vector<std::byte> read_file(const std::filesystem::path& path,
                                 int64_t max_bytes = int64_t{1} << 40);

/// The text of `path`, at most 64 MiB.
std::string read_text(const std::filesystem::path& path);

/// The same error, with a text that names the file it is about.
Error about_file(const Error& error, const std::filesystem::path& path);
/// parse(the text of `path`), whose errors are about_file().
template <class Parse>
auto parse_file(const std::filesystem::path& path, Parse&& parse) {
  const std::string text = read_text(path);
  try {
    return parse(text);
  } catch (const Error& error) {
    throw about_file(error, path);
  }
}

/// Calls `write` with a stream to a new file beside `path`, then renames it to `path`. When `write`
/// throws or the disk is full, `path` keeps what it held and Error(io) says why. A symbolic link
/// stays, and what it leads to is replaced. What is no regular file (a pipe, a terminal), and what
/// a link of /proc stands for (/dev/stdout), is added to directly.
void write_file(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write);
void write_file(const std::filesystem::path& path, std::string_view text);
/// What the symbolic links at `path` lead to, there or not: whose place write_file()'s new file
/// takes. A link of /proc, which stands for what a program has open, leads nowhere.
std::filesystem::path behind_links(std::filesystem::path path);
/// Throws the Error(io) that write_file() would throw for a path it cannot write; writes nothing.
void check_writable(const std::filesystem::path& path);

/// Makes the folder `path` and those that it lies in, unless they are there. Throws Error(io) when
/// something else is in the way, or where nothing may be made.
void make_folder(const std::filesystem::path& path);
/// Throws the Error(io) that make_folder() would throw, as far as can be seen; makes nothing.
void check_folder(const std::filesystem::path& path);

/// The program of that name that the PATH leads to; "" if there is none.
std::string find_program(std::string_view name);

}  // namespace verbatim
