#include "mask/kept.h"

#include <mutex>

#include "core/last_used.h"
#include "verbatim/error.h"

namespace verbatim::masks {
namespace {

constexpr size_t kMostWithoutOwner = 64;

struct Entry {
  std::string digest;
  Mask mask;
  int64_t owners;
  static constexpr int64_t bytes = 0;  // none is too large: a backward may ask for it again
};

class Kept {
 public:
  static Kept& instance() {
    static Kept* kept = new Kept;  // never destroyed: owners may outlive static objects
    return *kept;
  }

  /// The entry, now the last used; null: none.
  Entry* find(const std::string& digest) {
    return entries_.find([&](const Entry& entry) { return entry.digest == digest; });
  }
  Entry& add(const std::string& digest, const Mask& mask) {
    if (Entry* known = find(digest)) return *known;
    return entries_.add({digest, mask, 0});
  }
  void trim() {
    entries_.trim(kMostWithoutOwner, [](const Entry& entry) { return entry.owners == 0; });
  }

  std::mutex mutex;

 private:
  LastUsed<Entry> entries_;
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
