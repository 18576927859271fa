// A device of a peer whose work is behind its calls.
#pragma once

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "backend/peers.h"
#include "core/random.h"

namespace verbatim::test {

/// Pulls behind the calls, as a GPU. `never`: what it signals is never seen.
class LateDevice : public PeerDevice {
 public:
  explicit LateDevice(bool never) : device_(make_cpu_peer_device()), never_(never) {}
  ~LateDevice() override { end(); }
  std::string address() const override { return device_->address(); }
  void check_reach(const std::string& address) const override { device_->check_reach(address); }
  void attach(std::span<Counter> counters) override { device_->attach(counters); }
  std::byte* make_arena(int64_t bytes, ArenaHandle& handle) override {
    return device_->make_arena(bytes, handle);
  }
  const std::byte* open_arena(const ArenaHandle& handle, int64_t bytes) override {
    return device_->open_arena(handle, bytes);
  }
  bool close_opened() override {
    end();
    return device_->close_opened();
  }
  void keep_made() override { device_->keep_made(); }
  void follow(void* stream) override { device_->follow(stream); }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    device_->copy(to, from, bytes);
  }
  void signal(Counter& counter, uint32_t number) override {
    if (!never_) device_->signal(counter, number);
  }
  void await(const Counter& counter, uint32_t number) override { device_->await(counter, number); }
  void pull(const Pull& pull) override { pulled_[pull.from] = enqueue(pull); }
  void join() override {
    for (const auto& [from, last] : std::exchange(pulled_, {})) last.wait();
  }
  void expect(const Pull& pull) override { expected_[{pull.from, pull.number}] = enqueue(pull); }
  void join(int32_t from, uint32_t number) override {
    if (const auto last = expected_.extract({from, number})) last.mapped().wait();
  }

 private:
  using Work = std::shared_future<void>;
  /// Behind those from the same rank, by chance late.
  Work enqueue(const Pull& pull) {
    Work& last = lanes_[pull.from];
    const auto pause = std::chrono::microseconds(random_.between(0, 300));
    last = std::async(std::launch::async, [this, pull, pause, before = last] {
      if (before.valid()) before.wait();
      std::this_thread::sleep_for(pause);
      device_->pull(pull);
    });
    return last;
  }
  void end() {
    for (const auto& [from, last] : std::exchange(lanes_, {})) last.wait();
  }

  std::unique_ptr<PeerDevice> device_;
  bool never_;
  Random random_{1};
  std::map<int32_t, Work> lanes_, pulled_;  // by sender the last; of those for join()
  std::map<std::pair<int32_t, uint32_t>, Work> expected_;
};

}  // namespace verbatim::test
