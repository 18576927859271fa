// How much memory a process of this machine may have.
#pragma once

#include <cstdint>
#include <filesystem>

namespace verbatim {

/// Bytes of memory and swap that this process and those beside it can have at most: the machine's
/// (/proc/meminfo), or what is less of them, the limits of the control groups that it is in, of
/// version 2 or 1, and of those above. A container's are such. INT64_MAX where nothing is said.
/// `root` is the folder of /proc and /sys.
int64_t host_memory(const std::filesystem::path& root = "/");

}  // namespace verbatim
