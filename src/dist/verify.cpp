// The proof of a distributed plan: all ranks are played step by step on what they know instead of
// numbers. Which rows are there, how far each sum has come, what each block and message holds.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "dist/deal.h"
#include "dist/sizes.h"
#include "verbatim/dist.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using dist::WholeChain;

/// A sum of dK and dV: visits of one chain, from its first.
struct SumState {
  int32_t head = -1;           // -1: none
  int32_t chain = -1;          // into whole_chains() of its head; of the forward into its chains
  int32_t run = 0, visit = 0;  // what comes next
};

/// Which rows of an operand are there, by row in memory and head.
class Present {
 public:
  Present() = default;
  Present(int64_t rows, int64_t heads)
      : heads_(heads), there_(static_cast<size_t>(rows * heads), false) {}
  std::vector<bool>::reference at(int64_t row, int64_t head) {
    return there_[static_cast<size_t>(row * heads_ + head)];
  }

 private:
  int64_t heads_ = 0;
  std::vector<bool> there_;
};

/// What a head has had done, on whatever rank.
struct HeadState {
  std::vector<WholeChain> chains;
  std::vector<bool> started;      // by chain
  std::vector<bool> ended;        // by KV tile
  std::vector<int32_t> row_next;  // next addend of each dQ row, [group, q_tiles]
  std::vector<int32_t> row_rank;  // the rank whose memory it is in
};

struct Message {
  std::vector<Box> boxes;
  std::vector<CarriedSum> sums;
  std::vector<SumState> states;
};

class Proof {
 public:
  explicit Proof(const DistPlan& plan) : plan_(plan), whole_(plan.whole), at_(plan.ranks.size()) {
    for (int32_t head = 0; head < static_cast<int32_t>(whole_.order_of_head.size()); ++head)
      heads_.push_back(state_of(whole_.order(head)));
    for (int32_t r = 0; r < world(); ++r) {
      const RankPlan& own = rank(r);
      blocks_.emplace_back(static_cast<size_t>(own.blocks));
      for (const Space space : {Space::home, Space::work}) {
        std::vector<Present>& operands = there_.emplace_back();
        for (int o = 0; o < kOperands; ++o) {
          const auto operand = static_cast<Operand>(o);
          operands.emplace_back(held(r, space, operand).size(), heads_in(r, space, operand).end);
        }
      }
      begin(r);
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (r_ = 0; r_ < world(); ++r_) {
        size_t& step = at_[static_cast<size_t>(r_)];
        while (step < rank(r_).steps.size() &&
               std::visit([this](const auto& s) { return make(s); }, rank(r_).steps[step])) {
          ++step;
          moved = true;
        }
      }
    }
    for (r_ = 0; r_ < world(); ++r_)
      if (at_[static_cast<size_t>(r_)] < rank(r_).steps.size()) fail("waits forever");
    if (!messages_.empty()) {
      const auto& [from, to, number] = messages_.begin()->first;
      r_ = to;
      fail(fmt::format("never takes message {} of rank {}", number, from));
    }
    check_complete();
  }

