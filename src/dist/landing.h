// Messages that a rank expects, to the proof.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "dist/mail.h"

namespace verbatim::dist {

/// What was taken from the mail and not received yet.
class Landing {
 public:
  struct Landed {
    Message message;
    Interval bytes;  // of the landing memory; none: it lands in its blocks
  };
  /// Null: it is not expected.
  const Landed* find(int32_t from, int64_t message) const {
    const auto found = landed_.find({from, message});
    return found == landed_.end() ? nullptr : &found->second;
  }
  bool is_free(const Interval& bytes) const {
    return std::ranges::none_of(landed_, [&](const auto& other) {
      const Interval& taken = other.second.bytes;
      return taken.begin < bytes.end && bytes.begin < taken.end;
    });
  }
  void put(int32_t from, Message message, Interval bytes) {
    const int64_t number = message.send->message;
    landed_.try_emplace({from, number}, Landed{std::move(message), bytes});
  }
  /// One that was found.
  Message take(int32_t from, int64_t message) {
    return std::move(landed_.extract({from, message}).mapped().message);
  }

 private:
  std::map<std::pair<int32_t, int64_t>, Landed> landed_;  // by sender and number
};

}  // namespace verbatim::dist
