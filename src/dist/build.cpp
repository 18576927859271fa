// make_dist_plan: deal every head's order, then write down the steps of all ranks in one sequence
// in which each comes after those it needs. A rank's list is its part of that sequence, so no rank
// can wait forever.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "dist/blocks.h"
#include "dist/deal.h"
#include "dist/duration.h"
#include "dist/free_order.h"
#include "dist/homes.h"
#include "dist/join.h"
#include "dist/steps.h"
#include "dist/strategy.h"
#include "dist/supply.h"
#include "verbatim/dist.h"

namespace verbatim {
namespace {

using dist::append;
using dist::Blocks;
using dist::boxes_of;
using dist::Convoy;
using dist::Deal;
using dist::Grid;
using dist::Homes;
using dist::Owners;
using dist::Share;
using dist::Steps;
using dist::Strip;
using dist::Supply;

constexpr double kAsFast = 1.005;  // what less memory may cost, of the time
constexpr Operand kForwardQ[] = {Operand::q};
constexpr Operand kBackwardQ[] = {Operand::q, Operand::o, Operand::lse, Operand::dout};
constexpr Operand kForwardOut[] = {Operand::o, Operand::lse};
constexpr Operand kBackwardOut[] = {Operand::dq};
constexpr Operand kKvOut[] = {Operand::dk, Operand::dv};

/// A head of a batch entry, dealt, with what follows for its rows.
struct Dealt {
  std::shared_ptr<const Deal> deal;
  std::vector<HeldRows> q, kv, ended;  // by rank: visited; of dK and dV that end there
};

class Builder {
 public:
  Builder(const Plan& whole, const Sharding& sharding, const DistOptions& options)
      : sharding_(sharding),
        homes_q_(sharding.q, whole.problem.batch),
        homes_kv_(sharding.kv, whole.problem.batch) {
    plan_.whole = whole;
    plan_.options = options;
    plan_.shard = sharding.name;
    grid_ = dist::make_grid(whole.problem, plan_.options);
    plan_.ranks.resize(static_cast<size_t>(options.world));
    blocks_.resize(plan_.ranks.size());
    added_.resize(plan_.ranks.size());
    parts_.resize(plan_.ranks.size());
  }

  DistPlan build() {
    if (backward() && whole().level == Level::not_guaranteed)
      dist::free_orders(plan_.whole, [this](int32_t head) { return owners_of(head); });
    deal_heads();
    lay_out();
    bring_in();
    Supply supply(
        plan_, grid_, steps_,
        [this](int32_t head) -> const std::vector<HeldRows>& { return dealt(head).kv; },
        backward() ? Supply::kAll : heads_at_once());
    if (backward()) {
      // All at once: where sums wait for each other, K and V that come in between hold them up.
      supply.next();
      run_backward();
    } else {
      run_forward(supply);
    }
    bring_home();
    for (int32_t r = 0; r < world(); ++r) rank(r).blocks = blocks_[static_cast<size_t>(r)].size();
    return std::move(plan_);
  }

 private:
  const Plan& whole() const { return plan_.whole; }
  const Problem& problem() const { return plan_.whole.problem; }
  bool backward() const { return whole().pass == Pass::backward; }
  int32_t heads() const { return static_cast<int32_t>(whole().order_of_head.size()); }
  int32_t world() const { return static_cast<int32_t>(plan_.ranks.size()); }
  int64_t batch_of(int32_t head) const { return head / problem().kv_heads; }
  int64_t kv_head_of(int32_t head) const { return head % problem().kv_heads; }
  RankPlan& rank(int32_t r) { return plan_.ranks[static_cast<size_t>(r)]; }
  const Dealt& dealt(int32_t head) const { return *dealt_[static_cast<size_t>(head)]; }
  const Deal& deal_of(int32_t head) const { return *dealt(head).deal; }

  /// Query heads of an inner rank, and the KV heads that these see.
  Interval q_heads(int32_t inner) const {
    const int64_t each = problem().q_heads / grid_.inner;
    return {inner * each, (inner + 1) * each};
  }
  Interval kv_heads(int32_t inner) const {
    const Interval q = q_heads(inner);
    return {q.begin / problem().group(), (q.end + problem().group() - 1) / problem().group()};
  }

