// make_dist_plan: deal every head's order, then write down the steps of all ranks in one sequence
// in which each comes after those it needs. A rank's list is its part of that sequence, so no rank
// can wait forever.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "dist/dealt.h"
#include "dist/free_order.h"
#include "dist/launches.h"
#include "dist/relay.h"
#include "dist/rooms.h"
#include "dist/starts.h"
#include "dist/steps.h"
#include "dist/strategy.h"
#include "dist/supply.h"
#include "verbatim/dist.h"

namespace verbatim {
namespace {

using dist::append;
using dist::Deal;
using dist::Dealt;
using dist::Grid;
using dist::in_rounds;
using dist::Launches;
using dist::Relay;
using dist::Rooms;
using dist::Share;
using dist::Steps;
using dist::Supply;

constexpr Operand kForwardQ[] = {Operand::q};
constexpr Operand kBackwardQ[] = {Operand::q, Operand::o, Operand::lse, Operand::dout};
constexpr Operand kForwardOut[] = {Operand::o, Operand::lse};
constexpr Operand kBackwardOut[] = {Operand::dq};
constexpr Operand kKvOut[] = {Operand::dk, Operand::dv};

class Builder {
 public:
  Builder(const Plan& whole, const Sharding& sharding, DistOptions options)
      : grid_(dist::make_grid(whole.problem, options)),
        sharding_(sharding),
        rooms_(whole.problem, grid_, sharding) {
    plan_.whole = whole;
    plan_.options = std::move(options);
    plan_.shard = sharding.name;
    plan_.ranks.resize(static_cast<size_t>(plan_.options.world));
  }

