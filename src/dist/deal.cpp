#include "dist/deal.h"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/visits.h"

namespace verbatim::dist {
namespace {

/// Gathers the chains of shares.
class Shares {
 public:
  explicit Shares(const HeadOrder& order) : order_(order) {}

  void add(int32_t stage, int32_t rank, int32_t number, Chain chain, std::span<const Run> runs) {
    pieces_[{stage, rank}].push_back({number, chain, {runs.begin(), runs.end()}});
  }

  Deal make() {
    Deal deal;
    for (auto& [key, pieces] : pieces_) {
      std::ranges::stable_sort(pieces, {}, &PieceOfChain::number);
      auto order = std::make_shared<HeadOrder>();
      order->pass = order_.pass;
      order->name = order_.name;
      order->tiles = order_.tiles;
      order->group = order_.group;
      order->row_addends = order_.row_addends;
      Share share{key.first, key.second, nullptr, {}};
      for (PieceOfChain& piece : pieces) {
        const auto chains = static_cast<int32_t>(order->chains.size());
        piece.chain.run_begin = static_cast<int32_t>(order->runs.size());
        order->runs.insert(order->runs.end(), piece.runs.begin(), piece.runs.end());
        piece.chain.run_end = static_cast<int32_t>(order->runs.size());
        order->chains.push_back(piece.chain);
        order->tasks.push_back({chains, chains + 1});
        share.chain_of.push_back(piece.number);
      }
      share.order = std::move(order);
      deal.shares.push_back(std::move(share));
    }
    return deal;
  }

 private:
  struct PieceOfChain {
    int32_t number;
    Chain chain;
    std::vector<Run> runs;
  };
  const HeadOrder& order_;
  std::map<std::pair<int32_t, int32_t>, std::vector<PieceOfChain>> pieces_;  // by stage and rank
};

/// Walks the chains of a backward, each as far as its addends are due, and cuts them.
class Cutter {
 public:
  Cutter(const HeadOrder& order, const Owners& owners)
      : order_(order),
        owners_(owners),
        chains_(whole_chains(order)),
        rows_(owners.rows.size()),
        walkers_(chains_.size()),
        shares_(order) {}

  Deal cut() {
    std::vector<size_t> ready;
    for (size_t c = 0; c < chains_.size(); ++c) {
      walkers_[c].run = chains_[c].run_begin;
      ready.push_back(c);
      while (!ready.empty()) {
        const size_t next = ready.back();
        ready.pop_back();
        go_on(next, ready);
      }
    }
    Deal deal = shares_.make();
    deal.links.resize(chains_.size());
    for (size_t s = 0; s < deal.shares.size(); ++s)
      for (const int32_t c : deal.shares[s].chain_of)
        deal.links[static_cast<size_t>(c)].push_back(static_cast<int32_t>(s));
    deal.ends.resize(static_cast<size_t>(order_.tiles->kv_tiles()));
    for (size_t c = 0; c < chains_.size(); ++c)
      deal.ends[static_cast<size_t>(chains_[c].tile)].chains.push_back(static_cast<int32_t>(c));
    for (TileEnd& end : deal.ends) {
      std::ranges::sort(end.chains, {},
                        [&](int32_t c) { return chains_[static_cast<size_t>(c)].addend; });
      for (const int32_t c : end.chains) {
        const int32_t last = deal.links[static_cast<size_t>(c)].back();
        end.stage = std::max(end.stage, deal.shares[static_cast<size_t>(last)].stage);
        end.rank = deal.shares[static_cast<size_t>(last)].rank;
      }
    }
    deal.chains = std::move(chains_);
    return deal;
  }

 private:
  struct Row {
    int32_t next = 0;   // addend that may enter
    int32_t stage = 0;  // of the one before
  };
  struct Walker {
    int32_t run = 0, visit = 0;    // what comes next
    int32_t begin = 0;             // first visit of `run` that is in no piece yet
    int32_t rank = -1, stage = 0;  // of the piece that is open
    std::vector<Run> runs;         // of the piece that is open
  };

  void go_on(size_t c, std::vector<size_t>& ready) {
    Walker& at = walkers_[c];
    const WholeChain& chain = chains_[c];
    for (; at.run < chain.run_end; ++at.run, at.visit = at.begin = 0) {
      const Run& run = order_.runs[static_cast<size_t>(at.run)];
      for (; at.visit < run.count; ++at.visit) {
        const size_t index =
            static_cast<size_t>(run.q_head) * static_cast<size_t>(order_.tiles->q_tiles()) +
            static_cast<size_t>(run.tile(at.visit));
        const int32_t addend = run.addend_of(at.visit);
        Row& row = rows_[index];
        if (row.next != addend) {
          parked_[{index, addend}] = c;
          return;
        }
        enter(c, run, owners_.rows[index], row);
        const auto woken = parked_.find({index, ++row.next});
        if (woken == parked_.end()) continue;
        ready.push_back(woken->second);
        parked_.erase(woken);
      }
      append_visits(at.runs, run, at.begin, run.count);
    }
    if (at.rank < 0) at.rank = owners_.tiles[static_cast<size_t>(chain.tile)];
    close(c);
  }

  /// Counts the next visit of chain `c`, by `rank`, to a piece of its own if the one before is of
  /// another rank or stage.
  void enter(size_t c, const Run& run, int32_t rank, Row& row) {
    Walker& at = walkers_[c];
    const int32_t after = at.rank < 0 || at.rank == rank ? at.stage : at.stage + 1;
    const int32_t stage = std::max(after, row.stage);
    row.stage = stage;
    if (at.rank == rank && at.stage == stage) return;
    append_visits(at.runs, run, at.begin, at.visit);
    at.begin = at.visit;
    if (at.rank >= 0) close(c);
    at.rank = rank;
    at.stage = stage;
  }

  void close(size_t c) {
    Walker& at = walkers_[c];
    shares_.add(at.stage, at.rank, static_cast<int32_t>(c), {.tile = chains_[c].tile}, at.runs);
    at.runs.clear();
  }

  const HeadOrder& order_;
  const Owners& owners_;
  std::vector<WholeChain> chains_;
  std::vector<Row> rows_;
  std::vector<Walker> walkers_;
  std::map<std::pair<size_t, int32_t>, size_t> parked_;  // by row and the addend waited for
  Shares shares_;
};

}  // namespace

std::vector<WholeChain> whole_chains(const HeadOrder& order) {
  std::vector<WholeChain> chains;
  for (const Chain& chain : order.chains) {
    if (!chain.continues) {
      chains.push_back({chain.tile, chain.addend, chain.addends, chain.run_begin, chain.run_end});
      continue;
    }
    chains.back().run_end = chain.run_end;
    chains.back().addends = 1;  // what counts its pieces; chains that are cut share no tile
  }
  return chains;
}

Deal deal(const HeadOrder& order, const Owners& owners) {
  if (order.pass == Pass::backward) return Cutter(order, owners).cut();
  Shares shares(order);
  for (size_t c = 0; c < order.chains.size(); ++c) {
    const Chain& chain = order.chains[c];
    const auto row =
        static_cast<size_t>(chain.q_head) * static_cast<size_t>(order.tiles->q_tiles()) +
        static_cast<size_t>(chain.tile);
    shares.add(0, owners.rows[row], static_cast<int32_t>(c), chain,
               std::span(order.runs)
                   .subspan(static_cast<size_t>(chain.run_begin),
                            static_cast<size_t>(chain.run_end - chain.run_begin)));
  }
  return shares.make();
}

}  // namespace verbatim::dist
