// Messages between ranks, to the proof.
#pragma once

#include <cstdint>
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
};

class Mail {
 public:
  explicit Mail(size_t world) : boxes_(world), under_way_(world) {}
  /// False: a message of that number is on its way between the two.
  bool send(int32_t from, Message message) {
    const Send& send = *message.send;
    if (!box(send.to).try_emplace({from, send.message}, std::move(message)).second) return false;
    ++count(from);
    return true;
  }
  /// Null: it is not there.
  const Message* find(int32_t to, const Receive& receive) {
    const auto found = box(to).find({receive.from, receive.message});
    return found == box(to).end() ? nullptr : &found->second;
  }
  /// One that was found.
  void take(int32_t to, const Receive& receive) {
    box(to).erase({receive.from, receive.message});
    --count(receive.from);
  }
  /// Whether all that a rank has sent is taken.
  bool is_taken(int32_t from) { return count(from) == 0; }
  /// A message to a rank, by sender and number; null: none.
  const std::pair<int32_t, int64_t>* first(int32_t to) {
    return box(to).empty() ? nullptr : &box(to).begin()->first;
  }

 private:
  using Key = std::pair<int32_t, int64_t>;  // sender and number
  struct Hash {
    size_t operator()(const Key& key) const {
      return static_cast<size_t>(key.second) * 4096 + static_cast<size_t>(key.first);
    }
  };
  using Box = std::unordered_map<Key, Message, Hash>;
  Box& box(int32_t to) { return boxes_[static_cast<size_t>(to)]; }
  int64_t& count(int32_t from) { return under_way_[static_cast<size_t>(from)]; }

  std::vector<Box> boxes_;          // by receiver
  std::vector<int64_t> under_way_;  // messages, by sender
};

}  // namespace verbatim::dist
