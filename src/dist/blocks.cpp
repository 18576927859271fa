#include "dist/blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace verbatim::dist {

void Blocks::make_room(int32_t count, bool grows) {
  keep(std::exchange(returned_, {}));
  keep(std::exchange(room_, {}));
  const auto fits = std::ranges::find_if(free_, [&](const Stretch& s) { return s.count >= count; });
  if (fits != free_.end()) {
    room_ = *fits;
    free_.erase(fits);
    return;
  }
  if (!grows) return;
  // What is free at the end is a part of it.
  const bool more = !free_.empty() && free_.back().end() == size_;
  const int32_t block = more ? free_.back().block : size_;
  if (more) free_.pop_back();
  size_ = block + count;
  room_ = {block, count};
}

int32_t Blocks::take(int32_t count) {
  if (room_.count < count) make_room(count, true);
  room_.count -= count;
  return std::exchange(room_.block, room_.block + count);
}

void Blocks::give_back(int32_t block, int32_t count) {
  if (returned_.end() != block) keep(std::exchange(returned_, {block, 0}));
  returned_.count += count;
}

void Blocks::reach(int32_t size) {
  if (size <= size_) return;
  keep({size_, size - size_});
  size_ = size;
}

void Blocks::keep(const Stretch& stretch) {
  if (stretch.count == 0) return;
  const auto after = std::ranges::lower_bound(free_, stretch.block, {}, &Stretch::block);
  const bool joins_after = after != free_.end() && stretch.end() == after->block;
  const bool joins_before = after != free_.begin() && std::prev(after)->end() == stretch.block;
  if (joins_before) {
    std::prev(after)->count += stretch.count + (joins_after ? after->count : 0);
    if (joins_after) free_.erase(after);
  } else if (joins_after) {
    *after = {stretch.block, stretch.count + after->count};
  } else {
    free_.insert(after, stretch);
  }
}

}  // namespace verbatim::dist
