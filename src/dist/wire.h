// Between processes that share no memory: frames, and a transport that numbers and counts them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "dist/executor.h"

namespace verbatim::dist {

/// A frame is a sequence of 64-bit words. Those of one sender arrive in its sequence.
using Words = std::vector<int64_t>;

/// What carries frames: MPI, or memory in tests.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  /// Never waits for the receiver.
  virtual void send(int32_t to, Words frame) = 0;
  struct Arrival {
    int32_t from;
    Words frame;
  };
  /// A frame that is there, or nothing.
  virtual std::optional<Arrival> poll() = 0;
};

/// Messages as frames. A frame carries how many its sender sent to this rank before: one that is
/// lost, doubled or out of turn shows with the next, at the latest when ranks meet. A rank that has
/// waited for half of its timeout tells all others for whom.
class Courier final : public Transport {
 public:
  /// `timeout`: seconds that a rank waits for a message.
  Courier(Wire& wire, double timeout);

  void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override;
  /// Waits, and returns true. Throws Error(device) naming the message and its sender, and for whom
  /// that waits, when it does not come in time; or when anything else came wrong.
  bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override;
  /// Returns when every rank is here. Throws Error(device) when a message sent before was not
  /// taken.
  void meet();

 private:
  struct Header;
  int32_t rank() const { return wire_.rank(); }
  void sort_in(Wire::Arrival arrival);
  void tell_waiting(int32_t from);
  /// Who waits for whom, from that rank on.
  std::string waits_of(int32_t rank) const;

  Wire& wire_;
  double timeout_;
  int64_t meetings_ = 0;
  std::vector<int64_t> sent_, received_;  // frames, by rank
  std::vector<int32_t> awaited_;          // by rank: whom it told that it waits for, or -1
  // Messages that have come: by the meetings of their sender before, sender and number.
  std::map<std::tuple<int64_t, int32_t, int64_t>, Words> mail_;
};

}  // namespace verbatim::dist
