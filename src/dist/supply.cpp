#include "dist/supply.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "dist/sizes.h"

namespace verbatim::dist {
namespace {

constexpr std::array kKv{Operand::k, Operand::v};

}  // namespace

Supply::Supply(DistPlan& plan, const Grid& grid, Steps& steps, DealtHead dealt, int32_t together)
    : plan_(plan),
      grid_(grid),
      steps_(steps),
      dealt_(std::move(dealt)),
      hops_(hops(grid)),
      together_(together) {
  lay_out();
  find_heads();
  for (const auto& entries : heads_)
    for (const Interval& own : entries)
      rounds_ = std::max(rounds_, static_cast<int32_t>(own.end - own.begin));
}

void Supply::find_heads() {
  const int64_t batch = plan_.whole.problem.batch, kv_heads = plan_.whole.problem.kv_heads;
  for (int32_t r = 0; r < world(); ++r) {
    auto& own = heads_.emplace_back(static_cast<size_t>(batch), rank(r).kv_heads);
    if (grid_.route != Route::needed) continue;
    for (int64_t b = 0; b < batch; ++b) {
      Interval visited{0, 0};
      for (int64_t h = 0; h < kv_heads; ++h)
        if (dealt_(static_cast<int32_t>(b * kv_heads + h)).visits[static_cast<size_t>(r)])
          visited = {visited.end == 0 ? h : visited.begin, h + 1};
      own[static_cast<size_t>(b)] = visited;
    }
  }
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
    const std::vector<HeldRows>& seen = dealt_(head).kv;
    if (!known.insert(&seen).second) continue;
    for (size_t r = 0; r < kv.size(); ++r) add(kv[r], seen[r]);
  }
  for (int32_t r = 0; r < world(); ++r) {
    if (grid_.route != Route::needed)
      for (const HeldRows& group : group_kv_) add(kv[r], group);
    rank(r).kv = HeldRows(std::move(kv[r]));
  }
}

int32_t Supply::head_at(int32_t r, int32_t round) const {
  const Interval& own = heads_[r][round / rounds_];
  const int64_t head = own.begin + round % rounds_;
  if (head >= own.end) return -1;
  return static_cast<int32_t>(round / rounds_ * plan_.whole.problem.kv_heads + head);
}

Interval Supply::rounds_of(int32_t turn) const {
  const int64_t all = plan_.whole.problem.batch * rounds_;
  if (together_ == kAll) return {turn == 0 ? 0 : all, all};
  const int64_t turns = (rounds_ + together_ - 1) / together_;  // of a batch entry
  const int64_t begin = turn / turns * rounds_ + turn % turns * together_;
  return {std::min(begin, all), std::min({begin + together_, (turn / turns + 1) * rounds_, all})};
}

bool Supply::next() {
  const Interval rounds = rounds_of(++turn_);
  if (brought_ < turn_) bring(rounds, Steps::Place::here);
  return rounds.begin < rounds.end;
}

void Supply::expect_next() {
  brought_ = turn_ + 1;
  bring(rounds_of(brought_), Steps::Place::behind);
}

std::vector<int32_t> Supply::heads_of(int32_t r) const { return heads_at(r, rounds_of(turn_)); }

std::vector<int32_t> Supply::heads_at(int32_t r, Interval rounds) const {
  std::vector<int32_t> heads;
  for (int64_t round = rounds.begin; round < rounds.end; ++round)
    if (const int32_t head = head_at(r, static_cast<int32_t>(round)); head >= 0)
      heads.push_back(head);
  return heads;
}

/// Heads that travel together: of one batch entry, as many as make a message that is worth it.
int32_t Supply::rounds_of_message() const {
  int64_t rows = 1;
  for (const HeldRows& group : group_kv_) rows = std::max(rows, group.size());
  int64_t bytes = 0;  // of a head
  for (const Operand operand : kKv) bytes += rows * row_bytes(plan_.whole.problem, operand);
  return static_cast<int32_t>(std::max<int64_t>(kWorthAMessage / bytes, 1));
}

void Supply::bring(Interval all, Steps::Place place) {
  std::vector<int32_t> slots(plan_.ranks.size());  // taken, by rank
  for (Interval rounds{all.begin, all.begin}; rounds.begin < all.end; rounds.begin = rounds.end) {
    rounds.end = std::min(
        {rounds.begin + rounds_of_message(), all.end, (rounds.begin / rounds_ + 1) * rounds_});
    for (int32_t r = 0; r < world(); ++r)
      for (const int32_t head : heads_at(r, rounds)) hold(r, head, slots[r]++, place);
    if (grid_.route == Route::needed) {
      straight(rounds, place);
    } else {
      inside_groups(rounds, place);
      from_group_to_group(rounds, place);
    }
  }
}

