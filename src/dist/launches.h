// Launches of all rooms, while the lists of ranks are written down.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "dist/deal.h"
#include "dist/join.h"
#include "dist/rooms.h"
#include "dist/steps.h"

namespace verbatim::dist {

class Launches {
 public:
  /// A launch has `most` heads.
  Launches(const Problem& problem, const Rooms& rooms, Steps& steps, int32_t most)
      : problem_(problem),
        rooms_(rooms),
        steps_(steps),
        most_(most),
        parts_(static_cast<size_t>(rooms.count())) {}

  void plan(int32_t head, const Share& share, std::vector<Carry> carries = {}) {
    parts_[static_cast<size_t>(share.room)].push_back({head, share.part, std::move(carries)});
  }
  /// What a room has planned since the last.
  const std::vector<HeadPart>& planned(int32_t room) const {
    return parts_[static_cast<size_t>(room)];
  }
  /// Launches what was planned, none of which waits for another.
  void launch() {
    for (int32_t n = 0; n < rooms_.count(); ++n)
      for (Compute& compute : join(std::exchange(parts_[static_cast<size_t>(n)], {}),
                                   rooms_.heads(n), problem_, most_)) {
        compute.room = rooms_.number_of(n);
        steps_.add(rooms_.rank_of(n), std::move(compute));
      }
  }

 private:
  const Problem& problem_;
  const Rooms& rooms_;
  Steps& steps_;
  int32_t most_;
  std::vector<std::vector<HeadPart>> parts_;  // by room: not launched yet
};

}  // namespace verbatim::dist
