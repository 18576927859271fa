// Which heads of a backward start together.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "dist/duration.h"
#include "dist/rooms.h"
#include "verbatim/dist.h"

namespace verbatim::dist {

/// The best of what was tried.
class Starts {
 public:
  /// Of heads of `problem` in `rooms`, which must last as long. `most`: heads of a launch.
  /// `overlapped`: messages come beside the next launches.
  Starts(const Problem& problem, const Rooms& rooms, int32_t most, bool overlapped)
      : problem_(problem), rooms_(rooms), most_(most), overlapped_(overlapped) {}

  /// The stage in which a head starts.
  int32_t of(int32_t head) const { return starts_[static_cast<size_t>(head)]; }
  /// Whether heads dealt so, so many of which start together, take at most as long as all that was
  /// tried; then they do.
  bool try_beside(const Deals& deals, int32_t beside);
  /// Fewer heads start together where each keeps a rank busy for long: sums of the next take the
  /// place of those that are sent. Overlapped, they come beside the next, and the last alone cost
  /// time.
  void save_memory(const Deals& deals);

 private:
  std::vector<int32_t> starts_of(const Deals& deals, int32_t beside) const;
  double takes(const Deals& deals, const std::vector<int32_t>& starts, double launch) const;

  const Problem& problem_;
  const Rooms& rooms_;
  int32_t most_;
  bool overlapped_;
  std::vector<int32_t> starts_;  // by head
  double least_ = INFINITY;
};

}  // namespace verbatim::dist
