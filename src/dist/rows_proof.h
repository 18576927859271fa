// Where the proof of a distributed plan is, and which rows are there in whose memory.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dist/head_boxes.h"
#include "dist/holdings.h"
#include "dist/sizes.h"
#include "verbatim/dist.h"
#include "verbatim/error.h"

namespace verbatim::dist {

class RowsProof {
 protected:
  /// Inputs are in the shards, and zeros in the dQ of rows that no key is visible to.
  explicit RowsProof(const DistPlan& plan)
      : plan_(plan), whole_(plan.whole), at_(plan.ranks.size()), cuts_(plan) {
    const std::vector<HeldRows> zeros = rows_without_keys(plan);
    for (r_ = 0; r_ < world(); ++r_) {
      memory_.emplace_back(plan_, rank(r_), cuts_.q, cuts_.kv);
      begin(zeros);
    }
  }

  int32_t world() const { return static_cast<int32_t>(plan_.ranks.size()); }
  const RankPlan& rank(int32_t r) const { return plan_.ranks[static_cast<size_t>(r)]; }

  /// Throws Error(invalid_plan) naming the rank and step that it is at.
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::invalid_plan, "dist.verify",
                fmt::format("rank {}, step {}: {}", r_,
                            listed_steps(rank(r_), at_[static_cast<size_t>(r_)]), what));
  }
  template <class... Args>
  void require(bool holds, fmt::format_string<Args...> text, Args&&... args) const {
    if (!holds) fail(fmt::format(text, std::forward<Args>(args)...));
  }

  // Of the rank that it is at.
  Holdings& memory() { return memory_[static_cast<size_t>(r_)]; }
  void read(Space space, const Box& box, int32_t room = 0) {
    read(space, box, cuts_.find(box), room);
  }
  void write(Space space, const Box& box, int32_t room = 0) {
    write(space, box, cuts_.find(box), room);
  }
  void read(Space space, const Boxes& boxes, int32_t room) {
    auto pieces = cuts_.find(boxes).begin();
    for (const Box& box : boxes) read(space, box, *pieces++, room);
  }
  void write(Space space, const Boxes& boxes, int32_t room) {
    auto pieces = cuts_.find(boxes).begin();
    for (const Box& box : boxes) write(space, box, *pieces++, room);
  }

  /// All results are in the shards.
  void check_results() {
    for (r_ = 0; r_ < world(); ++r_)
      for (int o = 0; o < kOperands; ++o) {
        const auto operand = static_cast<Operand>(o);
        if (!is_output(whole_.pass, operand)) continue;
        for (const RowRange& range : memory().rows_at_home(operand).ranges())
          read(Space::home, {operand, range, memory().heads_at_home(operand)});
      }
  }

  const DistPlan& plan_;
  const Plan& whole_;
  std::vector<size_t> at_;  // steps, by rank
  int32_t r_ = 0;

 private:
  void begin(const std::vector<HeldRows>& zeros) {
    for (int o = 0; o < kOperands; ++o) {
      const auto operand = static_cast<Operand>(o);
      if (!is_input(whole_.pass, operand)) continue;
      for (const RowRange& range : memory().rows_at_home(operand).ranges())
        write(Space::home, {operand, range, memory().heads_at_home(operand)});
    }
    for (size_t head = 0; head < zeros.size(); ++head) {
      const HeldRows own = rank(r_).home_q.intersect(zeros[head]);
      for (const RowRange& range : own.ranges())
        write(Space::home, {Operand::dq, range, group_heads(whole_, static_cast<int32_t>(head))});
    }
  }

  void read(Space space, const Box& box, Interval pieces, int32_t room) {
    if (const char* wrong = memory().read(space, box, pieces, room)) fail_rows(box, wrong);
  }
  void write(Space space, const Box& box, Interval pieces, int32_t room) {
    if (const char* wrong = memory().write(space, box, pieces, room)) fail_rows(box, wrong);
  }
  [[noreturn]] void fail_rows(const Box& box, const char* what) const {
    fail(fmt::format("rows {} to {} of {} are {}", box.range.rows.begin, box.range.rows.end,
                     to_string(box.operand), what));
  }

  BoxCuts cuts_;
  std::vector<Holdings> memory_;  // by rank
};

}  // namespace verbatim::dist
