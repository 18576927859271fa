#include "dist/deal.h"

#include <algorithm>
#include <map>
#include <utility>

namespace verbatim::dist {
namespace {

/// Adds tiles [first, last) that a room visits; what touches the room's last ones is joined.
class VisitedTiles {
 public:
  void add(int32_t room, int32_t first, int32_t last) {
    if (static_cast<size_t>(room) >= at_.size()) at_.resize(static_cast<size_t>(room) + 1, -1);
    int32_t& at = at_[room];
    if (at >= 0) {
      Visited& before = all_[at];
      if (first <= before.last && before.first <= last) {
        before.first = std::min(before.first, first);
        before.last = std::max(before.last, last);
        return;
      }
    }
    at = static_cast<int32_t>(all_.size());
    all_.push_back({room, first, last});
  }
  std::vector<Visited> take() { return std::move(all_); }

 private:
  std::vector<int32_t> at_;  // last of each room
  std::vector<Visited> all_;
};

/// Each chain of the forward is one room's.
Deal deal_forward(const std::shared_ptr<const HeadOrder>& order, const Owners& owners) {
  std::map<int32_t, std::shared_ptr<OrderPart>> parts;  // by room
  VisitedTiles q_tiles, kv_tiles;
  for (size_t c = 0; c < order->chains.size(); ++c) {
    const Chain& chain = order->chains[c];
    const int32_t room = room_of(owners.rows[chain.q_head], chain.tile);
    auto& part = parts[room];
    if (!part) part = std::make_shared<OrderPart>(OrderPart{order, {}});
    const auto number = static_cast<int32_t>(c);
    if (!part->stretches.empty() &&
        part->stretches.back().chain + part->stretches.back().count == number) {
      ++part->stretches.back().count;
    } else {
      part->stretches.push_back({number, 1, {}, kEnd});
    }
    q_tiles.add(room, chain.tile, chain.tile + 1);
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      const Run& run = order->runs[r];
      // Tiles behind each other are one range.
      const int32_t ranges = std::abs(run.step) == 1 ? 1 : run.count;
      for (int32_t i = 0; i < ranges; ++i) {
        const auto [first, last] =
            std::minmax({run.tile(i), run.tile(ranges == 1 ? run.count - 1 : i)});
        kv_tiles.add(room, first, last + 1);
      }
    }
  }
  Deal deal;
  for (auto& [room, part] : parts) deal.shares.push_back({0, room, std::move(part), {}, {}, {}});
  deal.q_tiles = q_tiles.take();
  deal.kv_tiles = kv_tiles.take();
  return deal;
}

class BackwardDeal {
 public:
  BackwardDeal(const WholeOrder& whole, const Owners& owners, int32_t together)
      : order_(whole.order),
        chains_(whole.chains),
        rows_(whole.rows),
        owners_(owners),
        routes_(find_routes(whole, owners, together)) {}

  Deal make() {
    find_strands();
    find_ends();
    make_convoys();
    make_shares();
    estimate();
    find_kv_tiles();
    deal_.starts = routes_.starts;
    deal_.q_tiles = std::move(routes_.q_tiles);
    return std::move(deal_);
  }

 private:
  /// Chains behind each other on KV tiles behind each other, up or down as most chains of the order
  /// go, which take the same way and have the same place among those of their tiles. Its tiles are
  /// those of ends behind each other.
  struct Strand {
    int32_t chain = 0, count = 0;
    int32_t tile = 0, addend = 0, list = 0;
    int32_t end_begin = 0, end_end = 0;  // into Deal::ends
    size_t part = 0;                     // that of the first chain, into parts_
  };
  /// A convoy that goes on to another room.
  struct Leaving {
    int32_t to, convoy;
  };

  const std::vector<Link>& links_of(size_t convoy) const {
    return routes_.lists[static_cast<size_t>(list_of_[convoy])];
  }
  const std::vector<Link>& links_of(const Strand& strand) const {
    return routes_.lists[static_cast<size_t>(strand.list)];
  }

