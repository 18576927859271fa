#include "dist/outbox.h"

#include <algorithm>
#include <bit>

#include "backend/peers.h"

namespace verbatim::dist {
namespace {

constexpr int64_t kSmallest = int64_t{64} << 20, kAlignment = 256;

}  // namespace

bool Outbox::is_free(const Room& room) const {
  return std::ranges::all_of(room.sent, [this](const auto& last) {
    return Counter::is_at(taken_[last.first], last.second);
  });
}

std::byte* Outbox::find(int64_t bytes) {
  const int64_t size = std::max((bytes + kAlignment - 1) / kAlignment, int64_t{1}) * kAlignment;
  last_ = kNone;
  for (Arena& arena : arenas_)
    std::erase_if(arena.rooms, [this](const Room& room) { return is_free(room); });
  for (Arena& arena : arenas_) {
    int64_t begin = 0;
    auto behind = arena.rooms.begin();
    while (behind != arena.rooms.end() && behind->begin - begin < size) begin = (behind++)->end;
    if (behind == arena.rooms.end() && arena.bytes - begin < size) continue;
    last_ = {static_cast<size_t>(&arena - arenas_.data()),
             static_cast<size_t>(behind - arena.rooms.begin())};
    arena.rooms.insert(behind, Room{begin, begin + size, {}});
    return arena.data + begin;
  }
  return nullptr;
}

int64_t Outbox::next_arena(int64_t bytes) const {
  const int64_t least = std::max({bytes, kSmallest, this->bytes() / 2});
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(least)));
}

int64_t Outbox::bytes() const {
  int64_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.bytes;
  return bytes;
}

std::optional<Outbox::Place> Outbox::place_of(std::span<const std::byte> bytes) const {
  if (last_ == kNone) return std::nullopt;
  const Arena& arena = arenas_[last_.first];
  const Room& room = arena.rooms[last_.second];
  if (bytes.data() < arena.data + room.begin || bytes.data() + bytes.size() > arena.data + room.end)
    return std::nullopt;
  return Place{static_cast<int32_t>(last_.first), bytes.data() - arena.data};
}

void Outbox::sent(int32_t to, uint32_t number) {
  auto& sent = arenas_[last_.first].rooms[last_.second].sent;
  const auto found = std::ranges::find(sent, to, &std::pair<int32_t, uint32_t>::first);
  if (found == sent.end()) {
    sent.emplace_back(to, number);
  } else {
    found->second = number;
  }
}

void Outbox::taken(int32_t by, uint32_t number) {
  if (Counter::is_at(number, taken_[by])) taken_[by] = number;
}

}  // namespace verbatim::dist