  DistPlan build() {
    if (backward() && whole().level == Level::not_guaranteed)
      dist::free_orders(plan_.whole, [this](int32_t head) {
        return rooms_.owners(plan_.whole.order(head), head);
      });
    deal_heads();
    lay_out();
    bring_in();
    Supply supply(
        plan_, grid_, steps_, [this](int32_t head) -> const Dealt& { return dealt(head); },
        all_at_once() ? Supply::kAll : heads_at_once());
    Launches launches(problem(), rooms_, steps_, most_joined());
    if (backward()) {
      for (RankPlan& rank : plan_.ranks) lay_out_ended(rank);
      supply.next();
      Relay(plan_, rooms_, steps_, launches, dealt_, *starts_).run();
    } else {
      run_forward(supply, launches);
    }
    bring_home();
    steps_.end();
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

  /// Chooses what starts together: all chains of one head, of two, four and so on, which fill a
  /// launch better, or as many chains of a head as keep a rank busy, so that the next begins
  /// sooner. Of equals the most heads.
  void deal_heads() {
    deal_heads(INT32_MAX);
    if (!backward()) return;
    starts_.emplace(problem(), rooms_, most_joined(), plan_.options.overlapped);
    for (int32_t beside = 1; beside < 2 * most_joined(); beside *= 2)
      starts_->try_beside(deals(), std::min(beside, most_joined()));
    if (std::ranges::all_of(deals(), [](const auto& deal) { return deal->is_at_once(); }))
      return starts_->save_memory(deals());
    const auto whole = dealt_;
    deal_heads(dist::kWorkers);
    if (!starts_->try_beside(deals(), 1)) dealt_ = whole;
  }

  dist::Deals deals() const {
    dist::Deals deals;
    for (const auto& dealt : dealt_) deals.push_back(dealt->deal);
    return deals;
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
    dist::Owners owners = rooms_.owners(*order, head);
    const std::vector<int32_t> rooms = dist::number_rooms(owners);
    const auto [at, fresh] = deals_.try_emplace({order.get(), std::move(owners)});
    if (fresh) {
      const dist::WholeOrder& own = orders_.try_emplace(order.get(), order).first->second;
      at->second = std::make_shared<const Deal>(dist::deal(own, at->first.second, together));
    }
    auto& dealt = known_[{at->second.get(), rooms, b}];
    if (!dealt)
      dealt = std::make_shared<const Dealt>(at->second, rooms, b, *order->tiles, rooms_, world());
    dealt_.push_back(dealt);
  }

  /// dK and dV lie as K and V where these are at most an eighth more: then chains that end where
  /// they start leave no f32 sums.
  static void lay_out_ended(RankPlan& rank) {
    if (8 * rank.kv.size() <= 9 * rank.ended.size() && rank.kv.intersect(rank.ended) == rank.ended)
      rank.ended = rank.kv;
  }

  /// What each rank holds.
  void lay_out() {
    const std::set<std::shared_ptr<const Dealt>> distinct(dealt_.begin(), dealt_.end());
    const auto all = [&](std::vector<HeldRows> Dealt::*rows, int32_t who) {
      std::vector<RowRange> ranges;
      for (const auto& dealt : distinct)
        for (const RowRange& range : ((*dealt).*rows)[static_cast<size_t>(who)].ranges())
          ranges.push_back(range);
      return HeldRows(std::move(ranges));
    };
    for (int32_t r = 0; r < world(); ++r) {
      RankPlan& each = rank(r);
      each.home_q = sharding_.q[static_cast<size_t>(r)];
      each.home_kv = sharding_.kv[static_cast<size_t>(r)];
      each.kv_heads = rooms_.kv_heads(r);
      each.ended = all(&Dealt::ended, r);
    }
    for (int32_t n = 0; n < rooms_.count(); ++n) {
      RankPlan& own = rank(rooms_.rank_of(n));
      Room& room = own.rooms.emplace_back(Room{all(&Dealt::q, n), rooms_.heads(n)});
      // Rows at home that no key is visible to are in no visit: they stay where they are.
      room.in_place = n < world() && grid_.inner == 1 && room.q.size() > 0 &&
                      room.q.intersect(own.home_q) == room.q;
      if (room.in_place) room.q = own.home_q;
    }
  }
  const Room& room(int32_t n) {
    return rank(rooms_.rank_of(n)).rooms[static_cast<size_t>(rooms_.number_of(n))];
  }

  /// Queries from the shards to the work space: those of other ranks that are visited, and the rows
  /// of tiles that reach into other shards.
  void bring_in() {
    const std::span<const Operand> q =
        backward() ? std::span<const Operand>(kBackwardQ) : kForwardQ;
    std::vector<Exchange> exchanges;
    for (int32_t n = 0; n < rooms_.count(); ++n)
      if (!room(n).in_place)
        for (const int32_t from : rooms_.holders(room(n).q))
          exchanges.push_back({from, rooms_.rank_of(n), n});
    for (const auto& [from, to, n] : in_rounds(std::move(exchanges), world()))
      steps_.move(from, Space::home, to, Space::work, q_boxes(q, from, n), rooms_.number_of(n));
    steps_.take();
  }

  /// What ranks send each other; `room`: whose query rows.
  struct Exchange {
    int32_t from, to, room;
  };
  /// What of each head lies at home and is visited, or ended, by `who`. `each`: heads of the
  /// operands by KV head, of which that one has `own`. Heads behind each other that are dealt alike
  /// share their boxes.
  std::vector<Box> boxes_at(std::span<const Operand> operands, const HeldRows& home,
                            std::vector<HeldRows> Dealt::*rows, int32_t who, int64_t each,
                            Interval own) const {
    std::vector<Box> boxes;
    for (int32_t begin = 0, end = 0; begin < heads(); begin = end) {
      while (end < heads() && &dealt(end) == &dealt(begin) && batch_of(end) == batch_of(begin))
        ++end;
      const int64_t first = kv_head_of(begin) * each, last = first + (end - begin) * each;
      append(boxes, operands, (dealt(begin).*rows)[static_cast<size_t>(who)].intersect(home),
             {std::max(own.begin, first), std::min(own.end, last)});
    }
    return boxes;
  }
  std::vector<Box> q_boxes(std::span<const Operand> operands, int32_t home, int32_t room) {
    return boxes_at(operands, rank(home).home_q, &Dealt::q, room, problem().group(),
                    rooms_.heads(room));
  }

  /// Whether K and V of all heads come before the first launch: where sums wait for each other, or
  /// ranks visit other heads, K and V that come in between would hold them up.
  bool all_at_once() const {
    return backward() || (grid_.route == dist::Route::needed && rooms_.count() > world());
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

  void run_forward(Supply& supply, Launches& launches) {
    while (supply.next()) {
      for (int32_t r = 0; r < world(); ++r)
        for (const int32_t head : supply.heads_of(r))
          for (const Share& share : deal_of(head).shares)  // all of stage 0
            if (rooms_.rank_of(share.room) == r) launches.plan(head, share);
      if (plan_.options.overlapped) supply.expect_next();
      launches.launch();
      steps_.behind();
    }
  }

  /// From the work space to the shards.
  void bring_home() {
    const std::span<const Operand> q =
        backward() ? std::span<const Operand>(kBackwardOut) : kForwardOut;
    std::vector<Exchange> exchanges;
    for (int32_t n = 0; n < rooms_.count(); ++n) {
      const int32_t from = rooms_.rank_of(n);
      std::set<int32_t> ranks;
      if (!room(n).in_place) ranks = rooms_.holders(room(n).q);
      if (backward() && n < world()) ranks.merge(rooms_.kv_holders(rank(n).ended));
      for (const int32_t to : ranks) exchanges.push_back({from, to, n});
    }
    for (const auto& [from, to, n] : in_rounds(std::move(exchanges), world())) {
      std::vector<Box> boxes;
      if (!room(n).in_place) boxes = q_boxes(q, to, n);
      if (backward() && n < world())
        append(boxes,
               boxes_at(kKvOut, rank(to).home_kv, &Dealt::ended, from, 1, rooms_.kv_heads(from)));
      steps_.move(from, Space::work, to, Space::home, std::move(boxes), rooms_.number_of(n));
    }
    steps_.take();
  }

  DistPlan plan_;
  Grid grid_;
  const Sharding& sharding_;
  Rooms rooms_;
  Steps steps_{plan_};
  std::map<const HeadOrder*, dist::WholeOrder> orders_;
  std::map<std::pair<const HeadOrder*, dist::Owners>, std::shared_ptr<const Deal>> deals_;
  // By rooms and batch entry.
  std::map<std::tuple<const Deal*, std::vector<int32_t>, int64_t>, std::shared_ptr<const Dealt>>
      known_;
  std::vector<std::shared_ptr<const Dealt>> dealt_;  // by head
  std::optional<dist::Starts> starts_;               // of a backward
};

}  // namespace

DistPlan make_dist_plan(const Plan& whole, const Sharding& sharding, const DistOptions& options) {
  return Builder(whole, sharding, options).build();
}

}  // namespace verbatim
