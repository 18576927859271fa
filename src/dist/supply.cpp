#include "dist/supply.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

#include "dist/sizes.h"

namespace verbatim::dist {
namespace {

constexpr std::array kKv{Operand::k, Operand::v};

}  // namespace

Supply::Supply(DistPlan& plan, const Grid& grid, Steps& steps, Seen seen)
    : plan_(plan),
      grid_(grid),
      steps_(steps),
      seen_by_(std::move(seen)),
      hops_(hops(grid)),
      slots_(plan.ranks.size()) {
  lay_out();
  find_sequence();
}

void Supply::lay_out() {
  const auto add = [](std::vector<RowRange>& all, const HeldRows& rows) {
    all.insert(all.end(), rows.ranges().begin(), rows.ranges().end());
  };
  std::vector<std::vector<RowRange>> groups(static_cast<size_t>(grid_.outer));
  for (int32_t r = 0; r < world(); ++r) add(groups[grid_.outer_of(r)], rank(r).home_kv);
  for (auto& rows : groups) group_kv_.emplace_back(std::move(rows));

  std::vector<std::vector<RowRange>> kv(plan_.ranks.size());
  std::set<const std::vector<HeldRows>*> known;
  for (int32_t head = 0; head < heads(); ++head) {
    const std::vector<HeldRows>& seen = seen_by_(head);
    if (!known.insert(&seen).second) continue;
    for (size_t r = 0; r < kv.size(); ++r) add(kv[r], seen[r]);
  }
  for (int32_t r = 0; r < world(); ++r) {
    for (int32_t o = 0; o < grid_.outer; ++o)
      if (o == grid_.outer_of(r) || grid_.route != Route::needed) add(kv[r], group_kv_[o]);
    rank(r).kv = HeldRows(std::move(kv[r]));
  }
}

int32_t Supply::head_at(int32_t r, int32_t round) const {
  const Interval& own = rank(r).kv_heads;
  const int64_t head = own.begin + round % rounds_;
  if (head >= own.end) return -1;
  return static_cast<int32_t>(round / rounds_ * plan_.whole.problem.kv_heads + head);
}

void Supply::find_sequence() {
  for (const RankPlan& own : plan_.ranks)
    rounds_ = std::max(rounds_, static_cast<int32_t>(own.kv_heads.end - own.kv_heads.begin));
  const auto all = static_cast<int32_t>(plan_.whole.problem.batch) * rounds_;
  round_of_.resize(heads());
  for (int32_t round = 0; round < all; ++round)
    for (int32_t i = 0; i < grid_.inner; ++i)
      if (const int32_t head = head_at(i, round); head >= 0) round_of_[head] = round;
  sequence_.resize(round_of_.size());
  std::iota(sequence_.begin(), sequence_.end(), 0);
  std::ranges::stable_sort(sequence_, {}, [this](int32_t head) { return round_of_[head]; });
}

void Supply::bring(int32_t head) {
  const auto all = static_cast<int32_t>(plan_.whole.problem.batch) * rounds_;
  while (next_ < all && next_ <= round_of_[head] + 1) bring_round(next_++);
}

void Supply::bring_round(int32_t round) {
  for (int32_t r = 0; r < world(); ++r)
    if (const int32_t head = head_at(r, round); head >= 0) hold(r, head);
  inside_groups(round);
  from_group_to_group(round);
}

void Supply::hold(int32_t r, int32_t head) {
  std::vector<int32_t>& slots = slots_[r];
  auto slot = std::ranges::find(slots, -1);
  if (slot == slots.end()) slot = slots.insert(slot, -1);
  *slot = head;
  rank(r).kv_slots = static_cast<int32_t>(slots.size());
  steps_.add(r, Hold{head, static_cast<int32_t>(slot - slots.begin())});
}

void Supply::release(int32_t rank, int32_t head) {
  std::vector<int32_t>& slots = slots_[rank];
  std::ranges::replace(slots, head, -1);
}

Interval Supply::kv_head(int32_t head) const {
  const int64_t h = head % plan_.whole.problem.kv_heads;
  return {h, h + 1};
}

void Supply::inside_groups(int32_t round) {
  const int64_t batch = round / rounds_;
  std::vector<HeldRows> home;
  for (const RankPlan& own : plan_.ranks) home.push_back(of_entry(own.home_kv, batch));
  for (int32_t step = 0; step < grid_.inner; ++step) {
    for (int32_t from = 0; from < world(); ++from) {
      const int32_t to =
          grid_.rank(grid_.outer_of(from), (grid_.inner_of(from) + step) % grid_.inner);
      if (const int32_t head = head_at(to, round); head >= 0)
        steps_.move(from, Space::home, to, Space::work, boxes_of(kKv, home[from], kv_head(head)));
    }
    steps_.take();
  }
}

void Supply::from_group_to_group(int32_t round) {
  if (grid_.outer == 1) return;
  const bool all = grid_.route != Route::needed;
  std::vector<HeldRows> held;  // by outer index
  for (const HeldRows& rows : group_kv_) held.push_back(of_entry(rows, round / rounds_));
  std::vector<std::vector<Boxes>> whole(static_cast<size_t>(grid_.inner));  // by outer index
  for (int32_t i = 0; all && i < grid_.inner; ++i)
    if (const int32_t head = head_at(i, round); head >= 0)
      for (const HeldRows& rows : held) whole[i].emplace_back(boxes_of(kKv, rows, kv_head(head)));
  if (!all) {  // then no heads are shared
    const std::vector<HeldRows>& seen = seen_by_(head_at(0, round));
    if (std::exchange(seen_of_, &seen) != &seen) {
      seen_.clear();
      for (const Hop& hop : hops_) seen_.push_back(held[hop.held].intersect(seen[hop.to]));
    }
  }
  for (size_t n = 0; n < hops_.size(); ++n) {
    const Hop& hop = hops_[n];
    for (int32_t i = 0; i < grid_.inner; ++i) {
      const int32_t head = head_at(i, round);
      if (head < 0) continue;
      steps_.move(grid_.rank(hop.from, i), Space::work, grid_.rank(hop.to, i), Space::work,
                  all ? whole[i][hop.held] : boxes_of(kKv, seen_[n], kv_head(head)));
    }
    if ((n + 1) % static_cast<size_t>(grid_.outer) == 0) steps_.take();  // each group has sent once
  }
}

}  // namespace verbatim::dist
