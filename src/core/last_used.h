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

/// Kept of any size: of 64 KV heads with 65,536 tokens in blocks of 64 both passes take 2.5 GB, and
/// one alone would be made again whenever the other is asked for.
inline constexpr size_t kOfAnySize = 2;

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
  /// but kOfAnySize whatever they take.
  template <class F>
  void trim(size_t most, F&& may_go) {
    size_t count = 0;
    int64_t bytes = 0;
    entries_.remove_if([&](const Entry& entry) {
      if (!may_go(entry)) return false;
      bytes += entry.bytes;
      return ++count > most || (count > kOfAnySize && bytes > kMostKeptBytes);
    });
  }

 private:
  std::list<Entry> entries_;  // last used first
};

}  // namespace verbatim
