// When the copies of a loop are started: a buffer is filled again behind the first barrier after it
// was last read, and every Wait is a barrier.
#pragma once

#include <vector>

#include "tl/kernel.h"

namespace verbatim::tl {

class Copies {
 public:
  /// Start the copy of `tile` for the visit `ahead` after the current one.
  struct Refill {
    int tile;
    int64_t ahead;
  };

  explicit Copies(const Kernel& kernel);

  /// Those in front of the loop, in the order in which the loop goes on with them; `ahead` counts
  /// from the first visit.
  const std::vector<Refill>& first() const { return first_; }
  /// Those at the start of a visit, for that visit, behind a barrier of their own: of tiles that
  /// are read behind all Waits and have one buffer.
  std::vector<Refill> at_start() const { return starts_ ? at(0) : std::vector<Refill>{}; }
  /// Those behind a Wait of the loop.
  std::vector<Refill> behind(const Step& wait) const;
  /// Copies that may still be under way when a tile has arrived: those that were started after it.
  int64_t pending(const Step& wait) const;

 private:
  /// A tile that the loop copies: the places of its Wait and of its last reader.
  struct Tile {
    int variable;
    size_t wait, last_read;
  };
  /// Places in a visit count from 1; 0 is its start.
  size_t place_of(const Step& step) const;
  std::vector<Refill> at(size_t barrier) const;

  const Kernel& kernel_;
  std::vector<Tile> tiles_;
  std::vector<size_t> barriers_;  // places, ascending
  bool starts_ = false;           // the first is the start of a visit
  std::vector<Refill> first_;
};

}  // namespace verbatim::tl