  /// The rank of query head `q_head` (of the problem) for positions held by `home`.
  int32_t owner(int32_t home, int64_t q_head) const {
    const int64_t inner = q_head / (problem().q_heads / grid_.inner);
    return grid_.rank(grid_.outer_of(home), static_cast<int32_t>(inner));
  }

  Owners owners_of(int32_t head) const {
    const HeadOrder& order = whole().order(head);
    const int64_t b = batch_of(head), first = kv_head_of(head) * order.group;
    const auto owned = [&](std::vector<Strip> strips, int64_t q_head) {
      for (Strip& strip : strips) strip.rank = owner(strip.rank, q_head);
      return strips;
    };
    Owners owners;
    const std::vector<Strip> rows = homes_q_.strips(b, order.tiles->q_edges);
    for (int32_t g = 0; g < order.group; ++g) owners.rows.push_back(owned(rows, first + g));
    owners.tiles = owned(homes_kv_.strips(b, order.tiles->kv_edges), first);
    return owners;
  }

  /// Chooses what starts together: all chains of one head, of two, four and so on, which fill a
  /// launch better, or as many chains of a head as keep a rank busy, so that the next begins
  /// sooner. Of equals the most heads.
  void deal_heads() {
    deal_heads(INT32_MAX);
    if (!backward()) return;
    double least = INFINITY;
    for (int32_t beside = 1; beside < 2 * most_joined(); beside *= 2)
      try_starts(std::min(beside, most_joined()), least);
    if (std::ranges::all_of(deals(), [](const auto& deal) { return deal->is_at_once(); }))
      return save_memory();
    const auto whole = dealt_;
    deal_heads(dist::kWorkers);
    if (!try_starts(1, least)) dealt_ = whole;
  }

  /// Fewer heads start together where each keeps a rank busy for long: sums of the next take the
  /// place of those that are sent.
  void save_memory() {
    if (std::ranges::none_of(deals(), [](const auto& deal) { return deal->hands_on(); })) return;
    const double limit = kAsFast * takes(starts_, dist::kFilledLaunch);
    for (int32_t beside = 1; beside < most_joined(); beside *= 2) {
      std::vector<int32_t> fewer = starts_of(beside);
      if (takes(fewer, dist::kFilledLaunch) > limit) continue;
      starts_ = std::move(fewer);
      return;
    }
  }

  /// Whether heads as dealt, so many of which start together, take at most `least`; then they do.
  bool try_starts(int32_t beside, double& least) {
    std::vector<int32_t> starts = starts_of(beside);
    const double time = takes(starts, dist::kLaunch);
    if (time > least) return false;
    least = time;
    starts_ = std::move(starts);
    return true;
  }

  dist::Deals deals() const {
    dist::Deals deals;
    for (const auto& dealt : dealt_) deals.push_back(dealt->deal);
    return deals;
  }
  std::vector<int32_t> starts_of(int32_t beside) const {
    return dist::starts_of(deals(), beside, static_cast<int32_t>(problem().kv_heads));
  }
  double takes(const std::vector<int32_t>& starts, double launch) const {
    return dist::duration(
        deals(), starts, world(), launch, [this](int32_t r, int32_t head, int32_t other) {
          return dist::can_join(problem(), q_heads(grid_.inner_of(r)), head, other);
        });
  }

  void deal_heads(int32_t together) {
    deals_.clear();
    known_.clear();
    dealt_.clear();
    for (int32_t head = 0; head < heads(); ++head) deal_head(head, together);
  }

  void deal_head(int32_t head, int32_t together) {
    const std::shared_ptr<const HeadOrder>& order =
        whole().orders[static_cast<size_t>(whole().order_of_head[static_cast<size_t>(head)])];
    const int64_t b = batch_of(head);
    Owners owners = owners_of(head);
    const std::vector<int32_t> ranks = dist::number_ranks(owners);
    const auto [at, fresh] = deals_.try_emplace({order.get(), std::move(owners)});
    if (fresh) {
      const dist::WholeOrder& own = orders_.try_emplace(order.get(), order).first->second;
      at->second = std::make_shared<const Deal>(dist::deal(own, at->first.second, together));
    }
    auto& dealt = known_[{at->second.get(), ranks, b}];
    if (!dealt) {
      auto deal = std::make_shared<const Deal>(dist::deal_to(*at->second, ranks));
      dealt = std::make_shared<const Dealt>(
          Dealt{deal, rows_of(deal->q_tiles, b, order->tiles->q_edges),
                rows_of(deal->kv_tiles, b, order->tiles->kv_edges),
                rows_of(ended_tiles(*deal), b, order->tiles->kv_edges)});
    }
    dealt_.push_back(dealt);
  }

