#include "core/host_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "core/file.h"

namespace verbatim {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kKib = 1024;

/// host_memory() where these files are all that /proc and /sys hold.
int64_t found(const std::map<std::string, std::string>& files) {
  std::string name = (fs::temp_directory_path() / "host_memory.XXXXXX").string();
  const fs::path root = mkdtemp(name.data());
  for (const auto& [path, text] : files) {
    make_folder((root / path).parent_path());
    write_file(root / path, text);
  }
  const int64_t bytes = host_memory(root);
  fs::remove_all(root);
  return bytes;
}

const std::map<std::string, std::string> kMachine{
    {"proc/meminfo",
     "MemTotal:        1000 kB\nMemFree:  7 kB\nHugePages_Total:  3\nSwapTotal:  200 kB\n"}};

int64_t found_beside(std::map<std::string, std::string> files) {
  files.insert(kMachine.begin(), kMachine.end());
  return found(files);
}

TEST(HostMemory, IsTheMachines) {
  EXPECT_EQ(found({}), INT64_MAX);
  EXPECT_EQ(found(kMachine), 1200 * kKib);
  EXPECT_GT(host_memory(), 0);
  EXPECT_LT(host_memory(), INT64_MAX);
}

TEST(HostMemory, IsLessInAControlGroup) {
  const std::string group = "sys/fs/cgroup/a/b/", self = "proc/self/cgroup";
  EXPECT_EQ(found_beside({{self, "0::/a/b\n"}}), 1200 * kKib) << "no limit";
  EXPECT_EQ(found_beside({{self, "0::/a/b\n"},
                          {group + "memory.max", "max\n"},
                          {group + "memory.swap.max", "max\n"}}),
            1200 * kKib);
  EXPECT_EQ(found_beside({{self, "0::/a/b\n"}, {group + "memory.max", "9000000000\n"}}),
            1200 * kKib)
      << "more than there is";
  EXPECT_EQ(found_beside({{self, "0::/a/b\n"}, {group + "memory.max", "4096\n"}}),
            4096 + 200 * kKib);
  EXPECT_EQ(found_beside({{self, "0::/a/b\n"},
                          {group + "memory.max", "8192\n"},
                          {group + "memory.swap.max", "0\n"},
                          {"sys/fs/cgroup/a/memory.max", "4096\n"}}),
            4096)
      << "the group above has less";
  EXPECT_EQ(found_beside({{self, "0::/\n"}, {"sys/fs/cgroup/memory.max", "4096\n"}}),
            4096 + 200 * kKib)
      << "a container's own view";
}

TEST(HostMemory, IsLessInAControlGroupOfVersion1) {
  const std::string group = "sys/fs/cgroup/memory/a/b/", self = "proc/self/cgroup";
  const std::string groups = "5:cpu,cpuacct:/c\n4:hugetlb,memory:/a/b\n0::/\n";
  EXPECT_EQ(found_beside({{self, groups}}), 1200 * kKib);
  EXPECT_EQ(found_beside({{self, groups}, {group + "memory.limit_in_bytes", "4096\n"}}),
            4096 + 200 * kKib);
  EXPECT_EQ(found_beside({{self, groups},
                          {group + "memory.limit_in_bytes", "4096\n"},
                          {group + "memory.memsw.limit_in_bytes", "5000\n"}}),
            5000);
  EXPECT_EQ(
      found_beside({{self, groups}, {group + "memory.limit_in_bytes", "9223372036854771712\n"}}),
      1200 * kKib)
      << "no limit";
  EXPECT_EQ(
      found_beside({{self, groups}, {"sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n"}}),
      4096 + 200 * kKib)
      << "a container that is told the path outside";
  EXPECT_EQ(found_beside({{self, "4:rdma:/a/b\n"}, {group + "memory.limit_in_bytes", "4096\n"}}),
            1200 * kKib)
      << "of another controller";
}

}  // namespace
}  // namespace verbatim
