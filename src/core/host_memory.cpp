#include "core/host_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace verbatim {
namespace {

namespace fs = std::filesystem;

/// The least number in the files of that name of a control group and of those above it, which lie
/// in `mount`. Inside a container, whose own group may be the topmost there is, some are missing.
int64_t least(const fs::path& mount, fs::path group, const char* name) {
  for (int64_t least = INT64_MAX;; group = group.parent_path()) {
    std::ifstream file(mount / group.relative_path() / name);
    if (int64_t limit = 0; file >> limit) least = std::min(least, limit);  // else there, "max"
    if (!group.has_relative_path()) return least;
  }
}

}  // namespace

int64_t host_memory(const fs::path& root) {
  int64_t memory = INT64_MAX, swap = 0, both = INT64_MAX;
  std::ifstream info(root / "proc/meminfo");
  int64_t kib = 0;
  for (std::string name, unit; info >> name >> kib && std::getline(info, unit);) {
    if (name == "MemTotal:") memory = kib * 1024;
    if (name == "SwapTotal:") swap = kib * 1024;
  }
  const fs::path version_2 = root / "sys/fs/cgroup", version_1 = version_2 / "memory";
  std::ifstream groups(root / "proc/self/cgroup");
  std::string number, controllers, group;  // "4:memory:/a/b" of version 1, "0::/a/b" of version 2
  while (std::getline(groups, number, ':') && std::getline(groups, controllers, ':') &&
         std::getline(groups, group)) {
    if (controllers.empty()) {
      memory = std::min(memory, least(version_2, group, "memory.max"));
      swap = std::min(swap, least(version_2, group, "memory.swap.max"));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      memory = std::min(memory, least(version_1, group, "memory.limit_in_bytes"));
      both = std::min(both, least(version_1, group, "memory.memsw.limit_in_bytes"));
    }
  }
  return std::min(memory > INT64_MAX - swap ? INT64_MAX : memory + swap, both);
}

}  // namespace verbatim
