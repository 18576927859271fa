// What caches keep, up to a number and to what it may take of the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>

namespace verbatim {

/// Of one cache. A model whose 32 layers have block masks of their own at 16K finds all its plans
/// again in every step; masks that change take no more than this.
inline constexpr int64_t kMostKeptBytes = int64_t{1} << 30;

/// Entries with their `bytes`, by when they were last used. Callers lock.
template <class Entry>
class LastUsed {
 public:
  /// The entry that `is_it` holds for, now the last used; null: none.
  template <class F>
  Entry* find(F&& is_it) {
    const auto found = std::ranges::find_if(entries_, is_it);
    if (found == entries_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found);
    return &entries_.front();
  }
  Entry& add(Entry entry) {
    entries_.push_front(std::move(entry));
    return entries_.front();
  }
  /// Of the entries that `may_go` holds for keeps the last used, `most` of them and kMostKeptBytes,
  /// but one of any size.
  template <class F>
  void trim(size_t most, F&& may_go) {
    size_t count = 0;
    int64_t bytes = 0;
    entries_.remove_if([&](const Entry& entry) {
      if (!may_go(entry)) return false;
      bytes += entry.bytes;
      return ++count > most || (count > 1 && bytes > kMostKeptBytes);
    });
  }

 private:
  std::list<Entry> entries_;  // last used first
};

}  // namespace verbatim
