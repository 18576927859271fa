// A wire on which one frame goes wrong.
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <utility>

#include "dist/wire.h"

namespace verbatim::test {

class FaultyWire final : public dist::Wire {
 public:
  /// Frame `at` of those that this rank sends is "lost", "doubled" or "swapped" with the next one
  /// to its receiver; from it on all are "held" for ever; or the process is "killed" or "stopped"
  /// then.
  FaultyWire(dist::Wire& wire, std::string fault, int64_t at)
      : wire_(wire), fault_(std::move(fault)), at_(at) {}

  int32_t rank() const override { return wire_.rank(); }
  int32_t size() const override { return wire_.size(); }
  std::optional<Arrival> poll() override { return wire_.poll(); }
  void send(int32_t to, dist::Words frame) override {
    const bool here = frames_ == at_, behind = frames_++ > at_;
    if (fault_ == "held" && (here || behind)) return;
    if (here && fault_ == "lost") return;
    if (here && fault_ == "killed") std::raise(SIGKILL);
    if (here && fault_ == "stopped") std::raise(SIGSTOP);
    if (here && fault_ == "doubled") wire_.send(to, frame);
    if (here && fault_ == "swapped") {
      kept_ = {to, std::move(frame)};
      return;
    }
    wire_.send(to, std::move(frame));
    if (kept_ && kept_->from == to) wire_.send(to, std::exchange(kept_, {})->frame);
  }

 private:
  dist::Wire& wire_;
  std::string fault_;
  int64_t at_, frames_ = 0;
  std::optional<Arrival> kept_;  // its receiver, and the frame
};

}  // namespace verbatim::test