 private:
  int32_t world() const { return static_cast<int32_t>(plan_.ranks.size()); }
  const RankPlan& rank(int32_t r) const { return plan_.ranks[static_cast<size_t>(r)]; }
  bool backward() const { return whole_.pass == Pass::backward; }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::invalid_plan, "dist.verify",
                fmt::format("rank {}, step {}: {}", r_, at_[static_cast<size_t>(r_)], what));
  }
  template <class... Args>
  void require(bool holds, fmt::format_string<Args...> text, Args&&... args) const {
    if (!holds) fail(fmt::format(text, std::forward<Args>(args)...));
  }

  static HeadState state_of(const HeadOrder& order) {
    HeadState state;
    if (order.pass == Pass::backward) state.chains = dist::whole_chains(order);
    const size_t chains = order.pass == Pass::backward ? state.chains.size() : order.chains.size();
    const auto rows =
        static_cast<size_t>(order.group) * static_cast<size_t>(order.tiles->q_tiles());
    state.started.resize(chains);
    state.ended.resize(static_cast<size_t>(order.tiles->kv_tiles()));
    state.row_next.resize(rows);
    state.row_rank.resize(rows, -1);
    return state;
  }

  // --- What is where ----------------------------------------------------------------------------

  const HeldRows& held(int32_t r, Space space, Operand operand) const {
    const RankPlan& own = rank(r);
    if (dist::on_kv_axis(operand)) return space == Space::home ? own.home_kv : own.kv;
    return space == Space::home ? own.home_q : own.q;
  }
  Interval heads_in(int32_t r, Space space, Operand operand) const {
    const bool kv = dist::on_kv_axis(operand);
    if (space == Space::home) return {0, kv ? whole_.problem.kv_heads : whole_.problem.q_heads};
    return kv ? rank(r).kv_heads : rank(r).q_heads;
  }
  Present& there(int32_t r, Space space, Operand operand) {
    const bool in_place = space == Space::work && rank(r).in_place && !dist::on_kv_axis(operand);
    const size_t index = 2 * static_cast<size_t>(r) + (space == Space::home || in_place ? 0 : 1);
    return there_[index][static_cast<size_t>(operand)];
  }

  /// Calls f for every row and head of a box in the memory of this rank.
  template <class F>
  void each(Space space, const Box& box, F&& f) {
    const HeldRows& rows = held(r_, space, box.operand);
    const Interval heads = heads_in(r_, space, box.operand);
    require(rows.holds(box.range.batch, box.range.rows) && heads.begin <= box.heads.begin &&
                box.heads.end <= heads.end,
            "has no memory for rows {} to {} of {}", box.range.rows.begin, box.range.rows.end,
            to_string(box.operand));
    Present& present = there(r_, space, box.operand);
    const int64_t first = rows.at(box.range.batch, box.range.rows.begin);
    for (int64_t l = 0; l < box.range.rows.end - box.range.rows.begin; ++l)
      for (int64_t h = box.heads.begin; h < box.heads.end; ++h) f(present.at(first + l, h));
  }
  void read(Space space, const Box& box) {
    each(space, box, [&](auto&& row) {
      require(row, "reads {} of rows {} to {} before it is there", to_string(box.operand),
              box.range.rows.begin, box.range.rows.end);
    });
  }
  void write(Space space, const Box& box) {
    each(space, box, [&](auto&& row) {
      require(!row, "gets {} of rows {} to {} twice", to_string(box.operand), box.range.rows.begin,
              box.range.rows.end);
      row = true;
    });
  }

  static bool is_input(Pass pass, Operand operand) {
    if (pass == Pass::forward)
      return operand == Operand::q || operand == Operand::k || operand == Operand::v;
    return operand < Operand::dq;
  }

  /// Inputs are in the shards, and zeros in the dQ of rows that no key is visible to.
  void begin(int32_t r) {
    r_ = r;
    for (int o = 0; o < kOperands; ++o) {
      const auto operand = static_cast<Operand>(o);
      if (!is_input(whole_.pass, operand)) continue;
      for (const RowRange& range : held(r, Space::home, operand).ranges())
        each(Space::home, {operand, range, heads_in(r, Space::home, operand)},
             [](auto&& row) { row = true; });
    }
    if (!backward()) return;
    for (int32_t head = 0; head < static_cast<int32_t>(heads_.size()); ++head) {
      const HeadOrder& order = whole_.order(head);
      for (int32_t t = 0; t < order.tiles->q_tiles(); ++t) {
        if (order.row_addends[static_cast<size_t>(t)] > 0) continue;
        const HeldRows own =
            rank(r).home_q.intersect(HeldRows({rows_of(order.tiles->q_edges, head, t)}));
        for (const RowRange& range : own.ranges())
          each(Space::home, {Operand::dq, range, group_heads(head)},
               [](auto&& row) { row = true; });
      }
    }
  }

  Interval group_heads(int32_t head) const {
    const int64_t kv_head = head % whole_.problem.kv_heads, group = whole_.problem.group();
    return {kv_head * group, (kv_head + 1) * group};
  }
  /// Box of a tile of a head: of query head `q_head` of its group, or of the KV head.
  Box q_box(Operand operand, int32_t head, int32_t q_head, int32_t tile) const {
    const std::vector<int64_t>& edges = whole_.order(head).tiles->q_edges;
    const int64_t h = group_heads(head).begin + q_head;
    return {operand, rows_of(edges, head, tile), {h, h + 1}};
  }
  Box kv_box(Operand operand, int32_t head, int32_t tile) const {
    const std::vector<int64_t>& edges = whole_.order(head).tiles->kv_edges;
    const int64_t h = head % whole_.problem.kv_heads;
    return {operand, rows_of(edges, head, tile), {h, h + 1}};
  }
  RowRange rows_of(const std::vector<int64_t>& edges, int32_t head, int32_t tile) const {
    const auto t = static_cast<size_t>(tile);
    return {head / whole_.problem.kv_heads, {edges[t], edges[t + 1]}};
  }

  /// What a visit reads of a query tile or a KV tile; what was there once stays there.
  void read_q(int32_t head, int32_t q_head, int32_t tile) {
    const HeadOrder& order = whole_.order(head);
    const auto place = static_cast<size_t>(q_head) * static_cast<size_t>(order.tiles->q_tiles()) +
                       static_cast<size_t>(tile);
    if (!first_time(seen_q_[{r_, head}], place)) return;
    for (int o = 0; o < kOperands; ++o) {
      const auto operand = static_cast<Operand>(o);
      if (is_input(whole_.pass, operand) && !dist::on_kv_axis(operand))
        read(Space::work, q_box(operand, head, q_head, tile));
    }
  }
  void read_kv(int32_t head, int32_t tile) {
    if (!first_time(seen_kv_[{r_, head}], static_cast<size_t>(tile))) return;
    for (const Operand operand : {Operand::k, Operand::v})
      read(Space::work, kv_box(operand, head, tile));
  }
  static bool first_time(std::vector<bool>& seen, size_t place) {
    if (place >= seen.size()) seen.resize(2 * place + 64);
    const bool first = !seen[place];
    seen[place] = true;
    return first;
  }

  // --- Steps: false where a message is missing --------------------------------------------------

  SumState& block(int32_t number) {
    auto& blocks = blocks_[static_cast<size_t>(r_)];
    require(0 <= number && number < static_cast<int32_t>(blocks.size()), "has no block {}", number);
    return blocks[static_cast<size_t>(number)];
  }
  /// The sum in a block, which is free then.
  SumState take(int32_t number) {
    SumState& state = block(number);
    require(state.head >= 0, "takes a sum from block {} before it is there", number);
    return std::exchange(state, SumState{});
  }
  void put(int32_t number, const SumState& state) {
    require(block(number).head < 0, "puts a second sum into block {}", number);
    block(number) = state;
  }

  bool make(const Send& send) {
    Message message{send.boxes, send.sums, {}};
    for (const Box& box : send.boxes) read(send.space, box);
    for (const CarriedSum& sum : send.sums) {
      const SumState state = take(sum.block);
      require(state.head == sum.head && heads_[static_cast<size_t>(state.head)]
                                                .chains[static_cast<size_t>(state.chain)]
                                                .tile == sum.kv_tile,
              "block {} holds another sum than that of KV tile {}", sum.block, sum.kv_tile);
      message.states.push_back(state);
    }
    require(messages_.try_emplace({r_, send.to, send.message}, std::move(message)).second,
            "sends message {} twice", send.message);
    return true;
  }

  bool make(const Receive& receive) {
    const auto found = messages_.find({receive.from, r_, receive.message});
    if (found == messages_.end()) return false;
    const Message& message = found->second;
    const auto same = [](const CarriedSum& a, const CarriedSum& b) {
      return a.head == b.head && a.kv_tile == b.kv_tile;
    };
    require(message.boxes == receive.boxes && std::ranges::equal(message.sums, receive.sums, same),
            "message {} of rank {} holds something else", receive.message, receive.from);
    for (const Box& box : receive.boxes) write(receive.space, box);
    for (size_t i = 0; i < receive.sums.size(); ++i) put(receive.sums[i].block, message.states[i]);
    messages_.erase(found);
    return true;
  }

  bool make(const Copy& copy) {
    for (const Box& box : copy.boxes) {
      read(copy.from, box);
      write(copy.to, box);
    }
    return true;
  }

  bool make(const Compute& compute) {
    const Piece& piece = compute.piece;
    if (backward()) {
      check_backward(piece);
    } else {
      for (const Chain& chain : piece.order->chains) check_forward(piece, chain);
    }
    return true;
  }

  /// One chain of the forward: whole, with all that it reads.
  void check_forward(const Piece& piece, const Chain& chain) {
    const HeadOrder& order = whole_.order(piece.head);
    HeadState& state = heads_[static_cast<size_t>(piece.head)];
    const auto runs = [](const HeadOrder& from, const Chain& of) {
      return std::span(from.runs).subspan(static_cast<size_t>(of.run_begin),
                                          static_cast<size_t>(of.run_end - of.run_begin));
    };
    size_t c = 0;
    while (c < order.chains.size() &&
           (order.chains[c].tile != chain.tile || order.chains[c].q_head != chain.q_head ||
            order.chains[c].addend != chain.addend))
      ++c;
    const std::string name = fmt::format("chain {} of tile (head {}, q_head {}, q_tile {})",
                                         chain.addend, piece.head, chain.q_head, chain.tile);
    require(c < order.chains.size() && order.chains[c].addends == chain.addends &&
                std::ranges::equal(runs(order, order.chains[c]), runs(*piece.order, chain)),
            "{} is not the plan's", name);
    require(!state.started[c], "{} is made twice", name);
    state.started[c] = true;
    read_q(piece.head, chain.q_head, chain.tile);
    for (const Run& run : runs(*piece.order, chain))
      for (int32_t i = 0; i < run.count; ++i) read_kv(piece.head, run.tile(i));
    // Parts of a row meet in memory of the launch.
    if (chain.addend > 0) {
      require(state.started[c - 1], "{} comes before the one that it is merged with", name);
    }
    if (chain.addend + 1 < chain.addends) return;
    for (const Operand operand : {Operand::o, Operand::lse})
      write(Space::work, q_box(operand, piece.head, chain.q_head, chain.tile));
  }

  /// The chain that a piece starts with `first` (null: without a visit).
  SumState start(int32_t head, int32_t tile, const Run* first) {
    const HeadOrder& order = whole_.order(head);
    HeadState& state = heads_[static_cast<size_t>(head)];
    bool twice = false;
    for (size_t c = 0; c < state.chains.size(); ++c) {
      const WholeChain& chain = state.chains[c];
      if (chain.tile != tile || (chain.run_begin == chain.run_end) != (first == nullptr)) continue;
      if (first) {
        const Run& run = order.runs[static_cast<size_t>(chain.run_begin)];
        if (run.q_head != first->q_head || run.first != first->first) continue;
      }
      twice = state.started[c];
      if (twice) continue;  // there may be another: parts of a tile without a visit are alike
      state.started[c] = true;
      return {head, static_cast<int32_t>(c), chain.run_begin, 0};
    }
    fail(fmt::format("starts KV tile {} of head {} {}", tile, head,
                     twice ? "twice" : "in the middle"));
  }

  /// The addends that rows get in a launch.
  struct Rows {
    explicit Rows(size_t rows) : least(rows), count(rows) {}
    std::vector<int32_t> least, count;  // [group, q_tiles]
    std::vector<size_t> met;
  };

  /// Chains go on where they were, and every row takes its next addends, each once. Then nothing
  /// waits in a cycle, for these visits are part of a plan without one.
  void check_backward(const Piece& piece) {
    const HeadOrder& own = *piece.order;
    HeadState& head = heads_[static_cast<size_t>(piece.head)];
    require(piece.carries.size() == own.chains.size(), "has not one carry for each chain");
    Rows rows(head.row_next.size());
    for (size_t k = 0; k < own.chains.size(); ++k) {
      const Chain& chain = own.chains[k];
      const Run* first = chain.run_begin < chain.run_end
                             ? &own.runs[static_cast<size_t>(chain.run_begin)]
                             : nullptr;
      SumState state = piece.carries[k].in < 0 ? start(piece.head, chain.tile, first)
                                               : take(piece.carries[k].in);
      require(state.head == piece.head &&
                  head.chains[static_cast<size_t>(state.chain)].tile == chain.tile,
              "KV tile {} goes on from another's sum", chain.tile);
      if (first) read_kv(piece.head, chain.tile);
      for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
        const Run& run = own.runs[static_cast<size_t>(r)];
        for (int32_t i = 0; i < run.count; ++i) visit(piece.head, state, run, i, rows);
      }
      put(piece.carries[k].out, state);
    }
    for (const size_t row : rows.met) {
      const auto q_tiles = static_cast<size_t>(own.tiles->q_tiles());
      const auto q_head = static_cast<int32_t>(row / q_tiles);
      const auto q_tile = static_cast<int32_t>(row % q_tiles);
      const std::string name =
          fmt::format("row (head {}, q_head {}, q_tile {})", piece.head, q_head, q_tile);
      require(rows.least[row] == head.row_next[row], "{} has {} addends and gets number {}", name,
              head.row_next[row], rows.least[row]);
      require(head.row_rank[row] == r_ || head.row_rank[row] < 0, "{} is summed up on another rank",
              name);
      read_q(piece.head, q_head, q_tile);
      head.row_rank[row] = r_;
      head.row_next[row] += rows.count[row];
      if (head.row_next[row] == own.row_addends[static_cast<size_t>(q_tile)])
        write(Space::work, q_box(Operand::dq, piece.head, q_head, q_tile));
    }
  }

  /// The next visit of a chain must be visit i of `run`.
  void visit(int32_t number, SumState& state, const Run& run, int32_t i, Rows& rows) {
    const HeadOrder& order = whole_.order(number);
    const WholeChain& chain =
        heads_[static_cast<size_t>(number)].chains[static_cast<size_t>(state.chain)];
    require(state.run < chain.run_end,
            "visit (head {}, q_head {}, q_tile {}, kv_tile {}) comes after the last of its chain",
            number, run.q_head, run.tile(i), chain.tile);
    const Run& own = order.runs[static_cast<size_t>(state.run)];
    require(own.q_head == run.q_head && own.tile(state.visit) == run.tile(i) &&
                own.addend_of(state.visit) == run.addend_of(i) &&
                own.slice_begin == run.slice_begin && own.slice_count == run.slice_count,
            "visit (head {}, q_head {}, q_tile {}, kv_tile {}) is not the next of its chain",
            number, run.q_head, run.tile(i), chain.tile);
    if (++state.visit == own.count) ++state.run, state.visit = 0;
    const size_t row =
        static_cast<size_t>(run.q_head) * static_cast<size_t>(order.tiles->q_tiles()) +
        static_cast<size_t>(run.tile(i));
    if (rows.count[row]++ == 0) {
      rows.met.push_back(row);
      rows.least[row] = run.addend_of(i);
    }
    rows.least[row] = std::min(rows.least[row], run.addend_of(i));
  }

  bool make(const Add& add) {
    const TileSums& sums = add.sums;
    HeadState& head = heads_[static_cast<size_t>(sums.head)];
    const std::string name = fmt::format("KV tile {} of head {}", sums.kv_tile, sums.head);
    require(!head.ended[static_cast<size_t>(sums.kv_tile)], "{} is added up twice", name);
    head.ended[static_cast<size_t>(sums.kv_tile)] = true;
    int32_t addend = 0, addends = 0;
    for (const int32_t number : sums.blocks) {
      const SumState state = take(number);
      require(state.head == sums.head, "{} gets the sum of another head", name);
      const WholeChain& chain = head.chains[static_cast<size_t>(state.chain)];
      require(chain.tile == sums.kv_tile && chain.addend == addend++,
              "{} gets its parts in another order", name);
      require(state.run == chain.run_end, "{} gets a part that is not complete", name);
      addends = chain.addends;
    }
    require(addend == addends, "{} lacks a part", name);
    for (const Operand operand : {Operand::dk, Operand::dv})
      write(Space::work, kv_box(operand, sums.head, sums.kv_tile));
    return true;
  }

  // --- The end ----------------------------------------------------------------------------------

  void check_complete() {
    for (size_t head = 0; head < heads_.size(); ++head) {
      const auto missing = std::ranges::find(heads_[head].started, false);
      if (missing != heads_[head].started.end())
        throw Error(ErrorCode::invalid_plan, "dist.verify",
                    fmt::format("no rank makes chain {} of head {}",
                                missing - heads_[head].started.begin(), head));
    }
    for (r_ = 0; r_ < world(); ++r_) {
      for (int o = 0; o < kOperands; ++o) {
        const auto operand = static_cast<Operand>(o);
        const bool output =
            backward() ? operand >= Operand::dq : operand == Operand::o || operand == Operand::lse;
        if (!output) continue;
        for (const RowRange& range : held(r_, Space::home, operand).ranges())
          read(Space::home, {operand, range, heads_in(r_, Space::home, operand)});
      }
    }
  }

  const DistPlan& plan_;
  const Plan& whole_;
  std::vector<HeadState> heads_;
  std::vector<std::vector<Present>> there_;  // home and work of each rank, by operand
  std::map<std::pair<int32_t, int32_t>, std::vector<bool>> seen_q_, seen_kv_;  // by rank and head
  std::vector<std::vector<SumState>> blocks_;
  std::map<std::tuple<int32_t, int32_t, int64_t>, Message> messages_;  // sender, receiver, number
  std::vector<size_t> at_;
  int32_t r_ = 0;
};

}  // namespace

void verify(const DistPlan& plan) { Proof(plan).run(); }

}  // namespace verbatim
