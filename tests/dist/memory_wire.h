// A wire between threads of one process, which stand for ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "core/random.h"
#include "dist/wire.h"

namespace verbatim::test {

/// Frames on their way; each is put there up to `delay` microseconds late.
class Lines {
 public:
  explicit Lines(int32_t ranks, uint64_t delay = 0)
      : delay_(delay), boxes_(static_cast<size_t>(ranks)) {}
  int32_t ranks() const { return static_cast<int32_t>(boxes_.size()); }
  void put(int32_t to, dist::Wire::Arrival arrival) {
    if (delay_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(next() % delay_));
    const std::lock_guard lock(mutex_);
    boxes_[to].push_back(std::move(arrival));
  }
  std::optional<dist::Wire::Arrival> take(int32_t rank) {
    const std::lock_guard lock(mutex_);
    auto& box = boxes_[rank];
    if (box.empty() && over) throw std::runtime_error("another rank ended");
    if (box.empty()) return std::nullopt;
    dist::Wire::Arrival first = std::move(box.front());
    box.pop_front();
    return first;
  }

  std::atomic<bool> over = false;  // a rank failed, and all end as under MPI

 private:
  uint64_t next() {
    const std::lock_guard lock(mutex_);
    return random_.bits();
  }

  std::mutex mutex_;
  uint64_t delay_;
  Random random_{1};
  std::vector<std::deque<dist::Wire::Arrival>> boxes_;  // by receiver
};

class MemoryWire final : public dist::Wire {
 public:
  MemoryWire(Lines& lines, int32_t rank) : lines_(lines), rank_(rank) {}
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return lines_.ranks(); }
  void send(int32_t to, dist::Words frame) override { lines_.put(to, {rank_, std::move(frame)}); }
  std::optional<Arrival> poll() override { return lines_.take(rank_); }

 private:
  Lines& lines_;
  int32_t rank_;
};

}  // namespace verbatim::test