  void find_strands() {
    int64_t ups = 0;
    const ChainRow* before = nullptr;
    const auto way_to = [&](const ChainRow& row) {
      return before ? row.tile - before->tile_of(row.chain - 1) : 0;
    };
    for (const ChainRow& row : rows_.rows) {
      ups += (way_to(row) == 1) - (way_to(row) == -1) + (row.count - 1) * row.step;
      before = &row;
    }
    step_ = ups >= 0 ? 1 : -1;
    before = nullptr;
    auto fellows = routes_.fellows.begin();
    for (const ChainRow& row : rows_.rows) {
      int32_t way = way_to(row);
      for (int32_t c = row.chain, end = c + row.count, more = 0; c < end; c += more) {
        while (fellows->chain + fellows->count <= c) ++fellows;
        more = row.step == step_ ? std::min(end, fellows->chain + fellows->count) - c : 1;
        const bool goes_on = !strands_.empty() && way == step_ &&
                             strands_.back().addend == row.addend &&
                             strands_.back().list == fellows->list;
        if (!goes_on) strands_.push_back({c, 0, row.tile_of(c), row.addend, fellows->list});
        strands_.back().count += more;
        way = row.step;
      }
      before = &row;
    }
  }

  /// Tiles behind each other whose sums end alike are one end.
  void find_ends() {
    const int32_t tiles = order_->tiles->kv_tiles();
    const auto lowest = [&](const Strand& strand) {
      return step_ > 0 ? strand.tile : strand.tile - strand.count + 1;
    };
    std::vector<bool> begins(static_cast<size_t>(tiles) + 1);
    for (const Strand& strand : strands_)
      begins[lowest(strand)] = begins[lowest(strand) + strand.count] = true;
    for (const Strip& strip : owners_.tiles) begins[strip.first] = true;
    std::vector<int32_t> end_at;  // by tile
    for (int32_t tile = 0; tile < tiles; ++tile) {
      if (tile == 0 || begins[tile]) deal_.ends.push_back({tile, 0, step_, 0, 0, {}});
      ++deal_.ends.back().count;
      end_at.push_back(static_cast<int32_t>(deal_.ends.size()) - 1);
    }
    strands_of_.resize(deal_.ends.size());
    for (size_t s = 0; s < strands_.size(); ++s) {
      Strand& strand = strands_[s];
      strand.end_begin = end_at[lowest(strand)];
      strand.end_end = end_at[lowest(strand) + strand.count - 1] + 1;
      for (int32_t e = strand.end_begin; e < strand.end_end; ++e)
        strands_of_[e].push_back(static_cast<int32_t>(s));
    }
    for (size_t e = 0; e < deal_.ends.size(); ++e) find_end(deal_.ends[e], strands_of_[e]);
  }

  void find_end(TileEnd& end, std::vector<int32_t>& strands) const {
    std::ranges::sort(strands, {}, [&](int32_t s) { return strands_[s].addend; });
    for (const int32_t s : strands)
      end.stage = std::max(end.stage, links_of(strands_[s]).back().stage);
    end.room = links_of(strands_[strands.back()]).back().room;
    const auto stays = [&](int32_t s) {
      const std::vector<Link>& links = links_of(strands_[s]);
      return links.size() == 1 && links.back().room == end.room;
    };
    // Ranks that sums go through share the additions.
    if (strands.size() > 1 && !std::ranges::all_of(strands, stays))
      end.room = room_of(owners_.tiles, end.kv_tile);
  }

  void make_convoys() {
    int32_t list = -1;
    for (Strand& strand : strands_) {
      strand.part = parts_.size();
      for (int32_t i = 0, chain = strand.chain; i < strand.end_end - strand.end_begin; ++i) {
        const TileEnd& end = deal_.ends[step_ > 0 ? strand.end_begin + i : strand.end_end - 1 - i];
        if (std::exchange(list, strand.list) != strand.list || end_rooms_.back() != end.room)
          start_convoy(chain, list, end.room);
        add_to_convoy(end);
        chain += end.count;
      }
    }
    for (size_t e = 0; e < deal_.ends.size(); ++e) {
      for (const int32_t s : strands_of_[e]) {
        const Strand& strand = strands_[s];
        const auto at = static_cast<int32_t>(e);
        const int32_t i = step_ > 0 ? at - strand.end_begin : strand.end_end - 1 - at;
        deal_.ends[e].parts.push_back(parts_[strand.part + static_cast<size_t>(i)]);
      }
    }
  }

  /// The chains of these tiles, in their sequence.
  void add_to_convoy(const TileEnd& end) {
    Convoy& convoy = deal_.convoys.back();
    const auto number = static_cast<int32_t>(deal_.convoys.size()) - 1;
    const int32_t last = end.count - 1;
    parts_.push_back({number, convoy.count + (step_ > 0 ? 0 : last)});
    const int32_t tile = end.kv_tile + (step_ > 0 ? 0 : last);
    if (convoy.count == 0 || deal_.spans.back().kv_tile + step_ * deal_.spans.back().count != tile)
      deal_.spans.push_back({convoy.count, tile, 0, step_});
    deal_.spans.back().count += end.count;
    convoy.count += end.count;
  }

