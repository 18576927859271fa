// make_dist_plan: deal every head's order, then write down the steps of all ranks in one sequence
// in which each comes after those it needs. A rank's list is its part of that sequence, so no rank
// can wait forever.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "dist/deal.h"
#include "dist/strategy.h"
#include "verbatim/dist.h"

namespace verbatim {
namespace {

using dist::Deal;
using dist::Grid;
using dist::Hop;
using dist::Owners;
using dist::Share;

constexpr Operand kForwardQ[] = {Operand::q};
constexpr Operand kBackwardQ[] = {Operand::q, Operand::o, Operand::lse, Operand::dout};
constexpr Operand kForwardOut[] = {Operand::o, Operand::lse};
constexpr Operand kBackwardOut[] = {Operand::dq};
constexpr Operand kKv[] = {Operand::k, Operand::v};
constexpr Operand kKvOut[] = {Operand::dk, Operand::dv};

/// The rank that holds a position.
class Homes {
 public:
  explicit Homes(const std::vector<HeldRows>& ranks) {
    for (size_t r = 0; r < ranks.size(); ++r)
      for (const RowRange& range : ranks[r].ranges())
        at_[{range.batch, range.rows.begin}] = static_cast<int32_t>(r);
  }
  int32_t of(int64_t batch, int64_t position) const {
    return std::prev(at_.upper_bound({batch, position}))->second;
  }

 private:
  std::map<std::pair<int64_t, int64_t>, int32_t> at_;  // by batch entry and first position
};

/// Boxes of `operands` over rows and heads.
std::vector<Box> boxes_of(std::span<const Operand> operands, const HeldRows& rows, Interval heads) {
  std::vector<Box> boxes;
  if (heads.begin >= heads.end) return boxes;
  for (const Operand operand : operands)
    for (const RowRange& range : rows.ranges()) boxes.push_back({operand, range, heads});
  return boxes;
}

void append(std::vector<Box>& boxes, std::vector<Box> more) {
  boxes.insert(boxes.end(), more.begin(), more.end());
}

class Builder {
 public:
  Builder(const Plan& whole, const Sharding& sharding, const DistOptions& options)
      : sharding_(sharding), homes_q_(sharding.q), homes_kv_(sharding.kv) {
    plan_.whole = whole;
    plan_.options = options;
    plan_.shard = sharding.name;
    grid_ = dist::make_grid(whole.problem, plan_.options);
    hops_ = dist::hops(grid_);
    plan_.ranks.resize(static_cast<size_t>(options.world));
    free_blocks_.resize(plan_.ranks.size());
  }

