#include "mask/kept.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "verbatim/error.h"

namespace verbatim::masks {
namespace {

constexpr std::ptrdiff_t kMostWithoutOwner = 64;

struct Entry {
  std::string digest;
  Mask mask;
  int64_t owners;
};

class Kept {
 public:
  static Kept& instance() {
    static Kept* kept = new Kept;  // never destroyed: owners may outlive static objects
    return *kept;
  }

  /// The entry, now the last used; null: none.
  Entry* find(const std::string& digest) {
    const auto found = std::ranges::find(entries_, digest, &Entry::digest);
    if (found == entries_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found);
    return &entries_.front();
  }
  Entry& add(const std::string& digest, const Mask& mask) {
    if (Entry* known = find(digest)) return *known;
    entries_.push_front({digest, mask, 0});
    return entries_.front();
  }
  void trim() {
    std::ptrdiff_t without = std::ranges::count(entries_, 0, &Entry::owners);
    for (auto entry = entries_.end(); without > kMostWithoutOwner;) {
      if ((--entry)->owners > 0) continue;
      entry = entries_.erase(entry);
      --without;
    }
  }

  std::mutex mutex;

 private:
  std::list<Entry> entries_;  // last used first
};

}  // namespace

std::optional<Mask> find_kept(const std::string& digest) {
  Kept& kept = Kept::instance();
  const std::lock_guard lock(kept.mutex);
  const Entry* known = kept.find(digest);
  return known ? std::optional(known->mask) : std::nullopt;
}

void keep(const std::string& digest, const Mask& mask) {
  Kept& kept = Kept::instance();
  const std::lock_guard lock(kept.mutex);
  kept.add(digest, mask);
  kept.trim();
}

void own(const std::string& digest, const Mask& mask) {
  Kept& kept = Kept::instance();
  const std::lock_guard lock(kept.mutex);
  ++kept.add(digest, mask).owners;
}

void disown(const std::string& digest) {
  Kept& kept = Kept::instance();
  const std::lock_guard lock(kept.mutex);
  Entry* known = kept.find(digest);
  if (!known || known->owners == 0)
    throw Error(ErrorCode::invalid_argument, "mask.release", "nobody holds the mask",
                {"blocks", digest, "the blocks of a mask that was not released before", ""});
  --known->owners;
  kept.trim();
}

}  // namespace verbatim::masks