  static std::vector<dist::Visited> ended_tiles(const Deal& deal) {
    std::vector<dist::Visited> tiles;
    for (const dist::TileEnd& end : deal.ends)
      tiles.push_back({end.rank, end.kv_tile, end.kv_tile + 1});
    return tiles;
  }

  /// The rows of tiles, by rank.
  std::vector<HeldRows> rows_of(const std::vector<dist::Visited>& tiles, int64_t b,
                                const std::vector<int64_t>& edges) const {
    std::vector<std::vector<RowRange>> ranges(plan_.ranks.size());
    for (const auto& [rank, first, last] : tiles)
      ranges[static_cast<size_t>(rank)].push_back(
          {b, {edges[static_cast<size_t>(first)], edges[static_cast<size_t>(last)]}});
    std::vector<HeldRows> rows;
    for (auto& each : ranges) rows.emplace_back(std::move(each));
    return rows;
  }

  /// What each rank holds.
  void lay_out() {
    std::vector<std::vector<RowRange>> q(plan_.ranks.size()), ended(plan_.ranks.size());
    const auto add = [](std::vector<RowRange>& all, const HeldRows& rows) {
      all.insert(all.end(), rows.ranges().begin(), rows.ranges().end());
    };
    const std::set<std::shared_ptr<const Dealt>> distinct(dealt_.begin(), dealt_.end());
    for (const auto& dealt : distinct) {
      for (size_t r = 0; r < plan_.ranks.size(); ++r) {
        add(q[r], dealt->q[r]);
        add(ended[r], dealt->ended[r]);
      }
    }
    for (int32_t r = 0; r < world(); ++r) {
      RankPlan& each = rank(r);
      const auto i = static_cast<size_t>(r);
      each.home_q = sharding_.q[i];
      each.home_kv = sharding_.kv[i];
      each.q_heads = q_heads(grid_.inner_of(r));
      each.kv_heads = kv_heads(grid_.inner_of(r));
      each.q = HeldRows(std::move(q[i]));
      each.ended = HeldRows(std::move(ended[i]));
      // Rows at home that no key is visible to are in no visit: they stay where they are.
      each.in_place = grid_.inner == 1 && each.q.intersect(each.home_q) == each.q;
      if (each.in_place) each.q = each.home_q;
    }
  }

  /// Queries from the shards to the work space: also the rows of tiles that reach into other
  /// shards.
  void bring_in() {
    const std::span<const Operand> q =
        backward() ? std::span<const Operand>(kBackwardQ) : kForwardQ;
    for (int32_t step = 0; step < world(); ++step) {
      for (int32_t from = 0; from < world(); ++from) {
        const int32_t to = (from + step) % world();
        const RankPlan& target = rank(to);
        if (!target.in_place)
          steps_.move(from, Space::home, to, Space::work,
                      boxes_of(q, rank(from).home_q.intersect(target.q), target.q_heads));
      }
      steps_.take();
    }
  }

  /// Heads of the forward that a rank holds together: the fewest that fill a launch which is worth
  /// it.
  int32_t heads_at_once() const {
    int64_t chains = 0, visits = 0, shares = 0;
    for (int32_t head = 0; head < heads(); ++head) {
      const Deal& deal = deal_of(head);
      for (const Share& share : deal.shares) chains += dist::chains_of(*share.part);
      if (!deal.shares.empty()) visits += whole().order(head).visits();
      shares += std::ssize(deal.shares);
    }
    shares = std::max<int64_t>(shares, 1);
    return std::min(dist::heads_of_launch(chains / shares, visits / shares), most_joined());
  }
  int32_t most_joined() const {
    const int32_t most = plan_.options.joined_heads;
    return most > 0 ? most : static_cast<int32_t>(problem().kv_heads);
  }

