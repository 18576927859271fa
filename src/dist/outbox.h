// Where a rank makes its messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace verbatim::dist {

/// Rooms in arenas of memory. A room is free again when each receiver has taken the messages that
/// were sent from it; what of it was not sent, with the next room.
class Outbox {
 public:
  /// `world`: ranks, each of which may be a receiver.
  explicit Outbox(int32_t world) : taken_(static_cast<size_t>(world)) {}

  /// A room, where enough is free; else null.
  std::byte* find(int64_t bytes);
  /// The size of another arena in which find() finds that much: a power of two of at least 64 MiB,
  /// or half of all that there is, so that arenas stay few.
  int64_t next_arena(int64_t bytes) const;
  void add(std::byte* arena, int64_t bytes) { arenas_.push_back({arena, bytes, {}}); }
  /// Of all arenas.
  int64_t bytes() const;

  struct Place {
    int32_t arena;
    int64_t offset;
  };
  /// Of bytes of the last room; nothing: they are elsewhere.
  std::optional<Place> place_of(std::span<const std::byte> bytes) const;
  /// A message of the last room goes to that rank, whose number for it is higher than for all
  /// before.
  void sent(int32_t to, uint32_t number);
  /// That rank has taken its messages up to that number.
  void taken(int32_t by, uint32_t number);
  /// The last number that is known to be.
  uint32_t taken(int32_t by) const { return taken_[by]; }

 private:
  struct Room {
    int64_t begin, end;
    std::vector<std::pair<int32_t, uint32_t>> sent;  // by receiver the last number
  };
  struct Arena {
    std::byte* data;
    int64_t bytes;
    std::vector<Room> rooms;  // by their begins
  };
  bool is_free(const Room& room) const;

  static constexpr std::pair<size_t, size_t> kNone{SIZE_MAX, 0};

  std::vector<Arena> arenas_;
  std::vector<uint32_t> taken_;             // by receiver
  std::pair<size_t, size_t> last_ = kNone;  // arena and number of the last room
};

}  // namespace verbatim::dist
