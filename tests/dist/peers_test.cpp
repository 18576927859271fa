// Ranks of one host that read each other's memory: bytes of the host, and the whole between threads
// and between processes.
#include "dist/peers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "core/random.h"
#include "dist/dist_case.h"
#include "dist/late_device.h"
#include "dist/ranks.h"
#include "verbatim/context_parallel.h"

namespace verbatim::test {
namespace {

using dist::Board;
using dist::ByteRing;
using dist::Peers;

/// Of no other test, nor of another run of this one.
std::string fresh_name() {
  static std::atomic<int> count;
  return fmt::format("test-{}-{}", getpid(), count++);
}

std::vector<std::byte> some_bytes(size_t count, uint64_t seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(random_bits(seed, i));
  return bytes;
}

TEST(ByteRing, KeepsBytesInTheirSequence) {
  const auto ring = std::make_unique<ByteRing>();
  const std::vector<std::byte> all = some_bytes(20 * ByteRing::kBytes + 77, 1);
  std::vector<std::byte> got(all.size());
  std::thread writer([&] {
    Random rng(2);
    for (size_t at = 0; at < all.size();)
      at += ring->write(
          std::span(all).subspan(at, std::min<size_t>(all.size() - at, rng.between(0, 9000))));
  });
  Random rng(3);
  for (size_t at = 0; at < got.size();)
    at += ring->read(
        std::span(got).subspan(at, std::min<size_t>(got.size() - at, rng.between(0, 9000))));
  writer.join();
  EXPECT_TRUE(got == all);
}

TEST(ByteRing, TakesAsMuchAsThereIsRoomFor) {
  const auto ring = std::make_unique<ByteRing>();
  std::vector<std::byte> bytes = some_bytes(ByteRing::kBytes + 5, 1);
  EXPECT_EQ(ring->write(bytes), ByteRing::kBytes);
  EXPECT_EQ(ring->write(bytes), 0u);
  EXPECT_EQ(ring->read(std::span(bytes).first(3)), 3u);
  EXPECT_EQ(ring->write(bytes), 3u);
  EXPECT_EQ(ring->read(bytes), ByteRing::kBytes);
  EXPECT_EQ(ring->read(bytes), 0u);
}

/// What each rank's `part` threw, as threads; empty: nothing.
std::vector<std::string> errors_of(
    int32_t world, double timeout, const std::function<void(int32_t, Peers&)>& part,
    const std::function<std::unique_ptr<PeerDevice>()>& make = make_cpu_peer_device) {
  const std::string name = fresh_name();
  std::vector<std::string> errors(world);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Peers peers(name, world, rank, 60, timeout, make);
        part(rank, peers);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}
using Errors = std::vector<std::string>;

TEST(Peers, LongMessagesOfTheHostCrossEachOther) {
  const auto errors = errors_of(3, 60, [](int32_t rank, Peers& peers) {
    const std::vector<std::byte> own = some_bytes(5 * ByteRing::kBytes + rank, rank);
    for (const int32_t other : {0, 1, 2})
      if (other != rank) peers.send(other, -3, own);
    for (const int32_t other : {2, 1, 0}) {
      if (other == rank) continue;
      std::vector<std::byte> got(5 * ByteRing::kBytes + other);
      EXPECT_TRUE(peers.receive(other, -3, got));
      EXPECT_TRUE(got == some_bytes(got.size(), other));
    }
  });
  EXPECT_EQ(errors, Errors(3));
}

TEST(Peers, ASenderThatDoesNothingElseIsReadToItsEnd) {
  constexpr int kMessages = 5000;  // more than a ring has room for
  const auto errors = errors_of(2, 60, [](int32_t rank, Peers& peers) {
    for (int message = 0; message < kMessages; ++message) {
      std::vector<std::byte> bytes = some_bytes(100, message), got(100);
      if (rank == 0) {
        std::byte* room = peers.room(100);
        std::memcpy(room, bytes.data(), 100);
        peers.send(1, message, {room + 100, 0});
        peers.send(1, message, {room, 100});
      } else {
        if (message == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        EXPECT_TRUE(peers.receive(0, message, {}));
        EXPECT_TRUE(peers.receive(0, message, got) && got == bytes);
      }
    }
    EXPECT_LE(peers.room_bytes(), int64_t{64} << 20);
  });
  EXPECT_EQ(errors, Errors(2));
}

TEST(Peers, BytesFromElsewhereAreCopied) {
  const auto errors = errors_of(2, 60, [](int32_t rank, Peers& peers) {
    std::vector<std::byte> bytes = some_bytes(1000, 4);
    if (rank == 0) {
      peers.send(1, 7, bytes);
      std::ranges::fill(bytes, std::byte{});
      return;
    }
    std::vector<std::byte> got(1000);
    EXPECT_TRUE(peers.receive(0, 7, got) && got == bytes);
  });
  EXPECT_EQ(errors, Errors(2));
}

TEST(Peers, ASenderThatIsAheadTakesNoMoreMemoryWhereItMayWait) {
  constexpr int64_t kBytes = int64_t{96} << 20;
  const auto errors = errors_of(2, 60, [](int32_t rank, Peers& peers) {
    std::vector<std::byte> got(rank * kBytes);
    for (int message = 0; message < 10; ++message) {
      if (rank == 0) {
        std::byte* room = peers.room(kBytes);
        room[message] = std::byte{9};
        peers.send(1, message, {room, kBytes});
        peers.settle();
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        peers.receive(0, message, got);
        EXPECT_EQ(got[message], std::byte{9});
      }
    }
    EXPECT_LE(peers.room_bytes(), int64_t{768} << 20);
  });
  EXPECT_EQ(errors, Errors(2));
}

TEST(Peers, AMessageOfAnotherSizeOrNumberIsNamed) {
  for (const auto& [message, bytes] : {std::pair{5, 8}, {6, 4}}) {
    const auto errors = errors_of(2, 60, [&](int32_t rank, Peers& peers) {
      std::vector<std::byte> data(8);
      if (rank == 0) return peers.send(1, 5, std::span(data).first(4));
      peers.receive(0, message, std::span(data).first(bytes));
    });
    EXPECT_NE(errors[1].find("message 5 of rank 0 with 4 bytes came to rank 1, which expected"),
              std::string::npos)
        << errors[1];
  }
}

TEST(Peers, AMessageThatNeverComesEndsInTime) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = errors_of(2, 1, [](int32_t rank, Peers& peers) {
    if (rank == 0) return std::this_thread::sleep_for(std::chrono::seconds(3));
    std::byte byte{};
    peers.receive(0, 3, {&byte, 1});
  });
  EXPECT_EQ(errors[1],
            "[peers.transfer] message 3 of rank 0 did not come to rank 1; nothing came in 1 s");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
}

TEST(Peers, AWaitEndsInTimeWhereEachLookTakesLong) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(dist::wait_until(0.01, [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // as on a busy machine
    return false;
  }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST(Peers, ARankThatEndsIsNotWaitedFor) {
  const auto errors = errors_of(3, 600, [](int32_t rank, Peers& peers) {
    std::byte byte{};
    if (rank == 0) throw std::runtime_error("ends");
    if (rank == 1) dist::agree(peers, rank, 3, "{}");
    peers.receive(1, 3, {&byte, 1});
  });
  EXPECT_EQ(errors[1],
            "[peers.transfer] the answer of rank 0, as ranks compare what they were asked, did not "
            "come to rank 1; it has ended");
  EXPECT_EQ(errors[2], "[peers.transfer] message 3 of rank 1 did not come to rank 2; it has ended");
}

TEST(Peers, WhatIsExpectedComesBesideOthers) {
  const auto errors = errors_of(
      2, 60,
      [](int32_t rank, Peers& peers) {
        constexpr int kMessages = 20;
        if (rank == 0) {
          for (int m = 0; m < kMessages; ++m) peers.send(1, m, some_bytes(100 + m, m));
          return;
        }
        std::vector<std::vector<std::byte>> got(kMessages);
        for (int m = 0; m < kMessages; ++m) {
          got[m].resize(100 + m);
          if (m % 3 == 0) {
            EXPECT_TRUE(peers.receive(0, m, got[m]));
            peers.arrived();
            EXPECT_TRUE(got[m] == some_bytes(100 + m, m));
          } else {
            EXPECT_TRUE(peers.expect(0, m, got[m]));
          }
        }
        for (int m = kMessages - 1; m >= 0; --m) {
          if (m % 3 == 0) continue;
          peers.came(0, m);
          EXPECT_TRUE(got[m] == some_bytes(100 + m, m));
        }
      },
      [] { return std::make_unique<LateDevice>(false); });
  EXPECT_EQ(errors, Errors(2));
}

TEST(Peers, WhatIsExpectedInVainIsLetGoAndToldOf) {
  const auto errors = errors_of(
      2, 1,
      [](int32_t rank, Peers& peers) {
        std::byte byte{};
        if (rank == 0) {
          peers.send(1, 3, {&byte, 1});
          std::this_thread::sleep_for(std::chrono::seconds(3));
          return;
        }
        EXPECT_TRUE(peers.expect(0, 3, {&byte, 1}));
        peers.came(0, 3);
        peers.begin({});
      },
      [] { return std::make_unique<LateDevice>(true); });
  EXPECT_EQ(errors[1],
            "[peers.transfer] message 3 of rank 0 did not come to rank 1; its work took 1 s");
}

TEST(Peers, RanksThatStopWithMessagesUntakenDoNotWaitForEachOther) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = errors_of(3, 600, [](int32_t rank, Peers& peers) {
    for (const int32_t other : {0, 1, 2})
      if (other != rank) peers.send(other, 0, some_bytes(1000, rank));
  });
  EXPECT_EQ(errors, Errors(3));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(300));
}

/// Whose copies from other ranks are refused.
class RefusingDevice final : public LateDevice {
 public:
  RefusingDevice() : LateDevice(false) {}
  void pull(const Pull&) override { throw Error(ErrorCode::device, "test", "no copy"); }
};

TEST(Peers, ACopyThatIsRefusedIsWhatEveryLaterCallSays) {
  const auto errors = errors_of(
      2, 60,
      [](int32_t rank, Peers& peers) {
        if (rank == 0) return peers.send(1, 0, some_bytes(100, 0));
        std::vector<std::byte> got(100);
        EXPECT_THROW(peers.receive(0, 0, got), Error);
        peers.receive(0, 1, got);
      },
      []() -> std::unique_ptr<PeerDevice> { return std::make_unique<RefusingDevice>(); });
  EXPECT_EQ(errors[1], "[peers.transfer] [test] no copy");
}

TEST(Peers, WorkThatWaitsInVainIsLetGoAndToldOf) {
  const auto errors = errors_of(
      2, 1,
      [](int32_t rank, Peers& peers) {
        std::byte byte{};
        if (rank == 0) {
          peers.send(1, 3, {&byte, 1});
          std::this_thread::sleep_for(std::chrono::seconds(3));
          return;
        }
        EXPECT_TRUE(peers.receive(0, 3, {&byte, 1}));  // its work is only enqueued
        peers.arrived();                               // here it is waited for
        peers.begin({});
      },
      [] { return std::make_unique<LateDevice>(true); });
  EXPECT_EQ(errors[1],
            "[peers.transfer] message 3 of rank 0 did not come to rank 1; its work took 1 s");
}

TEST(Peers, ABadTimeoutOrANameInUseIsNamed) {
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    for (const auto& [argument, opening, timeout] :
         {std::tuple{"opening", bad, 60.0}, {"timeout", 60.0, bad}}) {
      try {
        make_peers(fresh_name(), 1, 0, "cpu", opening, timeout);
        ADD_FAILURE() << argument << " " << bad;
      } catch (const Error& error) {
        EXPECT_EQ(error.details().argument, argument);
      }
    }
  }
  const std::string name = fresh_name();
  const int file = shm_open(("/verbatim-" + name).c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  try {
    Board(name, 1, 0, 60);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.details().argument, "name");
  }
  close(file);
  EXPECT_EQ(shm_unlink(("/verbatim-" + name).c_str()), 0) << "the others' memory is gone";
}

TEST(Peers, OpeningNamesWhoIsMissing) {
  const auto message = [](auto&& open) -> std::string {
    try {
      open();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto peers = [](const std::string& name, int32_t world, int32_t rank) {
    return [=] { make_peers(name, world, rank, "cpu", 0.2, 60); };
  };
  EXPECT_NE(message(peers(fresh_name(), 2, 1)).find("rank 0 is not on this host"),
            std::string::npos);
  const std::string name = fresh_name();
  EXPECT_NE(message(peers(name, 2, 0)).find("rank 1 was not here in 0.2 s"), std::string::npos);
  EXPECT_EQ(message(peers(name, 1, 0)), "");  // the name is free again
  EXPECT_NE(message(peers("a/b", 1, 0)).find("got 'a/b'"), std::string::npos);
  EXPECT_NE(message(peers(name, 2, 2)).find("got 2, expected 0 to 1"), std::string::npos);
  EXPECT_NE(message(peers(name, 4097, 1)).find("got 4097, expected 1 to 4096"), std::string::npos);
}

TEST(Peers, OpeningInVainKeepsNoFile) {
  const auto files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const std::string name = fresh_name(), path = "/verbatim-" + name;
  close(shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));  // of no size yet
  const auto before = files();
  EXPECT_THROW(Board(name, 2, 1, 0.1), Error);
  EXPECT_EQ(files(), before);
  shm_unlink(path.c_str());
}

TEST(Peers, OpeningIsOneTimeForAllOfIt) {
  const std::string name = fresh_name();
  std::unique_ptr<Board> other;
  std::thread thread([&] { other = std::make_unique<Board>(name, 2, 1, 2); });
  Board board(name, 2, 0, 2);
  thread.join();
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  const auto begin = std::chrono::steady_clock::now();
  try {
    board.meet("cpu");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[peers.open] rank 1 was not ready in 2 s");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1900));
}

TEST(Peers, ADeviceThatFailsEndsAll) {
  std::atomic<int> made = 0;
  const auto errors = errors_of(
      3, 600, [](int32_t, Peers&) {},
      [&]() -> std::unique_ptr<PeerDevice> {
        if (made++ == 0) throw Error(ErrorCode::device, "test", "no device");
        return make_cpu_peer_device();
      });
  EXPECT_EQ(std::ranges::count(errors, "[test] no device"), 1);
  for (const std::string& error : errors)
    EXPECT_TRUE(error == "[test] no device" || error.ends_with("has ended")) << error;
}

/// Runs `part` as a process, which ends with 0, or 1 when it throws.
pid_t start(const std::function<void()>& part) {
  const pid_t process = fork();
  if (process != 0) return process;
  try {
    part();
  } catch (const std::exception&) {
    _exit(1);
  }
  _exit(0);
}

TEST(Peers, OfProcessesOutliveOneThatIsKilled) {
  const std::string name = fresh_name();
  const pid_t other = start([&] {
    Peers peers(name, 2, 1, 60, 60, make_cpu_peer_device);
    std::byte* room = peers.room(1 << 20);
    std::memset(room, 7, 1 << 20);
    peers.send(0, 0, {room, 1 << 20});
    pause();
  });
  const auto begin = std::chrono::steady_clock::now();
  {
    Peers peers(name, 2, 0, 60, 60, make_cpu_peer_device);
    std::vector<std::byte> got(1 << 20);
    EXPECT_TRUE(peers.receive(1, 0, got));
    EXPECT_EQ(std::ranges::count(got, std::byte{7}), 1 << 20);
    std::byte* room = peers.room(100);
    peers.send(1, 0, {room, 100});  // which nobody takes
    kill(other, SIGKILL);
    try {
      peers.receive(1, 1, got);
      ADD_FAILURE() << "nothing was sent";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "[peers.transfer] message 1 of rank 1 did not come to rank 0; it has ended");
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  waitpid(other, nullptr, 0);
}

/// Both passes of one rank over its shard.
void run_both(ContextParallel& parallel, Case& tensors) {
  using enum Operand;
  static const auto backend = make_backend("cpu");
  const RunOptions run{.threads = 1};
  const auto shard = [&](Pass pass, const auto& whole, const auto& call) {
    dist::ShardMemory memory(parallel.plan(pass), parallel.rank(), *backend, run);
    memory.take(dist::whole_tensors(whole));
    call(memory.tensors());
    memory.give(dist::whole_tensors(whole));
  };
  shard(Pass::forward, tensors.forward(), [&](const dist::LocalTensors& t) {
    parallel.forward({t[q], t[k], t[v], t[o], t.lse}, run);
  });
  shard(Pass::backward, tensors.backward(), [&](const dist::LocalTensors& t) {
    parallel.backward({t[q], t[k], t[v], t[o], t[dout], t.lse, t[dq], t[dk], t[dv]}, run);
  });
}

TEST(Peers, RanksHaveTheBitsOfOneDevice) {
  constexpr int32_t kWorld = 4;
  const Mask mask = masks::causal_document(std::vector<int64_t>{120, 50, 30});
  DistCase one(problem_of(200, 8, 4), mask, kTile);
  AttentionOptions options;
  options.plan.tile = kTile;
  const Attention alone(one.tensors.problem, mask, options);
  alone.forward(one.tensors.forward());
  alone.backward(one.tensors.backward());
  const std::vector<std::string> expected = one.tensors.hashes();
  // Launches of one head have messages beside them.
  for (const auto& [late, joined] : {std::pair{false, 0}, {false, 1}, {true, 1}}) {
    for (const std::string& strategy : strategy_names()) {
      SCOPED_TRACE(fmt::format("{} {} {}", strategy, late, joined));
      for (GuardedTensor* output : one.outputs()) output->poison();
      const auto errors = errors_of(
          kWorld, 60,
          [&](int32_t rank, Peers& peers) {
            ContextParallel parallel(
                one.tensors.problem, mask,
                {.world = kWorld, .strategy = strategy, .joined_heads = joined}, rank, peers,
                options);
            EXPECT_TRUE(parallel.plan(Pass::forward).options.overlapped);
            Random rng(rank);
            for (int repeat = 0; repeat < 3; ++repeat) {
              std::this_thread::sleep_for(std::chrono::microseconds(rng.between(0, 2000)));
              run_both(parallel, one.tensors);
            }
          },
          [late = late]() -> std::unique_ptr<PeerDevice> {
            if (late) return std::make_unique<LateDevice>(false);
            return make_cpu_peer_device();
          });
      EXPECT_EQ(errors, Errors(kWorld));
      EXPECT_EQ(one.tensors.hashes(), expected);
    }
  }
}

}  // namespace
}  // namespace verbatim::test