  void run_forward(Supply& supply) {
    while (supply.next()) {
      for (int32_t r = 0; r < world(); ++r)
        for (const int32_t head : supply.heads_of(r)) {
          const std::vector<Share>& shares = deal_of(head).shares;  // all of stage 0
          const auto own = std::ranges::lower_bound(shares, r, {}, &Share::rank);
          if (own != shares.end() && own->rank == r) plan_launch(head, *own);
        }
      launch();
    }
  }

  void plan_launch(int32_t head, const Share& share, std::vector<Carry> carries = {}) {
    parts_[static_cast<size_t>(share.rank)].push_back({head, share.part, std::move(carries)});
  }

  /// What was planned since the last launches, none of which waits for another.
  void launch() {
    for (int32_t r = 0; r < world(); ++r)
      for (Compute& compute : dist::join(std::exchange(parts_[static_cast<size_t>(r)], {}), rank(r),
                                         problem(), most_joined()))
        steps_.add(r, std::move(compute));
  }

  /// Heads follow each other: while sums of some are on their way, others fill the time.
  void run_backward() {
    struct Progress {
      int32_t begin = 0;
      size_t share = 0, end = 0;  // what comes next
    };
    std::vector<Progress> at;
    int32_t last = 0, started = 0;
    for (int32_t head = 0; head < heads(); ++head) {
      const Deal& deal = deal_of(head);
      const int32_t begin = starts_[static_cast<size_t>(head)];
      at_.emplace_back(deal.convoys.size(), -1);
      at.push_back({begin});
      last = std::max(last, begin + (deal.shares.empty() ? 0 : deal.shares.back().stage));
    }
    for (int32_t time = 0; time <= last; ++time) {
      while (started < heads() && at[static_cast<size_t>(started)].begin <= time) ++started;
      const std::vector<Progress> before = at;
      for (int32_t head = 0; head < started; ++head) {
        const std::vector<Share>& shares = deal_of(head).shares;
        Progress& now = at[static_cast<size_t>(head)];
        for (; now.share < shares.size() && shares[now.share].stage == time - now.begin;
             ++now.share)
          carry_on(head, shares[now.share]);
      }
      launch();
      for (int32_t head = 0; head < started; ++head) {
        const Deal& deal = deal_of(head);
        const size_t now = at[static_cast<size_t>(head)].share;
        for (size_t share = before[static_cast<size_t>(head)].share; share < now; ++share)
          for (const dist::Handing& handing : deal.shares[share].handings)
            hand_on(head, deal.shares[share].rank, handing);
      }
      steps_.take();
      for (int32_t head = 0; head < started; ++head) {
        const Deal& deal = deal_of(head);
        Progress& now = at[static_cast<size_t>(head)];
        for (; now.end < deal.ends.size() && deal.ends[now.end].stage == time - now.begin;
             ++now.end)
          add_tile(head, deal.ends[now.end]);
      }
      for (int32_t r = 0; r < world(); ++r) give_back(r);
    }
  }

  /// The blocks of sums that have been added, neighbours together.
  void give_back(int32_t r) {
    std::vector<int32_t>& added = added_[static_cast<size_t>(r)];
    std::ranges::sort(added);
    for (size_t i = 0, next = 0; i < added.size(); i = next) {
      while (next < added.size() && added[next] - added[i] == static_cast<int32_t>(next - i))
        ++next;
      blocks(r).give_back(added[i], static_cast<int32_t>(next - i));
    }
    added.clear();
  }

  const Convoy& convoy(int32_t head, int32_t number) const {
    return deal_of(head).convoys[static_cast<size_t>(number)];
  }
  /// The block of the first sum of a convoy; -1: it has not started.
  int32_t& block(int32_t head, int32_t number) {
    return at_[static_cast<size_t>(head)][static_cast<size_t>(number)];
  }
  Blocks& blocks(int32_t r) { return blocks_[static_cast<size_t>(r)]; }

  void carry_on(int32_t head, const Share& share) {
    int32_t fresh = 0;
    for (const int32_t number : share.convoys)
      if (block(head, number) < 0) fresh += convoy(head, number).count;
    blocks(share.rank).make_room(fresh);
    std::vector<Carry> carries;
    carries.reserve(share.convoys.size());
    for (const int32_t number : share.convoys) {
      int32_t& at = block(head, number);
      const int32_t in = at;
      if (in < 0) at = blocks(share.rank).take(convoy(head, number).count);
      carries.push_back({in, at});
    }
    plan_launch(head, share, std::move(carries));
  }

