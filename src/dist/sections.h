// What of a distributed plan repeats: sections, which differ in the numbers of heads, ranks and
// messages alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// Steps of sections: fewer are gone through before threads wake.
inline constexpr size_t kStepsWorthThreads = 4096;

/// Makes of a step of the section that `section` repeats that of `section`.
void rename(Step& step, const Section& section);

/// The sections of a plan, to the proof.
class Sections {
 public:
  /// Throws Error(invalid_plan) where they are not of steps of the plan, not apart from each other,
  /// or one does not repeat another as it says, in blocks that its ranks have.
  explicit Sections(const DistPlan& plan);

  /// A rank comes to a step, behind those that it came to before. Whether that is in another
  /// section than it was in.
  bool enter(int32_t rank, size_t step);
  /// The section that a rank is in; -1: none.
  int32_t of(int32_t rank) const { return at_[static_cast<size_t>(rank)].section; }
  /// Whether that is one that repeats another.
  bool repeats(int32_t rank) const {
    return of(rank) >= 0 && repeats_[static_cast<size_t>(of(rank))];
  }

 private:
  struct Part {
    size_t begin, end;
    int32_t section;
  };
  struct At {
    size_t next = 0;  // the part that ends behind the step
    int32_t section = -1;
  };
  std::vector<std::vector<Part>> parts_;  // by rank, ascending
  std::vector<At> at_;                    // by rank
  std::vector<bool> repeats_;             // by section
};

}  // namespace verbatim::dist
