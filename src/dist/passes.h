// The way of a chain as passes: what it visits of one query head, in one direction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "plan/alike.h"
#include "plan/whole_chains.h"
#include "verbatim/dist.h"

namespace verbatim::dist {

/// The whole chains of a backward and their rows, ascending; each by itself where some are cut.
/// `issued`: the rows of the order.
std::pair<WholeChains, ChainRows> by_chain(const HeadOrder& order, ChainRows issued);

/// Behind the last visit of any chain.
inline constexpr Place kEnd{INT32_MAX, 0};

/// Counts the passes of a chain, whose runs come one after another.
class Passes {
 public:
  /// The pass of the next run.
  int32_t next(const Run& run) {
    const bool up = run.step > 0;
    const bool goes_on = number_ >= 0 && run.q_head == q_head_ && up == up_ &&
                         (up ? run.first > last_ : run.first < last_);
    if (!goes_on) ++number_;
    q_head_ = run.q_head;
    up_ = up;
    last_ = run.tile(run.count - 1);
    return number_;
  }

 private:
  int32_t number_ = -1, q_head_ = 0, last_ = 0;
  bool up_ = true;
};

/// How many visits of `run`, in pass `pass` of its chain, come before `place`.
inline int32_t visits_before(const Run& run, int32_t pass, const Place& place) {
  if (pass != place.pass) return pass < place.pass ? run.count : 0;
  const int32_t step = std::abs(run.step);
  const int32_t ahead = run.step > 0 ? place.tile - run.first : run.first - place.tile;
  return ahead <= 0 ? 0 : std::min((ahead + step - 1) / step, run.count);
}

}  // namespace verbatim::dist