  void start_convoy(int32_t chain, int32_t list, int32_t end_room) {
    deal_.convoys.push_back({chain, 0});
    list_of_.push_back(list);
    end_rooms_.push_back(end_room);
    deal_.first_span.push_back(static_cast<int32_t>(deal_.spans.size()));
  }

  /// The visits of a chain on each of its links.
  std::vector<int64_t> visits_of(const Chain& chain, const std::vector<Link>& links) const {
    std::vector<int64_t> visits(links.size());
    Passes passes;
    size_t link = 0;
    order_->for_each_part(chain, [&](int32_t q_head, RunView runs) {
      for (Run run : runs) {
        run.q_head = q_head;
        const int32_t pass = links.size() > 1 ? passes.next(run) : 0;
        int32_t from = 0;
        for (; link + 1 < links.size(); ++link) {
          const int32_t end = visits_before(run, pass, links[link + 1].begin);
          visits[link] += end - from;
          from = end;
          if (end == run.count) break;
        }
        visits[link] += run.count - from;
      }
    });
    return visits;
  }

  /// What shares take. Chains of a convoy are about as long as the mean of its first and last.
  void estimate() {
    std::vector<std::vector<int64_t>> lengths;    // as visits_of()
    std::vector<std::pair<size_t, size_t>> ends;  // those of the first and the last, by convoy
    auto alike = rows_.alike.begin();
    int32_t list = -1;
    const auto length_of = [&](int32_t c, int32_t own) {
      // Alike chains that go the same way are as long.
      const bool same = c < alike->chain + alike->count && list == own;
      while (alike->chain + alike->count <= c) ++alike;
      list = own;
      if (!same) lengths.push_back(visits_of(chains_[c], routes_.lists[static_cast<size_t>(own)]));
      return lengths.size() - 1;
    };
    for (size_t k = 0; k < deal_.convoys.size(); ++k) {
      const Convoy& convoy = deal_.convoys[k];
      const size_t first = length_of(convoy.chain, list_of_[k]);
      ends.emplace_back(first, length_of(convoy.chain + convoy.count - 1, list_of_[k]));
    }
    std::vector<size_t> link(deal_.convoys.size());
    for (Share& share : deal_.shares) {
      int64_t longest = 0, all = 0;
      for (const int32_t number : share.convoys) {
        const auto k = static_cast<size_t>(number);
        const int64_t a = lengths[ends[k].first][link[k]], b = lengths[ends[k].second][link[k]];
        ++link[k];
        longest = std::max({longest, a, b});
        all += (a + b) * deal_.convoys[k].count;
      }
      share.longest = static_cast<double>(longest);
      share.work = static_cast<double>(all) / (2 * kWorkers);
    }
  }

  void make_shares() {
    /// Convoys behind each other that a link takes to the same room.
    struct Entry {
      int32_t room, link, convoy, count;
    };
    std::vector<std::vector<Entry>> stages;
    for (size_t k = 0; k < deal_.convoys.size(); ++k) {
      const std::vector<Link>& links = links_of(k);
      for (size_t l = 0; l < links.size(); ++l) {
        const auto stage = static_cast<size_t>(links[l].stage);
        if (stage >= stages.size()) stages.resize(stage + 1);
        std::vector<Entry>& all = stages[stage];
        const Entry own{links[l].room, static_cast<int32_t>(l), static_cast<int32_t>(k), 0};
        if (all.empty() || all.back().room != own.room || all.back().link != own.link ||
            all.back().convoy + all.back().count != own.convoy)
          all.push_back(own);
        ++all.back().count;
      }
    }
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      std::vector<Entry>& all = stages[stage];
      std::ranges::stable_sort(all, {}, &Entry::room);
      for (auto entry = all.begin(); entry != all.end();) {
        const int32_t room = entry->room;
        const auto part = std::make_shared<OrderPart>(OrderPart{order_, {}});
        Share& share =
            deal_.shares.emplace_back(Share{static_cast<int32_t>(stage), room, part, {}, {}, {}});
        for (; entry != all.end() && entry->room == room; ++entry)
          for (int32_t k = entry->convoy; k < entry->convoy + entry->count; ++k)
            add(share, *part, k, static_cast<size_t>(entry->link));
        hand_on(share);
      }
    }
  }

