// How many addends rows get, and the sums of their numbers, in time of runs and not of visits.
#pragma once

#include <cstdint>
#include <vector>

#include "dist/facts.h"

namespace verbatim::dist {

class RowSums {
 public:
  /// Visits [begin, end) of a run, by query heads [q_head, q_head + heads), and of all `chains`
  /// that are alike from its own on.
  void add(const Run& run, int32_t q_head, int32_t heads, int32_t begin, int32_t end,
           int32_t chains = 1);
  /// One addend to a row of one query head.
  void add(int32_t q_head, int32_t row, int32_t number);
  /// Of all rows of `group` query heads that get any, by query head, ascending.
  std::vector<PartFacts::RowPart> take(int32_t group) const;

 private:
  /// `count` addends of each of the rows [first, last): `number` in all of the first, and `step`
  /// more every so many rows.
  struct Addends {
    int32_t first, last, count;
    int64_t number, step;
  };
  /// What some query heads get alike, as differences from each row to the next, of steps from each
  /// to that `every` rows on.
  struct Heads {
    struct Differences {
      int32_t count = 0;
      int64_t step = 0, number = 0;
    };
    int32_t q_head, heads, every;
    int32_t first = 0;  // row of the first difference
    std::vector<Differences> rows{};

    void cover(int32_t from, int32_t to);  // rows [from, to]
    void add(const Addends& addends);
    bool has(int32_t head) const { return q_head <= head && head < q_head + heads; }
  };
  Heads& heads_of(int32_t q_head, int32_t heads, int32_t every);

  std::vector<Heads> all_;
  size_t last_ = 0;  // used
};

}  // namespace verbatim::dist
