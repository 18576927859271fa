// When the copies in the background of a loop are started: a buffer is filled again behind the
// first barrier after it was last read, and every Wait is a barrier.
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
  /// Those behind a Wait of the loop.
  std::vector<Refill> behind(const Step& wait) const;
  /// Copies that may still be under way when a tile has arrived: those that were started after it.
  int64_t pending(const Step& wait) const;
  /// A tile that would have to be copied for a visit after that visit waits for it, since it is
  /// read behind all Waits and has one buffer; -1: none.
  int without_room() const;

 private:
  /// A tile that the loop copies: the positions of its Wait and of its last reader in a visit.
  struct Tile {
    int variable;
    size_t wait, last_read;
  };
  std::vector<Refill> at(size_t wait) const;

  const Kernel& kernel_;
  std::vector<Tile> tiles_;
  std::vector<size_t> waits_;  // positions in a visit, ascending
  std::vector<Refill> first_;
};

}  // namespace verbatim::tl
