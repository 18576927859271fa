#include "dist/sequence.h"

#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "plan/check_order.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

/// Plays chains that wait for each other. A run is entered when all its visits may be, as regular
/// orders allow; only where that leads nowhere, as far as they may.
class Player {
 public:
  Player(const HeadOrder& order, const WholeChains& chains, std::vector<Walk>& walks)
      : order_(order),
        chains_(chains),
        walks_(walks),
        rows_(static_cast<size_t>(order.group) * static_cast<size_t>(order.tiles->q_tiles())),
        at_(chains.size()) {}

  void play() {
    for (size_t c = 0; c < chains_.size(); ++c) {
      at_[c].run = chains_[c].run_begin;
      start(static_cast<int32_t>(c));
    }
    whole_runs_ = false;
    for (size_t c = 0; c < chains_.size(); ++c) {
      if (at_[c].row < 0) continue;
      leave_row(static_cast<int32_t>(c));
      start(static_cast<int32_t>(c));
    }
    if (waiting_ > 0)
      throw Error(ErrorCode::invalid_plan, "dist",
                  fmt::format("{} chains of an order wait for each other", waiting_));
  }

 private:
  struct Row {
    int32_t next = 0;    // the addend that may enter
    int32_t waits = -1;  // the first chain that waits for another
  };
  struct At {
    int32_t run = 0, visit = 0;               // what comes next
    int32_t row = -1, addend = 0, next = -1;  // waits for; the next chain that waits for this row
  };

  Row& row_of(const Run& run, int32_t i) {
    return rows_[static_cast<size_t>(run.q_head) * static_cast<size_t>(order_.tiles->q_tiles()) +
                 static_cast<size_t>(run.tile(i))];
  }

  void start(int32_t chain) {
    ready_.push_back(chain);
    while (!ready_.empty()) {
      const int32_t next = ready_.back();
      ready_.pop_back();
      go_on(next);
    }
  }

  void go_on(int32_t c) {
    At& at = at_[c];
    const Chain& chain = chains_[c];
    Walk walk{c, at.run, at.run, at.visit, kAllOfRun};
    while (at.run < chain.run_end) {
      const Run& run = order_.runs[at.run];
      const int32_t allowed = allowed_from(run, at.visit);
      const int32_t end = allowed == run.count || !whole_runs_ ? allowed : at.visit;
      if (end > at.visit) {
        walk.run_end = at.run + 1;
        walk.last = end;
        enter(run, at.visit, end);
        at.visit = end;
      }
      if (at.visit < run.count) {
        wait(c, run, allowed);
        break;
      }
      ++at.run;
      at.visit = 0;
    }
    if (walk.run_end > walk.run_begin || chain.run_begin == chain.run_end) walks_.push_back(walk);
  }

  /// The first visit from `begin` on that may not enter.
  int32_t allowed_from(const Run& run, int32_t begin) {
    int32_t i = begin;
    while (i < run.count && row_of(run, i).next == run.addend_of(i)) ++i;
    return i;
  }

  void enter(const Run& run, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; ++i) {
      Row& row = row_of(run, i);
      ++row.next;
      for (int32_t c = row.waits, before = -1; c >= 0;) {
        At& waiting = at_[c];
        const int32_t after = waiting.next;
        if (waiting.addend == row.next) {
          (before < 0 ? row.waits : at_[before].next) = after;
          waiting.row = -1;
          --waiting_;
          ready_.push_back(c);
        } else {
          before = c;
        }
        c = after;
      }
    }
  }

  void wait(int32_t c, const Run& run, int32_t i) {
    Row& row = row_of(run, i);
    At& at = at_[c];
    at.row = static_cast<int32_t>(&row - rows_.data());
    at.addend = run.addend_of(i);
    at.next = row.waits;
    row.waits = c;
    ++waiting_;
  }

  void leave_row(int32_t c) {
    At& at = at_[c];
    int32_t* link = &rows_[at.row].waits;
    while (*link != c) link = &at_[*link].next;
    *link = at.next;
    at.row = -1;
    --waiting_;
  }

  const HeadOrder& order_;
  const WholeChains& chains_;
  std::vector<Walk>& walks_;
  std::vector<Row> rows_;  // [group, q_tiles]
  std::vector<At> at_;     // by chain
  std::vector<int32_t> ready_;
  int64_t waiting_ = 0;  // chains
  bool whole_runs_ = true;
};

}  // namespace

WholeOrder::WholeOrder(std::shared_ptr<const HeadOrder> of) : order(std::move(of)) {
  if (order->pass == Pass::forward) return;
  ChainRows issued = rows_of_chains(*order);
  counts_up_ = counts_up({*order, 0}, issued);
  issued_ = issued.alike;
  std::tie(chains, rows) = by_chain(*order, std::move(issued));
  if (!counts_up_) {
    Player(*order, chains, walks_).play();
  } else if (chains.size() != order->chains.size()) {
    for (const Chain& chain : order->chains)
      number_.push_back((number_.empty() ? -1 : number_.back()) + (chain.continues ? 0 : 1));
  }
}

Walk WholeOrder::walk(int32_t c, int32_t alike) const {
  const Chain& chain = order->chains[static_cast<size_t>(c)];
  return {number_.empty() ? c : number_[static_cast<size_t>(c)],
          chain.run_begin,
          chain.run_end,
          0,
          kAllOfRun,
          alike};
}

}  // namespace verbatim::dist
