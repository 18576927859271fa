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
  known_.push_back({head,
                    static_cast<int32_t>(plan_.sections.size()),
                    steps_.messages(),
                    0,
                    blocks_of(head),
                    {}});
  advance(head, head + 1, starts_.of(head));
  known_.back().last = steps_.messages();
  known_.back().after = blocks_of(head);
  for (Section::Part& part : section.parts) part.end = steps_.count(part.rank);
  plan_.sections.push_back(std::move(section));
}

bool Relay::repeat(int32_t head) {
  const Dealt& own = dealt(head);
  for (const Known& known : known_) {
    const Dealt& before = dealt(known.head);
    if (own.like != before.like || blocks_of(head) != known.before) continue;
    const int32_t ranks = rooms_.rank_of(own.rooms.front()) - rooms_.rank_of(before.rooms.front());
    const auto is_so_far = [&](int32_t room, int32_t other) {
      return rooms_.rank_of(room) - rooms_.rank_of(other) == ranks &&
             rooms_.number_of(room) == rooms_.number_of(other);
    };
    if (!std::ranges::equal(own.rooms, before.rooms, is_so_far)) continue;
    steps_.repeat(known.section, known.first, known.last, head - known.head, ranks);
    for (size_t i = 0; i < own.rooms.size(); ++i)
      blocks(rooms_.rank_of(own.rooms[i])).reach(known.after[i]);
    return true;
  }
  return false;
}

std::vector<int32_t> Relay::blocks_of(int32_t head) {
  std::vector<int32_t> sizes;
  for (const int32_t room : dealt(head).rooms) sizes.push_back(blocks(rooms_.rank_of(room)).size());
  return sizes;
}

void Relay::advance(int32_t begin, int32_t end, int32_t time) {
  std::vector<Leaving> leaving;
  for (int32_t head = begin; head < end; ++head) {
    const std::vector<Share>& shares = deal_of(head).shares;
    size_t& next = progress_[static_cast<size_t>(head)].share;
    for (; next < shares.size() && shares[next].stage == time - starts_.of(head); ++next) {
      const Share& share = shares[next];
      carry_on(head, share);
      for (const Handing& handing : share.handings)
        leaving.push_back({head, rooms_.rank_of(share.room), rooms_.rank_of(handing.to), &handing});
    }
  }
  if (overlapped()) expect_sums();
  launches_.launch();
  steps_.behind();
  add_ended();
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
  for (size_t i = 0; i < share.convoys.size(); ++i)
    if (at[static_cast<size_t>(share.convoys[i])] < 0) fresh += share.part->stretches[i].count;
  own.make_room(fresh);
  std::vector<Carry> carries;
  carries.reserve(share.convoys.size());
  for (size_t i = 0; i < share.convoys.size(); ++i) {
    int32_t& block = at[static_cast<size_t>(share.convoys[i])];
    const int32_t in = block;
    if (in < 0) block = own.take(share.part->stretches[i].count);
    carries.push_back({in, block});
  }
  launches_.plan(head, share, std::move(carries));
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
  std::vector<std::vector<CarriedSum>> sent;
  for (const auto& [head, from, to, handing] : all) {
    sent.push_back(sums_of(head, *handing));
    for_convoys(head, *handing,
                [&](int32_t& at, int32_t count) { blocks(from).give_back(at, count); });
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [head, from, to, handing] = all[i];
    blocks(to).make_room(handing->chains, overlapped());
    for_convoys(head, *handing, [&](int32_t& at, int32_t count) { at = blocks(to).take(count); });
    steps_.hand_on(from, std::move(sent[i]), to, sums_of(head, *handing));
  }
}

std::vector<CarriedSum> Relay::sums_of(int32_t head, const Handing& handing) {
  std::vector<CarriedSum> sums;
  sums.reserve(handing.tiles.size());
  auto number = handing.convoys.begin() - 1;
  for (const Span& span : handing.tiles) {
    if (span.offset == 0) ++number;
    append(sums, head, span, block(head, *number));
  }
  return sums;
}

void Relay::add_ended() {
  for (const auto& [head, end] : ended_) add_tiles(head, *end);
  ended_.clear();
  for (int32_t r = 0; r < world(); ++r) give_back(r);
}

void Relay::add_tiles(int32_t head, const TileEnd& end) {
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

void Relay::give_back(int32_t r) {
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

}  // namespace verbatim::dist
