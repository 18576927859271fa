// Which blocks of a rank's memory are free, while a plan is made.
#pragma once

#include <cstdint>
#include <vector>

namespace verbatim::dist {

/// Blocks that are given out and back in stretches of neighbours.
class Blocks {
 public:
  /// The next takes, of `count` together, lie behind each other, if a free stretch holds them all.
  /// `grows`: if not, behind all others.
  void make_room(int32_t count, bool grows = false);
  /// The first of `count` blocks.
  int32_t take(int32_t count);
  void give_back(int32_t block, int32_t count);
  /// There are so many at least.
  void reach(int32_t size);
  /// Blocks that have ever been out at once, with gaps.
  int32_t size() const { return size_; }

 private:
  struct Stretch {
    int32_t block = 0, count = 0;
    int32_t end() const { return block + count; }
  };
  void keep(const Stretch& stretch);

  std::vector<Stretch> free_;  // by block, apart from each other; few
  Stretch room_, returned_;    // taken from and given back last; not in `free_`
  int32_t size_ = 0;
};

}  // namespace verbatim::dist
