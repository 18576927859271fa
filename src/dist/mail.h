// Messages between ranks, to the proof.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dist/held_sums.h"
#include "verbatim/dist.h"

namespace verbatim::dist {

/// How many messages one rank has sent to another, and how many of them are taken.
struct Line {
  int64_t sent = 0, taken = 0;
};

struct Message {
  const Send* send;
  int32_t section;  // of the sender
  std::vector<Sums> sums;
  Line* line = nullptr;  // of the two
  int64_t place = 0;     // among all of these

  /// Whether all that was sent before it is taken.
  bool is_next() const { return line->taken == place; }

  /// Whether it has these boxes and sums. Calls f(block, Sums) for its sums, part by part, as far
  /// as they are so.
  template <class F>
  bool is(const Boxes& boxes, const std::vector<CarriedSum>& carried, F&& f) const {
    if (send->boxes != boxes) return false;
    auto left = sums.begin();
    int32_t used = 0;  // of these
    for (const CarriedSum& sum : carried) {
      if (sum.step != 1 && sum.step != -1) return false;
      for (int32_t i = 0; i < sum.count;) {
        if (left == sums.end()) return false;
        const Sums part = left->part(used, std::min(left->count - used, sum.count - i));
        if (!part.are_of(sum.head, sum.kv_tile + i * sum.step, sum.step)) return false;
        f(sum.block + i, part);
        i += part.count;
        used += part.count;
        if (used == left->count) ++left, used = 0;
      }
    }
    return left == sums.end();
  }
};

class Mail {
 public:
  explicit Mail(size_t world) : boxes_(world), under_way_(world) {}
  /// False: a message of that number is on its way between the two.
  bool send(int32_t from, Message message) {
    const Send& send = *message.send;
    message.line = &lines_[{from, send.to}];
    message.place = message.line->sent++;
    if (!box(send.to).try_emplace({from, send.message}, std::move(message)).second) return false;
    ++count(from);
    return true;
  }
  /// Null: it is not there.
  const Message* find(int32_t to, int32_t from, int64_t message) {
    const auto found = box(to).find({from, message});
    return found == box(to).end() ? nullptr : &found->second;
  }
  /// One that was found.
  Message take(int32_t to, int32_t from, int64_t message) {
    Message taken = std::move(box(to).extract({from, message}).mapped());
    ++taken.line->taken;
    --count(from);
    return taken;
  }
  /// Whether all that a rank has sent is taken.
  bool is_taken(int32_t from) { return count(from) == 0; }
  /// A message to a rank, by sender and number; null: none.
  const std::pair<int32_t, int64_t>* first(int32_t to) {
    return box(to).empty() ? nullptr : &box(to).begin()->first;
  }

 private:
  using Key = std::pair<int32_t, int64_t>;  // sender, and number or receiver
  struct Hash {
    size_t operator()(const Key& key) const {
      return static_cast<size_t>(key.second) * 4096 + static_cast<size_t>(key.first);
    }
  };
  using Box = std::unordered_map<Key, Message, Hash>;
  Box& box(int32_t to) { return boxes_[static_cast<size_t>(to)]; }
  int64_t& count(int32_t from) { return under_way_[static_cast<size_t>(from)]; }

  std::unordered_map<Key, Line, Hash> lines_;  // by sender and receiver; none moves
  std::vector<Box> boxes_;                     // by receiver
  std::vector<int64_t> under_way_;             // messages, by sender
};

}  // namespace verbatim::dist
