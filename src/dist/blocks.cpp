#include "dist/blocks.h"

#include <iterator>
#include <utility>

namespace verbatim::dist {

void Blocks::make_room(int32_t count, bool grows) {
  keep(std::exchange(returned_, {}));
  keep(std::exchange(room_, {}));
  for (auto free = free_.begin(); free != free_.end(); ++free) {
    if (free->second < count) continue;
    room_ = {free->first, free->second};
    free_.erase(free);
    return;
  }
  if (!grows) return;
  // What is free at the end is a part of it.
  const bool more = !free_.empty() && free_.rbegin()->first + free_.rbegin()->second == size_;
  const int32_t block = more ? free_.rbegin()->first : size_;
  if (more) free_.erase(std::prev(free_.end()));
  size_ = block + count;
  room_ = {block, count};
}

int32_t Blocks::take(int32_t count) {
  if (room_.count < count) make_room(count, true);
  room_.count -= count;
  return std::exchange(room_.block, room_.block + count);
}

void Blocks::give_back(int32_t block, int32_t count) {
  if (returned_.block + returned_.count != block) keep(std::exchange(returned_, {block, 0}));
  returned_.count += count;
}

void Blocks::reach(int32_t size) {
  if (size <= size_) return;
  keep({size_, size - size_});
  size_ = size;
}

void Blocks::keep(const Stretch& stretch) {
  if (stretch.count == 0) return;
  const auto at = free_.emplace(stretch.block, stretch.count).first;
  const auto after = std::next(at);
  if (after != free_.end() && at->first + at->second == after->first) {
    at->second += after->second;
    free_.erase(after);
  }
  if (at == free_.begin()) return;
  const auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  free_.erase(at);
}

}  // namespace verbatim::dist
