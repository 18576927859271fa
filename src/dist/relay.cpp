#include "dist/relay.h"

#include <algorithm>
#include <utility>

namespace verbatim::dist {

Relay::Relay(DistPlan& plan, const Rooms& rooms, Steps& steps, Launches& launches,
             const DealtHeads& dealt, const Starts& starts)
    : plan_(plan),
      rooms_(rooms),
      steps_(steps),
      launches_(launches),
      dealt_(dealt),
      starts_(starts),
      progress_(dealt.size()),
      at_(dealt.size()),
      blocks_(plan.ranks.size()),
      added_(plan.ranks.size()) {}

void Relay::run() {
  for (const RankPlan& rank : plan_.ranks) ends_in_place_.push_back(rank.ended == rank.kv);
  bool at_once = !overlapped();  // so no sum is left when a time is over
  for (int32_t head = 0; head < heads(); ++head) {
    const std::vector<Share>& shares = deal_of(head).shares;
    last_ = std::max(last_, starts_.of(head) + (shares.empty() ? 0 : shares.back().stage));
    at_once = at_once && deal_of(head).is_at_once();
  }
  for (int32_t time = 0, started = 0; time <= last_; ++time) {
    const int32_t before = started;
    while (started < heads() && starts_.of(started) <= time) ++started;
    if (at_once && are_apart(before, started)) {
      for (int32_t head = before; head < started; ++head) run_alone(head);
    } else {
      advance(0, started, time);
    }
  }
  for (int32_t r = 0; r < world(); ++r)
    plan_.ranks[static_cast<size_t>(r)].blocks = blocks(r).size();
}

bool Relay::are_apart(int32_t begin, int32_t end) const {
  std::vector<bool> taken(plan_.ranks.size());
  for (int32_t head = begin; head < end; ++head) {
    for (const int32_t room : dealt(head).rooms) {
      const auto rank = static_cast<size_t>(rooms_.rank_of(room));
      if (taken[rank]) return false;
      taken[rank] = true;
    }
  }
  return true;
}

void Relay::run_alone(int32_t head) {
  if (dealt(head).rooms.empty() || repeat(head)) return;  // none: there are no tiles
  Section section;
  for (const int32_t room : dealt(head).rooms) {
    const int32_t rank = rooms_.rank_of(room);
    section.parts.push_back({rank, steps_.count(rank), 0});
  }
  give_back();  // what heads before, not alone, have added
  Known own{head, static_cast<int32_t>(plan_.sections.size()), steps_.messages(), 0, {}};
  std::vector<Blocks> before;  // free, all of them: so it begins as if there were none
  for (const int32_t room : dealt(head).rooms)
    before.push_back(std::exchange(blocks(rooms_.rank_of(room)), {}));
  advance(head, head + 1, starts_.of(head));
  own.last = steps_.messages();
  for (size_t i = 0; i < before.size(); ++i) {
    const int32_t rank = rooms_.rank_of(dealt(head).rooms[i]);
    own.blocks.push_back(blocks(rank).size());
    blocks(rank) = std::move(before[i]);
    blocks(rank).reach(own.blocks.back());
    added_[static_cast<size_t>(rank)].clear();
  }
  known_.push_back(std::move(own));
  for (Section::Part& part : section.parts) part.end = steps_.count(part.rank);
  plan_.sections.push_back(std::move(section));
}

bool Relay::repeat(int32_t head) {
  const Dealt& own = dealt(head);
  for (const Known& known : known_) {
    const Dealt& before = dealt(known.head);
    if (own.like != before.like) continue;
    const int32_t ranks = rooms_.rank_of(own.rooms.front()) - rooms_.rank_of(before.rooms.front());
    const auto is_so_far = [&](int32_t room, int32_t other) {
      return rooms_.rank_of(room) - rooms_.rank_of(other) == ranks &&
             rooms_.number_of(room) == rooms_.number_of(other);
    };
    if (!std::ranges::equal(own.rooms, before.rooms, is_so_far)) continue;
    steps_.repeat(known.section, known.first, known.last, head - known.head, ranks);
    for (size_t i = 0; i < own.rooms.size(); ++i)
      blocks(rooms_.rank_of(own.rooms[i])).reach(known.blocks[i]);
    return true;
  }
  return false;
}

void Relay::advance(int32_t begin, int32_t end, int32_t time) {
  give_back();
  std::vector<Leaving> leaving;
  for (int32_t head = begin; head < end; ++head) {
    const std::vector<Share>& shares = deal_of(head).shares;
    size_t& next = progress_[static_cast<size_t>(head)].share;
    for (; next < shares.size() && shares[next].stage == time - starts_.of(head); ++next) {
      const Share& share = shares[next];
      carry_on(head, share);
      for (const Handing& handing : share.handings)
        leaving.push_back({head, rooms_.rank_of(share.room), rooms_.rank_of(handing.to),
                           handing.chains, share.convoys_of(handing)});
    }
  }
  if (overlapped()) expect_sums();
  launches_.launch();
  steps_.behind();
  add_ended();
  give_back();
  hand_on(in_rounds(std::move(leaving), world()));
  for (int32_t head = begin; head < end; ++head) {
    const std::vector<TileEnd>& ends = deal_of(head).ends;
    size_t& next = progress_[static_cast<size_t>(head)].end;
    for (; next < ends.size() && ends[next].stage == time - starts_.of(head); ++next)
      ended_.emplace_back(head, &ends[next]);
  }
  if (overlapped() && time < last_) return;  // the next launches need few of these
  steps_.take();
  add_ended();
}

void Relay::carry_on(int32_t head, const Share& share) {
  Blocks& own = blocks(rooms_.rank_of(share.room));
  std::vector<int32_t>& at = at_[static_cast<size_t>(head)];
  at.resize(deal_of(head).convoys.size(), -1);
  int32_t fresh = 0;
  for (size_t i = 0; i < share.convoys.size(); ++i) {
    int32_t& block = at[static_cast<size_t>(share.convoys[i])];
    if (block >= 0) continue;
    if (ends_in_place(head, share, i)) {
      block = kInPlace;
    } else {
      fresh += share.part->stretches[i].count;
    }
  }
  own.make_room(fresh);
  std::vector<Carry> carries;
  carries.reserve(share.convoys.size());
  for (size_t i = 0; i < share.convoys.size(); ++i) {
    int32_t& block = at[static_cast<size_t>(share.convoys[i])];
    if (block == kInPlace) {
      carries.emplace_back();
      continue;
    }
    const int32_t in = block;
    if (in < 0) block = own.take(share.part->stretches[i].count);
    carries.push_back({in, block});
  }
  launches_.plan(head, share, std::move(carries));
}

bool Relay::ends_in_place(int32_t head, const Share& share, size_t stretch) {
  if (!ends_in_place_[static_cast<size_t>(rooms_.rank_of(share.room))]) return false;
  if (share.part->stretches[stretch].end != kEnd) return false;
  const Deal& deal = deal_of(head);
  const auto [alone, fresh] = alone_.try_emplace(&deal);
  if (fresh) {
    alone->second.resize(deal.convoys.size(), -1);
    for (const TileEnd& end : deal.ends)
      if (end.parts.size() == 1)
        alone->second[static_cast<size_t>(end.parts.front().convoy)] = end.room;
    for (const TileEnd& end : deal.ends)  // a convoy may have both
      if (end.parts.size() > 1)
        for (const TileEnd::Part& part : end.parts)
          alone->second[static_cast<size_t>(part.convoy)] = -1;
  }
  return alone->second[static_cast<size_t>(share.convoys[stretch])] == share.room;
}

void Relay::expect_sums() {
  Steps::Needed needed;
  for (int32_t n = 0; n < rooms_.count(); ++n)
    for (const HeadPart& own : launches_.planned(n)) {
      const int32_t rank = rooms_.rank_of(n);
      std::vector<bool>& own_blocks = needed[rank];
      own_blocks.resize(static_cast<size_t>(blocks(rank).size()));
      for (size_t s = 0; s < own.carries.size(); ++s)
        if (own.carries[s].in >= 0)
          std::fill_n(own_blocks.begin() + own.carries[s].in, own.part->stretches[s].count, true);
    }
  steps_.expect(needed);
}

void Relay::hand_on(std::vector<Leaving> all) {
  // Another room of the rank goes on from the same block.
  std::erase_if(all, [](const Leaving& each) { return each.to == each.from; });
  std::vector<CarriedSums> sent;
  sent.reserve(all.size());
  for (const Leaving& own : all) {
    sent.push_back(sums_of(own));
    for_convoys(own, [&](int32_t& at, int32_t count) { blocks(own.from).give_back(at, count); });
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const Leaving& own = all[i];
    blocks(own.to).make_room(own.chains, overlapped());
    for_convoys(own, [&](int32_t& at, int32_t count) { at = blocks(own.to).take(count); });
    steps_.hand_on(own.from, std::move(sent[i]), own.to, sums_of(own));
  }
}

CarriedSums Relay::sums_of(const Leaving& own) {
  std::vector<CarriedSum> sums;
  sums.reserve(own.convoys.size());
  for (const int32_t convoy : own.convoys)
    for (const Span& span : deal_of(own.head).spans_of(convoy))
      append(sums, own.head, span, block(own.head, convoy));
  return sums;
}

void Relay::add_ended() {
  for (const auto& [head, end] : ended_) add_tiles(head, *end);
  ended_.clear();
}

void Relay::add_tiles(int32_t head, const TileEnd& end) {
  if (block(head, end.parts.front().convoy) == kInPlace) return;
  const int32_t r = rooms_.rank_of(end.room);
  TileSums sums{head, end.kv_tile, {}};
  sums.blocks.reserve(end.parts.size());
  for (const auto& [number, offset] : end.parts) {
    sums.blocks.push_back(block(head, number) + offset);
    const int32_t lowest = sums.blocks.back() - (end.step > 0 ? 0 : end.count - 1);
    added_[static_cast<size_t>(r)].push_back({lowest, end.count});
  }
  steps_.add(r, Add{std::move(sums), end.count, end.step});
}

void Relay::give_back() {
  for (int32_t r = 0; r < world(); ++r) {
    std::vector<Row>& added = added_[static_cast<size_t>(r)];
    std::ranges::sort(added, {}, &Row::block);
    for (size_t i = 0, next = 0; i < added.size(); i = next) {
      Row all{added[i].block, 0};
      for (; next < added.size() && added[next].block == all.block + all.count; ++next)
        all.count += added[next].count;
      blocks(r).give_back(all.block, all.count);
    }
    added.clear();
  }
}

}  // namespace verbatim::dist