  void add(Share& share, OrderPart& part, int32_t number, size_t link) {
    const Convoy& convoy = deal_.convoys[number];
    const std::vector<Link>& links = links_of(static_cast<size_t>(number));
    part.stretches.push_back({convoy.chain, convoy.count, links[link].begin,
                              link + 1 < links.size() ? links[link + 1].begin : kEnd});
    share.convoys.push_back(number);
    const int32_t to = link + 1 < links.size() ? links[link + 1].room : end_rooms_[number];
    if (to != share.room) leaving_.push_back({to, number});
  }

  /// The convoys that leave a share, by where they go.
  void hand_on(Share& share) {
    std::ranges::stable_sort(leaving_, {}, &Leaving::to);
    for (const auto& [to, convoy] : leaving_) {
      const auto at = static_cast<int32_t>(share.leaving.size());
      if (share.handings.empty() || share.handings.back().to != to)
        share.handings.push_back({to, 0, at, at});
      Handing& handing = share.handings.back();
      handing.chains += deal_.convoys[convoy].count;
      ++handing.end;
      share.leaving.push_back(convoy);
    }
    leaving_.clear();
  }

  void find_kv_tiles() {
    VisitedTiles tiles;
    std::vector<int32_t> rooms;  // of a convoy
    for (size_t k = 0; k < deal_.convoys.size(); ++k) {
      rooms.assign({end_rooms_[k]});
      for (const Link& link : links_of(k)) rooms.push_back(link.room);
      std::ranges::sort(rooms);
      rooms.erase(std::unique(rooms.begin(), rooms.end()), rooms.end());
      for (const int32_t room : rooms)
        for (const Span& span : deal_.spans_of(static_cast<int32_t>(k)))
          tiles.add(room, span.lowest(), span.lowest() + span.count);
    }
    deal_.kv_tiles = tiles.take();
    std::ranges::stable_sort(deal_.ends, {}, &TileEnd::stage);
  }

  std::shared_ptr<const HeadOrder> order_;
  const WholeChains& chains_;
  const ChainRows& rows_;
  const Owners& owners_;
  Routes routes_;
  int32_t step_ = 1;
  std::vector<Strand> strands_;                   // by chain
  std::vector<std::vector<int32_t>> strands_of_;  // by end, then addend
  std::vector<TileEnd::Part> parts_;              // by strand, then end
  std::vector<int32_t> list_of_, end_rooms_;      // by convoy
  std::vector<Leaving> leaving_;                  // the share that is made
  Deal deal_;
};

}  // namespace

Deal deal(const WholeOrder& whole, const Owners& owners, int32_t together) {
  return whole.order->pass == Pass::backward ? BackwardDeal(whole, owners, together).make()
                                             : deal_forward(whole.order, owners);
}

std::vector<int32_t> number_rooms(Owners& owners) {
  std::vector<std::vector<Strip>*> lists{&owners.tiles};
  for (auto& rows : owners.rows) lists.push_back(&rows);
  std::vector<int32_t> numbers;  // by room; -1: it owns nothing
  for (const auto* strips : lists)
    for (const auto& [first, room] : *strips) {
      if (std::cmp_less_equal(numbers.size(), room)) numbers.resize(room + 1, -1);
      numbers[room] = 0;
    }
  std::vector<int32_t> rooms;
  for (int32_t room = 0; room < std::ssize(numbers); ++room) {
    if (numbers[room] < 0) continue;
    numbers[room] = static_cast<int32_t>(rooms.size());
    rooms.push_back(room);
  }
  for (auto* strips : lists)
    for (Strip& strip : *strips) strip.room = numbers[strip.room];
  return rooms;
}

std::shared_ptr<const Deal> deal_to(std::shared_ptr<const Deal> deal,
                                    const std::vector<int32_t>& rooms) {
  if (rooms.empty() || rooms.back() + 1 == std::ssize(rooms)) return deal;  // they are 0, 1, ...
  auto renamed = std::make_shared<Deal>(*deal);
  const auto rename = [&](int32_t& room) { room = rooms[room]; };
  for (Share& share : renamed->shares) {
    rename(share.room);
    for (Handing& handing : share.handings) rename(handing.to);
  }
  for (auto* visited : {&renamed->q_tiles, &renamed->kv_tiles})
    for (Visited& tiles : *visited) rename(tiles.room);
  for (TileEnd& end : renamed->ends) rename(end.room);
  return renamed;
}

}  // namespace verbatim::dist
