#include "tl/copies.h"

#include <algorithm>
#include <utility>

namespace verbatim::tl {

Copies::Copies(const Kernel& kernel) : kernel_(kernel) {
  const std::vector<Step>& visit = kernel.visit;
  const auto position = [&](const Step& step) { return static_cast<size_t>(&step - visit.data()); };
  for (const Step& step : visit) {
    if (step.kind == Step::Kind::wait) waits_.push_back(position(step));
    if (step.kind != Step::Kind::load || !kernel.variables[step.out].staged) continue;
    Tile tile{step.out, 0, 0};
    for (const Step& other : visit) {
      if (other.kind == Step::Kind::wait && other.a == step.out) tile.wait = position(other);
      if (other.kind == Step::Kind::compute && (other.a == step.out || other.b == step.out))
        tile.last_read = position(other);
    }
    tiles_.push_back(tile);
  }
  // As if the loop had begun earlier, with visits that are not there.
  for (int64_t visit_number = -kernel.stages; visit_number < 0; ++visit_number)
    for (const size_t wait : waits_)
      for (const Refill& refill : at(wait))
        if (visit_number + refill.ahead >= 0)
          first_.push_back({refill.tile, visit_number + refill.ahead});
}

std::vector<Copies::Refill> Copies::at(size_t wait) const {
  std::vector<Refill> refills;
  if (waits_.empty()) return refills;  // nothing that is copied is read
  for (const Tile& tile : tiles_) {
    // The first Wait behind the last reader, in this visit or the next.
    const auto behind = std::ranges::upper_bound(waits_, tile.last_read);
    if (behind == waits_.end() ? wait == waits_.front() : wait == *behind)
      refills.push_back(
          {tile.variable, behind == waits_.end() ? kernel_.stages - 1 : kernel_.stages});
  }
  return refills;
}

std::vector<Copies::Refill> Copies::behind(const Step& wait) const {
  const auto place = std::ranges::find(kernel_.visit, &wait, [](const Step& s) { return &s; });
  if (place == kernel_.visit.end()) return {};
  return at(static_cast<size_t>(place - kernel_.visit.begin()));
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
  for (int64_t visit = 0;; ++visit)
    for (const size_t position : waits_) {
      if (visit > kernel_.stages && &kernel_.visit[position] == &wait) return since(wait.a, visit);
      for (const Refill& refill : at(position))
        started.emplace_back(refill.tile, visit + refill.ahead);
    }
}

int Copies::without_room() const {
  for (const Tile& tile : tiles_)
    for (const Refill& refill : at(tile.wait))
      if (refill.tile == tile.variable && refill.ahead == 0) return tile.variable;
  return -1;
}

}  // namespace verbatim::tl