void Supply::hold(int32_t r, int32_t head, int32_t slot, Steps::Place place) {
  rank(r).kv_slots = std::max(rank(r).kv_slots, slot + 1);
  steps_.add(r, Hold{head, slot}, place);
}

void Supply::move_first(int32_t from, int32_t to, const Boxes& boxes, Steps::Place place) {
  steps_.move(from, Space::home, to, Space::work, boxes, 0,
              from == to ? place : Steps::Place::here);
}

void Supply::take_first(Steps::Place place) {
  if (place == Steps::Place::here) return steps_.take();
  steps_.expect();
}

Interval Supply::kv_head(int32_t head) const {
  const int64_t h = head % plan_.whole.problem.kv_heads;
  return {h, h + 1};
}

void Supply::inside_groups(Interval rounds, Steps::Place place) {
  std::vector<HeldRows> home;
  for (const RankPlan& own : plan_.ranks)
    home.push_back(of_entry(own.home_kv, rounds.begin / rounds_));
  for (int32_t step = 0; step < grid_.inner; ++step) {
    for (int32_t from = 0; from < world(); ++from) {
      const int32_t to =
          grid_.rank(grid_.outer_of(from), (grid_.inner_of(from) + step) % grid_.inner);
      std::vector<Box> boxes;
      for (const int32_t head : heads_at(to, rounds)) append(boxes, kKv, home[from], kv_head(head));
      move_first(from, to, std::move(boxes), place);
    }
  }
  take_first(place);
}

const std::vector<HeldRows>& Supply::needed(int32_t head) {
  const std::vector<HeldRows>& seen = dealt_(head).kv;
  const int64_t batch = head / plan_.whole.problem.kv_heads;
  const auto [at, fresh] = needed_.try_emplace({&seen, batch});
  if (!fresh) return at->second;
  for (int32_t from = 0; from < world(); ++from) {
    const HeldRows home = of_entry(rank(from).home_kv, batch);
    for (const HeldRows& rows : seen) at->second.push_back(home.intersect(rows));
  }
  return at->second;
}

void Supply::straight(Interval rounds, Steps::Place place) {
  struct Own {
    const std::vector<HeldRows>& needed;
    Interval head;
  };
  std::vector<std::vector<Own>> own(plan_.ranks.size());  // by rank that needs it
  for (int32_t r = 0; r < world(); ++r)
    for (const int32_t head : heads_at(r, rounds)) own[r].push_back({needed(head), kv_head(head)});

  std::vector<Boxes> sent(plan_.ranks.size());  // last, by rank: most send the same to all
  std::vector<Box> boxes;
  for (int32_t step = 0; step < world(); ++step)
    for (int32_t from = 0; from < world(); ++from) {
      const int32_t to = (from + step) % world();
      boxes.clear();
      for (const auto& [rows, head] : own[to])
        append(boxes, kKv, rows[static_cast<size_t>(from * world() + to)], head);
      if (!std::ranges::equal(sent[from], boxes)) sent[from] = boxes;
      move_first(from, to, sent[from], place);
    }
  take_first(place);
}

void Supply::from_group_to_group(Interval rounds, Steps::Place place) {
  std::vector<std::vector<Boxes>> whole(static_cast<size_t>(grid_.inner));  // by outer index
  for (int32_t i = 0; i < grid_.inner; ++i)
    for (const HeldRows& rows : group_kv_) {
      std::vector<Box> boxes;
      for (const int32_t head : heads_at(i, rounds))
        append(boxes, kKv, of_entry(rows, rounds.begin / rounds_), kv_head(head));
      whole[i].emplace_back(std::move(boxes));
    }
  for (size_t n = 0; n < hops_.size(); ++n) {
    const Hop& hop = hops_[n];
    const bool first = grid_.inner == 1 && hop.held == hop.from;  // as it lies at home
    for (int32_t i = 0; i < grid_.inner; ++i) {
      const int32_t from = grid_.rank(hop.from, i), to = grid_.rank(hop.to, i);
      if (first) {
        move_first(from, to, whole[i][hop.held], place);
      } else {
        steps_.move(from, Space::work, to, Space::work, whole[i][hop.held], 0, place);
      }
    }
    // What goes round is sent on when it came; each group has sent once.
    const bool all_sent = grid_.route != Route::gather && (n + 1) % grid_.outer == 0;
    if (!all_sent && n + 1 < hops_.size()) continue;
    if (first) {
      take_first(place);
    } else {
      steps_.take(place);
    }
  }
}

}  // namespace verbatim::dist
