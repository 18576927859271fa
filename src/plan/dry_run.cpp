#include "plan/dry_run.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>
#include <vector>

#include "verbatim/error.h"

namespace verbatim {
namespace {

/// A sum that grows in a fixed order: a dQ row of a query head, or a tile that chains share.
struct Sum {
  int32_t next = 0;     // addend that may enter
  int32_t owner = 0;    // task of the addend before
  int32_t parked = -1;  // of the sequences that wait for it that of the least addend; -1: none
};

class DryRun {
 public:
  DryRun(const Plan& plan, const OnWait& on_wait)
      : on_wait_(on_wait), heads_(plan.order_of_head.size()) {}

  void run(std::vector<Walker> sequences) {
    parked_.resize(sequences.size());
    std::vector<int32_t> ready(sequences.size());
    // The last goes first: what a rotating chain visits first waits for none that is issued before.
    std::iota(ready.begin(), ready.end(), 0);
    while (!ready.empty()) {
      const int32_t index = ready.back();
      ready.pop_back();
      go_on(sequences[index], index, ready);
    }
    for (const Walker& walker : sequences)
      if (!walker.done()) report(walker);
  }

 private:
  void go_on(Walker& walker, int32_t index, std::vector<int32_t>& ready) {
    for (; !walker.done(); walker.advance()) {
      const bool forward = walker.order().pass == Pass::forward;
      if (forward && !walker.at_chain_end()) continue;  // rows of the forward have one chain each
      const bool of_tile = walker.at_chain_start() || walker.at_chain_end();
      const int32_t addend = of_tile ? walker.chain().addend : walker.addend();
      Sum& sum = sum_of(walker);
      if (sum.next != addend) return park(sum, addend, index);
      if (walker.at_chain_start()) continue;  // nothing is added yet
      const int32_t task = walker.placed().task;
      if (addend > 0 && sum.owner != task && on_wait_) on_wait_(walker.placed(), sum.owner);
      sum.next = addend + 1;
      sum.owner = task;
      if (sum.parked < 0 || parked_[sum.parked].addend != addend + 1) continue;
      ready.push_back(sum.parked);
      sum.parked = parked_[sum.parked].behind;
    }
  }

  void park(Sum& sum, int32_t addend, int32_t index) {
    int32_t* place = &sum.parked;
    while (*place >= 0 && parked_[*place].addend < addend) place = &parked_[*place].behind;
    parked_[index] = {addend, std::exchange(*place, index)};
  }

  Sum& sum_of(const Walker& walker) {
    Head& head = heads_[walker.placed().head];
    const HeadOrder& order = walker.order();
    const TileMap& tiles = *order.tiles;
    const auto place = [](std::vector<Sum>& sums, int32_t size, int32_t width, int32_t tile,
                          int32_t q_head) -> Sum& {
      const size_t heads = width;
      if (sums.empty()) sums.resize(static_cast<size_t>(size) * heads);
      return sums[static_cast<size_t>(tile) * heads + static_cast<size_t>(q_head)];
    };
    if (!walker.at_chain_start() && !walker.at_chain_end())
      return place(head.rows, tiles.q_tiles(), order.group, walker.tile(), walker.run().q_head);
    const bool forward = order.pass == Pass::forward;
    return place(head.tiles, forward ? tiles.q_tiles() : tiles.kv_tiles(),
                 forward ? order.group : 1, walker.chain().tile, walker.chain().q_head);
  }

  [[noreturn]] void report(const Walker& walker) const {
    const bool end = walker.at_chain_start() || walker.at_chain_end();
    const Chain& chain = walker.chain();
    throw Error(ErrorCode::invalid_plan, "plan.verify",
                fmt::format("{} waits in a cycle for addend {}",
                            name_tile(walker.order().pass, walker.placed().head,
                                      end ? chain.q_head : walker.run().q_head, chain.tile,
                                      end ? -1 : walker.tile()),
                            (end ? chain.addend : walker.addend()) - 1));
  }

  struct Head {
    // Sized when first met: a head without visits has no rows, whatever its group.
    std::vector<Sum> rows;   // [q_tiles, group]
    std::vector<Sum> tiles;  // of the kept axis, [tiles, chains' query heads]
  };
  struct Parked {
    int32_t addend;  // that it waits to add
    int32_t behind;  // the sequence that waits for the same sum with the next larger one; -1: none
  };

  const OnWait& on_wait_;
  std::vector<Head> heads_;
  std::vector<Parked> parked_;  // of each sequence, where it waits
};

}  // namespace

std::string name_tile(Pass pass, int32_t head, int32_t q_head, int32_t kept, int32_t streamed) {
  const bool backward = pass == Pass::backward;
  return fmt::format("tile (head {}, q_head {}, q_tile {}, kv_tile {})", head, q_head,
                     backward ? streamed : kept, backward ? kept : streamed);
}

void dry_run(const Plan& plan, std::vector<Walker> sequences, const OnWait& on_wait) {
  DryRun(plan, on_wait).run(std::move(sequences));
}

}  // namespace verbatim
