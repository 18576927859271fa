// A transport between ranks of one host, which read each other's memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backend/peers.h"
#include "dist/board.h"
#include "dist/outbox.h"
#include "verbatim/transport.h"

namespace verbatim::dist {

/// make_peers() of verbatim/transport.h. A message on a device lies in the sender's memory: through
/// the ring goes only where. Messages below 0 go through it themselves.
class Peers final : public Transport {
 public:
  /// `make_device` is called once, when the others can learn of it if it fails.
  Peers(const std::string& name, int32_t world, int32_t rank, double opening, double timeout,
        const std::function<std::unique_ptr<PeerDevice>()>& make_device);
  ~Peers() override;

  bool on_device() const override { return true; }
  void begin(const RunOptions& run) override;
  std::byte* room(int64_t bytes) override;
  void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override;
  bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override;
  void arrived() override { device_->join(); }
  bool overlaps() const override { return true; }
  bool expect(int32_t from, int64_t message, std::span<std::byte> bytes) override;
  void came(int32_t from, int64_t message) override;
  void settle() override { settled_ = sent_; }

  /// Of all arenas of this rank.
  int64_t room_bytes() const { return outbox_.bytes(); }

 private:
  /// What goes through a ring in front of each message.
  struct Head {
    int64_t message, bytes;
    int64_t offset;  // of a message on a device: in the arena
    int32_t arena;
    uint32_t number;  // of those messages between the two ranks
  };
  /// What the work on the device waits for last of a counter.
  struct Wait {
    Counter* counter;
    std::atomic<uint32_t> number;
    std::atomic<int64_t> message;
  };
  struct Watched {
    uint32_t value;
    std::chrono::steady_clock::time_point since;
  };

  /// The bytes follow those that were sent before.
  void post(int32_t to, std::span<const std::byte> bytes);
  /// The next message of a rank, which is to come there, on the device.
  PeerDevice::Pull next(int32_t from, int64_t message, std::span<std::byte> bytes);
  /// What goes through a ring in front of it, which is checked.
  Head read_head(int32_t from, int64_t message, std::span<std::byte> bytes);
  /// Waits for the next bytes of a rank, which are of this message.
  void read(int32_t from, int64_t message, std::span<std::byte> bytes);
  /// Of another rank.
  const std::byte* arena(int32_t from, int32_t number);
  /// Another of this rank, in which so much finds room.
  void add_arena(int64_t bytes);
  /// Of a message in the last room, or of its copy.
  Outbox::Place place(std::span<const std::byte> bytes);
  void learn_taken();
  /// Of messages of this rank, or from another to it.
  Wait& taken_by(int32_t rank) { return waits_[2 * rank]; }
  Wait& ready_from(int32_t rank) { return waits_[2 * rank + 1]; }
  static void waits(Wait& wait, uint32_t number, int64_t message);

  /// In a thread of its own: writes what found no room in a ring, and lets the device's work go on
  /// that waits in vain.
  void watch();
  void push();
  /// The first that waits for too long.
  std::string overdue(std::vector<Watched>& seen) const;
  /// From now on every call fails; what the device waits for is let go.
  void give_up(const std::string& trouble);
  [[noreturn]] void fail(const std::string& trouble);
  /// What throws an Error fails for all calls: work that was asked for before may still go on.
  void or_fail(const std::function<void()>& what);
  /// Throws Error(device) when it has given up.
  void check();
  [[noreturn]] void stop();
  std::string missed(int64_t message, int32_t from, std::string_view why) const;
  /// Whether all that was received is here.
  bool has_pulled() const;
  /// Whether all that was sent is taken, by ranks that have not left or ended.
  bool is_over();

  double timeout_;
  Board board_;
  std::unique_ptr<PeerDevice> device_;
  Outbox outbox_;
  int32_t arenas_ = 0;
  std::vector<uint32_t> sent_, settled_, received_;               // numbers of messages, by rank
  std::map<std::pair<int32_t, int32_t>, const std::byte*> open_;  // arenas by rank and number
  std::map<std::pair<int32_t, int64_t>, uint32_t> expected_;      // numbers by rank and message
  std::vector<Wait> waits_;

  std::mutex mutex_;                             // of what follows
  std::vector<std::vector<std::byte>> backlog_;  // by receiver
  bool stopped_ = false;
  std::string trouble_;
  std::condition_variable changed_;
  std::atomic<bool> failed_ = false;
  std::thread watch_;
};

}  // namespace verbatim::dist
