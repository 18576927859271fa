// Arenas on the CPUs of a host: another rank opens what was made, or nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "backend/peers.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

TEST(Arenas, AFileThatIsNotTheArenaIsRefused) {
  ArenaHandle gone, other;
  make_cpu_peer_device()->make_arena(100, gone);
  const auto device = make_cpu_peer_device();
  device->make_arena(100, other);  // its file has the number of the one before
  try {
    make_cpu_peer_device()->open_arena(gone, 100);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.details().got, "another file");
  }
  make_cpu_peer_device()->open_arena(other, 100);
  // All that a handle says of the file is looked at, its file system too.
  for (size_t i = sizeof(pid_t); i < sizeof(pid_t) + sizeof(int) + sizeof(dev_t) + sizeof(ino_t);
       ++i) {
    ArenaHandle changed = other;
    changed[i] ^= std::byte{1};
    EXPECT_THROW(make_cpu_peer_device()->open_arena(changed, 100), Error) << i;
  }
}

TEST(Arenas, APipeInPlaceOfTheArenaIsNotWaitedFor) {
  const std::string path = fmt::format("{}pipe-{}", testing::TempDir(), getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  ArenaHandle gone;
  make_cpu_peer_device()->make_arena(100, gone);
  const int pipe = open(path.c_str(), O_RDONLY | O_NONBLOCK);  // has the number of the arena
  unlink(path.c_str());
  EXPECT_THROW(make_cpu_peer_device()->open_arena(gone, 100), Error);
  close(pipe);
}

}  // namespace
}  // namespace verbatim::test