  DistPlan build() {
    for (int32_t head = 0; head < heads(); ++head) deal_head(head);
    lay_out();
    bring_in();
    if (whole().pass == Pass::forward) {
      for (int32_t head = 0; head < heads(); ++head) {
        pass_on(head);
        for (const Share& share : deal_of(head).shares) launch(head, share);
      }
    } else {
      run_backward();
    }
    bring_home();
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
  const Deal& deal_of(int32_t head) const { return *deals_[static_cast<size_t>(head)]; }

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

  void deal_head(int32_t head) {
    const HeadOrder& order = whole().order(head);
    const int64_t b = batch_of(head), first = kv_head_of(head) * order.group;
    Owners owners;
    for (int32_t g = 0; g < order.group; ++g)
      for (int32_t t = 0; t < order.tiles->q_tiles(); ++t)
        owners.rows.push_back(
            owner(homes_q_.of(b, order.tiles->q_edges[static_cast<size_t>(t)]), first + g));
    for (int32_t t = 0; t < order.tiles->kv_tiles(); ++t)
      owners.tiles.push_back(
          owner(homes_kv_.of(b, order.tiles->kv_edges[static_cast<size_t>(t)]), first));
    const auto [at, fresh] = known_.try_emplace({&order, std::move(owners)});
    if (fresh) at->second = std::make_shared<const Deal>(dist::deal(order, at->first.second));
    deals_.push_back(at->second);
  }

  static RowRange rows_of(const std::vector<int64_t>& edges, int64_t b, int32_t tile) {
    return {b, {edges[static_cast<size_t>(tile)], edges[static_cast<size_t>(tile) + 1]}};
  }

  /// Rows that a rank needs of a head: of the query tiles and KV tiles of its shares.
  struct Needs {
    std::vector<HeldRows> q, kv;  // by rank
  };
  Needs needs_of(int32_t head) const {
    std::vector<std::vector<RowRange>> q(plan_.ranks.size()), kv(plan_.ranks.size());
    for (const Share& share : deal_of(head).shares) {
      const HeadOrder& order = *share.order;
      auto& kept = (backward() ? kv : q)[static_cast<size_t>(share.rank)];
      auto& streamed = (backward() ? q : kv)[static_cast<size_t>(share.rank)];
      const auto& kept_edges = backward() ? order.tiles->kv_edges : order.tiles->q_edges;
      const auto& streamed_edges = backward() ? order.tiles->q_edges : order.tiles->kv_edges;
      for (const Chain& chain : order.chains)
        kept.push_back(rows_of(kept_edges, batch_of(head), chain.tile));
      for (const Run& run : order.runs) {
        // Tiles behind each other are one range.
        const int32_t ranges = std::abs(run.step) == 1 ? 1 : run.count;
        for (int32_t i = 0; i < ranges; ++i) {
          const auto [first, last] =
              std::minmax({run.tile(i), run.tile(ranges == 1 ? run.count - 1 : i)});
          streamed.push_back({batch_of(head),
                              {streamed_edges[static_cast<size_t>(first)],
                               streamed_edges[static_cast<size_t>(last) + 1]}});
        }
      }
    }
    Needs needs;
    for (auto& rows : q) needs.q.emplace_back(std::move(rows));
    for (auto& rows : kv) needs.kv.emplace_back(std::move(rows));
    return needs;
  }

  HeldRows group_kv(int32_t outer) const {
    std::vector<RowRange> rows;
    for (int32_t i = 0; i < grid_.inner; ++i)
      for (const RowRange& range : sharding_.kv[static_cast<size_t>(grid_.rank(outer, i))].ranges())
        rows.push_back(range);
    return HeldRows(std::move(rows));
  }

  /// What each rank holds.
  void lay_out() {
    std::vector<std::vector<RowRange>> q(plan_.ranks.size()), kv(plan_.ranks.size());
    for (int32_t o = 0; o < grid_.outer; ++o) group_kv_.push_back(group_kv(o));
    const auto add = [](std::vector<RowRange>& all, const HeldRows& rows) {
      all.insert(all.end(), rows.ranges().begin(), rows.ranges().end());
    };
    for (int32_t head = 0; head < heads(); ++head) {
      needs_.push_back(needs_of(head));
      for (size_t r = 0; r < plan_.ranks.size(); ++r) {
        add(q[r], needs_.back().q[r]);
        add(kv[r], needs_.back().kv[r]);
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
      for (int32_t o = 0; o < grid_.outer; ++o)
        if (o == grid_.outer_of(r) || grid_.route != dist::Route::needed)
          add(kv[i], group_kv_[static_cast<size_t>(o)]);
      each.kv = HeldRows(std::move(kv[i]));
      // Rows at home that no key is visible to are in no visit: they stay where they are.
      each.in_place = grid_.inner == 1 && each.q.intersect(each.home_q) == each.q;
      if (each.in_place) each.q = each.home_q;
    }
  }

  /// Moves boxes from rank to rank.
  void move(int32_t from, Space source, int32_t to, Space target, std::vector<Box> boxes) {
    if (boxes.empty()) return;
    if (from == to) {
      rank(to).steps.emplace_back(Copy{source, target, std::move(boxes)});
      return;
    }
    rank(from).steps.emplace_back(Send{to, messages_, source, boxes});
    rank(to).steps.emplace_back(Receive{from, messages_, target, std::move(boxes)});
    ++messages_;
  }

  /// From the shards to the work space: all-to-all inside a group; of queries also the rows of
  /// tiles that reach into other shards.
  void bring_in() {
    const std::span<const Operand> q =
        backward() ? std::span<const Operand>(kBackwardQ) : kForwardQ;
    for (int32_t step = 0; step < world(); ++step) {
      for (int32_t from = 0; from < world(); ++from) {
        const int32_t to = (from + step) % world();
        const RankPlan& target = rank(to);
        std::vector<Box> boxes;
        if (!target.in_place)
          boxes = boxes_of(q, rank(from).home_q.intersect(target.q), target.q_heads);
        if (grid_.outer_of(from) == grid_.outer_of(to))
          append(boxes, boxes_of(kKv, rank(from).home_kv, target.kv_heads));
        move(from, Space::home, to, Space::work, std::move(boxes));
      }
    }
  }

  /// K and V of one head on their way from group to group.
  void pass_on(int32_t head) {
    const int64_t kv_head = kv_head_of(head);
    for (const Hop& hop : hops_) {
      const HeldRows held(of_entry(group_kv_[static_cast<size_t>(hop.held)], batch_of(head)));
      for (int32_t i = 0; i < grid_.inner; ++i) {
        const int32_t from = grid_.rank(hop.from, i), to = grid_.rank(hop.to, i);
        if (kv_head < rank(to).kv_heads.begin || kv_head >= rank(to).kv_heads.end) continue;
        const bool all = grid_.route != dist::Route::needed;
        const HeldRows rows =
            all ? held
                : held.intersect(needs_[static_cast<size_t>(head)].kv[static_cast<size_t>(to)]);
        move(from, Space::work, to, Space::work, boxes_of(kKv, rows, {kv_head, kv_head + 1}));
      }
    }
  }

  static std::vector<RowRange> of_entry(const HeldRows& rows, int64_t batch) {
    std::vector<RowRange> found;
    for (const RowRange& range : rows.ranges())
      if (range.batch == batch) found.push_back(range);
    return found;
  }

  void launch(int32_t head, const Share& share, std::vector<Carry> carries = {}) {
    rank(share.rank).steps.emplace_back(Compute{{head, share.order, std::move(carries)}});
  }

  /// Heads follow each other, one stage behind: while sums of one are on their way, others fill the
  /// time.
  void run_backward() {
    int32_t last = 0;
    for (int32_t head = 0; head < heads(); ++head) {
      at_.emplace_back(deal_of(head).chains.size());
      if (!deal_of(head).shares.empty())
        last = std::max(last, head + deal_of(head).shares.back().stage);
    }
    std::vector<size_t> next(static_cast<size_t>(heads()));  // share of each head
    for (int32_t time = 0; time <= std::max(last, heads() - 1); ++time) {
      if (time < heads()) pass_on(time);
      const int32_t started = std::min(time + 1, heads());
      std::vector<size_t> first = next;
      for (int32_t head = 0; head < started; ++head) {
        const Deal& deal = deal_of(head);
        size_t& share = next[static_cast<size_t>(head)];
        for (; share < deal.shares.size() && deal.shares[share].stage == time - head; ++share)
          carry_on(head, share);
      }
      for (int32_t head = 0; head < started; ++head) {
        const size_t h = static_cast<size_t>(head);
        for (size_t share = first[h]; share < next[h]; ++share) hand_on(head, share);
        if (first[h] < next[h]) add_tiles(head, time - head);
      }
    }
  }

  /// Where the sum of a chain is: a block of a rank.
  struct Held {
    int32_t rank = -1, block = -1;
  };
  Held& held(int32_t head, int32_t chain) {
    return at_[static_cast<size_t>(head)][static_cast<size_t>(chain)];
  }

  int32_t take_block(int32_t r) {
    auto& free = free_blocks_[static_cast<size_t>(r)];
    if (free.empty()) return rank(r).blocks++;
    const int32_t block = free.back();
    free.pop_back();
    return block;
  }
  void give_back(const Held& sum) {
    free_blocks_[static_cast<size_t>(sum.rank)].push_back(sum.block);
  }

  void carry_on(int32_t head, size_t number) {
    const Share& share = deal_of(head).shares[number];
    std::vector<Carry> carries;
    for (const int32_t chain : share.chain_of) {
      Held& sum = held(head, chain);
      const int32_t in = sum.block;
      if (in < 0) sum = {share.rank, take_block(share.rank)};
      carries.push_back({in, sum.block});
    }
    launch(head, share, std::move(carries));
  }

  /// Sends the sums of a share to the ranks where their chains go on, a message for each.
  void hand_on(int32_t head, size_t number) {
    const Deal& deal = deal_of(head);
    const Share& share = deal.shares[number];
    std::map<int32_t, std::vector<int32_t>> to;  // chains, by rank
    for (const int32_t chain : share.chain_of) {
      const auto& links = deal.links[static_cast<size_t>(chain)];
      const auto here = std::ranges::find(links, static_cast<int32_t>(number));
      const int32_t rank = here + 1 != links.end()
                               ? deal.shares[static_cast<size_t>(*(here + 1))].rank
                               : end_of(deal, chain).rank;
      if (rank != share.rank) to[rank].push_back(chain);
    }
    for (const auto& [rank, chains] : to) send_sums(head, chains, rank);
  }

  void send_sums(int32_t head, const std::vector<int32_t>& chains, int32_t to) {
    const int32_t from = held(head, chains.front()).rank;
    Send send{to, messages_, Space::work, {}};
    Receive receive{from, messages_, Space::work, {}};
    ++messages_;
    for (const int32_t chain : chains) {
      Held& sum = held(head, chain);
      const int32_t tile = deal_of(head).chains[static_cast<size_t>(chain)].tile;
      send.sums.push_back({head, tile, sum.block});
      give_back(sum);
      sum = {to, take_block(to)};
      receive.sums.push_back({head, tile, sum.block});
    }
    rank(from).steps.emplace_back(std::move(send));
    rank(to).steps.emplace_back(std::move(receive));
  }

  static const dist::TileEnd& end_of(const Deal& deal, int32_t chain) {
    return deal.ends[static_cast<size_t>(deal.chains[static_cast<size_t>(chain)].tile)];
  }

  /// Ends the sums of the tiles whose parts are complete at `stage`.
  void add_tiles(int32_t head, int32_t stage) {
    const Deal& deal = deal_of(head);
    for (size_t tile = 0; tile < deal.ends.size(); ++tile) {
      const dist::TileEnd& end = deal.ends[tile];
      if (end.stage != stage) continue;
      TileSums sums{head, static_cast<int32_t>(tile), {}};
      for (const int32_t chain : end.chains) {
        sums.blocks.push_back(held(head, chain).block);
        give_back(held(head, chain));
      }
      rank(end.rank).steps.emplace_back(Add{std::move(sums)});
    }
  }

  std::vector<HeldRows> ended_rows(int32_t head) const {
    std::vector<std::vector<RowRange>> rows(plan_.ranks.size());
    const std::vector<int64_t>& edges = whole().order(head).tiles->kv_edges;
    const Deal& deal = deal_of(head);
    for (size_t tile = 0; tile < deal.ends.size(); ++tile)
      rows[static_cast<size_t>(deal.ends[tile].rank)].push_back(
          rows_of(edges, batch_of(head), static_cast<int32_t>(tile)));
    std::vector<HeldRows> held;
    for (auto& each : rows) held.emplace_back(std::move(each));
    return held;
  }

  /// From the work space to the shards.
  void bring_home() {
    const std::span<const Operand> q =
        backward() ? std::span<const Operand>(kBackwardOut) : kForwardOut;
    std::vector<std::vector<HeldRows>> ended;  // rows of dK and dV, by head and rank
    for (int32_t head = 0; head < heads(); ++head) ended.push_back(ended_rows(head));
    for (int32_t step = 0; step < world(); ++step) {
      for (int32_t from = 0; from < world(); ++from) {
        const int32_t to = (from + step) % world();
        std::vector<Box> boxes;
        for (int32_t head = 0; head < heads(); ++head) {
          const auto h = static_cast<size_t>(head), r = static_cast<size_t>(from);
          const int64_t kv_head = kv_head_of(head), group = problem().group();
          const Interval own = rank(from).q_heads;
          const Interval q_heads{std::max(own.begin, kv_head * group),
                                 std::min(own.end, (kv_head + 1) * group)};
          if (!rank(from).in_place)
            append(boxes, boxes_of(q, needs_[h].q[r].intersect(rank(to).home_q), q_heads));
          if (backward())
            append(boxes, boxes_of(kKvOut, ended[h][r].intersect(rank(to).home_kv),
                                   {kv_head, kv_head + 1}));
        }
        move(from, Space::work, to, Space::home, std::move(boxes));
      }
    }
  }

  DistPlan plan_;
  const Sharding& sharding_;
  Homes homes_q_, homes_kv_;
  Grid grid_;
  std::vector<Hop> hops_;
  std::map<std::pair<const HeadOrder*, Owners>, std::shared_ptr<const Deal>> known_;
  std::vector<std::shared_ptr<const Deal>> deals_;  // by head
  std::vector<Needs> needs_;                        // by head
  std::vector<HeldRows> group_kv_;                  // by outer index
  std::vector<std::vector<Held>> at_;               // by head and chain
  std::vector<std::vector<int32_t>> free_blocks_;   // by rank
  int64_t messages_ = 0;
};

}  // namespace

DistPlan make_dist_plan(const Plan& whole, const Sharding& sharding, const DistOptions& options) {
  return Builder(whole, sharding, options).build();
}

}  // namespace verbatim
