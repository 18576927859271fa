// Where messages of one host lie, and the numbers by which their memory is free again.
#include "dist/outbox.h"

#include <gtest/gtest.h>

#include "backend/peers.h"
#include "core/random.h"

namespace verbatim::test {
namespace {

using dist::Outbox;

TEST(Counter, GoesRoundInACircle) {
  Counter counter{0xfffffffe};
  EXPECT_TRUE(counter.has_reached(0xfffffffe));
  EXPECT_FALSE(counter.has_reached(1));
  counter.value = 2;
  EXPECT_TRUE(counter.has_reached(1) && counter.has_reached(0xfffffffe));
}

TEST(Outbox, RoomsAreNeitherSharedNorLost) {
  constexpr int32_t kWorld = 3;
  Outbox outbox(kWorld);
  std::vector<std::vector<std::byte>> arenas;
  struct Sent {
    std::byte* at;
    int64_t bytes;
    int32_t to;
    uint32_t number;
  };
  std::vector<Sent> under_way;
  uint32_t sent[kWorld]{}, taken[kWorld]{};
  Random rng(5);
  for (int step = 0; step < 3000; ++step) {
    const int64_t bytes = 1 + rng.between(0, 30 << 20);
    std::byte* room = outbox.find(bytes);
    if (!room) {
      const int64_t size = outbox.next_arena(bytes);
      EXPECT_GE(size, bytes);
      outbox.add(arenas.emplace_back(size).data(), size);
      room = outbox.find(bytes);
    }
    ASSERT_NE(room, nullptr);
    for (const Sent& other : under_way)
      ASSERT_TRUE(other.at + other.bytes <= room || room + bytes <= other.at);
    const int64_t half = bytes / 2;
    for (const int64_t begin : {int64_t{0}, half}) {
      const auto to = static_cast<int32_t>(rng.between(0, kWorld - 1));
      const std::span message(room + begin, begin == 0 ? half : bytes - half);
      const auto place = outbox.place_of(message);
      ASSERT_TRUE(place && arenas[place->arena].data() + place->offset == message.data());
      outbox.sent(to, ++sent[to]);
      under_way.push_back({message.data(), std::ssize(message), to, sent[to]});
    }
    while (under_way.size() > 8) {  // a receiver takes its first
      const int32_t by = under_way[rng.between(0, std::ssize(under_way) - 1)].to;
      outbox.taken(by, ++taken[by]);
      std::erase_if(under_way, [&](const Sent& m) { return m.to == by && m.number == taken[by]; });
    }
  }
  EXPECT_LE(outbox.bytes(), int64_t{512} << 20);  // 8 messages have at most 120 MiB at once
  std::byte elsewhere{};
  EXPECT_FALSE(outbox.place_of({&elsewhere, 1}));
}

TEST(Outbox, ARoomOfWhichNothingIsSentIsFreeWithTheNext) {
  Outbox outbox(1);
  std::vector<std::byte> arena(1024);
  outbox.add(arena.data(), 1024);
  EXPECT_EQ(outbox.find(1000), outbox.find(1000));
  EXPECT_EQ(outbox.find(1025), nullptr);
}

}  // namespace
}  // namespace verbatim::test
