#include "tl/copies.h"

#include <algorithm>
#include <utility>

namespace verbatim::tl {

Copies::Copies(const Kernel& kernel) : kernel_(kernel) {
  for (const Step& step : kernel.visit) {
    if (step.kind == Step::Kind::wait) barriers_.push_back(place_of(step));
    if (step.kind != Step::Kind::load || !kernel.variables[step.out].staged) continue;
    Tile tile{step.out, 0, 0};
    for (const Step& other : kernel.visit) {
      if (other.kind == Step::Kind::wait && other.a == step.out) tile.wait = place_of(other);
      if (other.kind == Step::Kind::compute && (other.a == step.out || other.b == step.out))
        tile.last_read = place_of(other);
    }
    tiles_.push_back(tile);
  }
  starts_ = std::ranges::any_of(tiles_, [&](const Tile& tile) {
    return std::ranges::any_of(at(tile.wait), [&](const Refill& refill) {
      return refill.tile == tile.variable && refill.ahead == 0;  // behind what waits for it
    });
  });
  if (starts_) barriers_.insert(barriers_.begin(), 0);
  // As if the loop had begun earlier, with visits that are not there.
  for (int64_t visit = -kernel.stages; visit < 0; ++visit)
    for (const size_t barrier : barriers_)
      for (const Refill& refill : at(barrier))
        if (visit + refill.ahead >= 0) first_.push_back({refill.tile, visit + refill.ahead});
}

size_t Copies::place_of(const Step& step) const {
  const auto found = std::ranges::find(kernel_.visit, &step, [](const Step& s) { return &s; });
  return static_cast<size_t>(found - kernel_.visit.begin()) + 1;
}

std::vector<Copies::Refill> Copies::at(size_t barrier) const {
  std::vector<Refill> refills;
  if (barriers_.empty()) return refills;  // nothing that is copied is read
  for (const Tile& tile : tiles_) {
    // The first barrier behind the last reader, in this visit or the next.
    const auto behind = std::ranges::upper_bound(barriers_, tile.last_read);
    if (behind == barriers_.end() ? barrier == barriers_.front() : barrier == *behind)
      refills.push_back(
          {tile.variable, behind == barriers_.end() ? kernel_.stages - 1 : kernel_.stages});
  }
  return refills;
}

std::vector<Copies::Refill> Copies::behind(const Step& wait) const {
  const size_t place = place_of(wait);
  return place > kernel_.visit.size() ? std::vector<Refill>{} : at(place);
}

int64_t Copies::pending(const Step& wait) const {
  std::vector<std::pair<int, int64_t>> started;  // tile and visit; of tiles in front of the loop 0
  const auto since = [&](int tile, int64_t visit) {
    const auto last = std::find(started.rbegin(), started.rend(), std::pair(tile, visit));
    return static_cast<int64_t>(last - started.rbegin());
  };
  for (const Step& step : kernel_.before)
    if (step.kind == Step::Kind::load) started.emplace_back(step.out, 0);
  for (const Refill& refill : first_) started.emplace_back(refill.tile, refill.ahead);
  for (const Step& step : kernel_.before)
    if (&step == &wait) return since(wait.a, 0);
  const size_t place = place_of(wait);
  for (int64_t visit = 0;; ++visit)
    for (const size_t barrier : barriers_) {
      if (visit > kernel_.stages && barrier == place) return since(wait.a, visit);
      for (const Refill& refill : at(barrier))
        started.emplace_back(refill.tile, visit + refill.ahead);
    }
}

}  // namespace verbatim::tl
