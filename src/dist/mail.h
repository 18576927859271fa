// Messages between ranks, to the proof.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dist/held_sums.h"
#include "verbatim/dist.h"

namespace verbatim::dist {

struct Message {
  const Send* send;
  int32_t section;  // of the sender
  std::vector<Sums> sums;

  /// Whether it has these boxes and sums. Calls f(block, Sums) for its sums, part by part, as far
  /// as they are so.
  template <class F>
  bool is(const Boxes& boxes, const CarriedSums& carried, F&& f) const {
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

/// Between two ranks messages are taken in the sequence in which they were sent.
class Mail {
 public:
  explicit Mail(size_t world) : under_way_(world) {}

  void send(int32_t from, Message message) {
    lines_[{from, message.send->to}].push(std::move(message));
    ++under_way_[static_cast<size_t>(from)];
  }
  /// The next to be taken; null: none is there.
  const Message* next(int32_t from, int32_t to) const {
    const auto line = lines_.find({from, to});
    return line == lines_.end() || line->second.empty() ? nullptr : &line->second.front();
  }
  /// The next, which is there.
  Message take(int32_t from, int32_t to) {
    Line& line = lines_.at({from, to});
    Message message = std::move(line.front());
    line.pop();
    --under_way_[static_cast<size_t>(from)];
    return message;
  }
  /// Whether all that a rank has sent is taken.
  bool is_taken(int32_t from) const { return under_way_[static_cast<size_t>(from)] == 0; }

 private:
  struct Hash {
    size_t operator()(const std::pair<int32_t, int32_t>& ranks) const {
      return static_cast<size_t>(ranks.second) * 4096 + static_cast<size_t>(ranks.first);
    }
  };
  using Line = std::queue<Message, std::list<Message>>;  // many are empty, and take no memory
  std::unordered_map<std::pair<int32_t, int32_t>, Line, Hash> lines_;  // by sender and receiver
  std::vector<int64_t> under_way_;                                     // messages, by sender
};

}  // namespace verbatim::dist
