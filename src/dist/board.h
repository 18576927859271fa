// What the ranks of one host have in common.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/peers.h"
#include "dist/byte_ring.h"

namespace verbatim::dist {

/// Asks until `there` says so, at first again at once, later every 20 us. False: it did not in so
/// many seconds.
template <class There>
bool wait_until(double seconds, const There& there) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t asked = 0; !there(); ++asked) {
    if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(seconds))
      return false;
    if (asked < 5000)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

/// The seconds. Throws Error(invalid_argument) where they are not above 0.
double check_seconds(const char* argument, double seconds);

/// Shared memory of the ranks of a host: for each two of them a ring and two counters in each
/// direction, and what each tells all. One object a rank, a process or a thread.
class Board {
 public:
  /// Returns when all ranks are here that give the same `name`, which then is free again. Throws
  /// Error: (invalid_argument) for a bad name, rank or `opening`, (io) where the memory cannot be
  /// had, (device) naming a rank that was not here in `opening` seconds. These are for meet() and
  /// start(), too: all that waits for the others until the ranks go to work.
  Board(const std::string& name, int32_t world, int32_t rank, double opening);
  /// Tells that the rank has ended.
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int32_t world() const { return world_; }
  int32_t rank() const { return rank_; }

  /// Tells all the address of this rank's device. Returns when all have. Throws Error(device)
  /// naming a rank that has ended or did not in time.
  void meet(const std::string& address);
  /// This rank can reach the others. Returns when all can. Throws as meet().
  void start() { await_all(&Entry::started); }
  std::string address(int32_t rank) const { return entries_[rank].address.data(); }

  /// Of messages on a device: ready when they are made, taken when they are copied.
  std::span<Counter> counters() const;
  Counter& ready(int32_t from, int32_t to) const { return counters_[2 * pair(from, to)]; }
  Counter& taken(int32_t from, int32_t to) const { return counters_[2 * pair(from, to) + 1]; }
  ByteRing& ring(int32_t from, int32_t to) const { return rings_[pair(from, to)]; }

  static constexpr int32_t kArenas = 64;
  struct Arena {
    ArenaHandle handle;
    int64_t bytes;
  };
  /// Written before a message says so.
  Arena& arena(int32_t rank, int32_t number) const { return entries_[rank].arenas[number]; }

  /// This rank reads no other's memory any more, and takes nothing.
  void leave() { entries_[rank_].left = true; }
  bool has_left(int32_t rank) const { return entries_[rank].left; }
  bool all_have_left() const;

  /// This rank has ended.
  void end() { entries_[rank_].ended = true; }
  bool has_ended(int32_t rank) const { return entries_[rank].ended; }
  /// Looks which processes are gone: their ranks have ended, too.
  void find_ended();

 private:
  struct Entry {
    std::atomic<bool> here, told, started, left, ended;
    pid_t process;
    ino_t processes;  // among which its number counts
    std::array<char, 32> address;
    std::array<Arena, kArenas> arenas;
  };
  int64_t pair(int32_t from, int32_t to) const { return int64_t{from} * world_ + to; }
  void find_others();
  /// What is left of `opening`, in seconds.
  double remaining() const;
  /// This rank shows the sign; returns when all do.
  void await_all(std::atomic<bool> Entry::*sign);
  /// The name is free for others.
  void unlink();
  void close();

  std::string name_;
  int32_t world_, rank_;
  double opening_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  bool unlinked_ = false;
  size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  Counter* counters_ = nullptr;
  Entry* entries_ = nullptr;
  ByteRing* rings_ = nullptr;
  std::vector<pollfd> processes_;  // by rank; file -1: cannot be watched
};

}  // namespace verbatim::dist