  /// Sends sums to where their chains go on, or end.
  void hand_on(int32_t head, int32_t from, const dist::Handing& handing) {
    std::vector<CarriedSum> sent, received;
    int32_t count = 0;
    for (const int32_t number : handing.convoys) count += convoy(head, number).count;
    blocks(handing.to).make_room(count);
    for (const int32_t number : handing.convoys) {
      const Convoy& each = convoy(head, number);
      int32_t& at = block(head, number);
      add_sums(sent, head, each, at);
      blocks(from).give_back(at, each.count);
      at = blocks(handing.to).take(each.count);
      add_sums(received, head, each, at);
    }
    steps_.hand_on(from, std::move(sent), handing.to, std::move(received));
  }

  static void add_sums(std::vector<CarriedSum>& sums, int32_t head, const Convoy& convoy,
                       int32_t first) {
    for (const auto& [offset, tile, count] : convoy.tiles) {
      const int32_t block = first + offset;
      if (!sums.empty() && sums.back().kv_tile + sums.back().count == tile &&
          sums.back().block + sums.back().count == block) {
        sums.back().count += count;
      } else {
        sums.push_back({head, tile, block, count});
      }
    }
  }

  void add_tile(int32_t head, const dist::TileEnd& end) {
    TileSums sums{head, end.kv_tile, {}};
    sums.blocks.reserve(end.chains.size());
    for (const int32_t chain : end.chains) {
      const int32_t number = deal_of(head).convoy_of[static_cast<size_t>(chain)];
      sums.blocks.push_back(block(head, number) + chain - convoy(head, number).chain);
      added_[static_cast<size_t>(end.rank)].push_back(sums.blocks.back());
    }
    steps_.add(end.rank, Add{std::move(sums)});
  }

  /// From the work space to the shards.
  void bring_home() {
    const std::span<const Operand> q =
        backward() ? std::span<const Operand>(kBackwardOut) : kForwardOut;
    for (int32_t step = 0; step < world(); ++step) {
      for (int32_t from = 0; from < world(); ++from) {
        const int32_t to = (from + step) % world();
        const Interval own = rank(from).q_heads;
        const auto r = static_cast<size_t>(from);
        std::vector<Box> boxes;
        HeldRows rows, keys;  // heads that are dealt alike have the same
        for (int32_t head = 0; head < heads(); ++head) {
          if (head == 0 ||
              dealt_[static_cast<size_t>(head)] != dealt_[static_cast<size_t>(head) - 1]) {
            if (!rank(from).in_place) rows = dealt(head).q[r].intersect(rank(to).home_q);
            if (backward()) keys = dealt(head).ended[r].intersect(rank(to).home_kv);
          }
          const int64_t kv_head = kv_head_of(head), group = problem().group();
          append(boxes, boxes_of(q, rows,
                                 {std::max(own.begin, kv_head * group),
                                  std::min(own.end, (kv_head + 1) * group)}));
          append(boxes, boxes_of(kKvOut, keys, {kv_head, kv_head + 1}));
        }
        steps_.move(from, Space::work, to, Space::home, std::move(boxes));
      }
      steps_.take();
    }
  }

  DistPlan plan_;
  const Sharding& sharding_;
  Homes homes_q_, homes_kv_;
  Grid grid_;
  Steps steps_{plan_};
  std::map<const HeadOrder*, dist::WholeOrder> orders_;
  std::map<std::pair<const HeadOrder*, Owners>, std::shared_ptr<const Deal>> deals_;
  // By ranks and batch entry.
  std::map<std::tuple<const Deal*, std::vector<int32_t>, int64_t>, std::shared_ptr<const Dealt>>
      known_;
  std::vector<std::shared_ptr<const Dealt>> dealt_;  // by head
  std::vector<int32_t> starts_;                      // backward: stages, by head
  std::vector<std::vector<int32_t>> at_;             // first block, by head and convoy
  std::vector<Blocks> blocks_;                       // by rank
  std::vector<std::vector<int32_t>> added_;          // blocks, by rank
  std::vector<std::vector<HeadPart>> parts_;         // by rank: not launched yet
};

}  // namespace

DistPlan make_dist_plan(const Plan& whole, const Sharding& sharding, const DistOptions& options) {
  return Builder(whole, sharding, options).build();
}

}  // namespace verbatim
