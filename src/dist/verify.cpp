// The proof of a distributed plan: all ranks are played step by step on what they know instead of
// numbers. Which rows are there, how far each sum has come, what each block and message holds.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "dist/facts.h"
#include "dist/holdings.h"
#include "dist/sizes.h"
#include "verbatim/dist.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using dist::Holdings;
using dist::PartFacts;
using dist::Position;
using dist::WholeChain;

/// A sum of dK and dV: visits of one chain, from its first.
struct SumState {
  int32_t head = -1;   // -1: none
  int32_t chain = -1;  // into whole_chains() of its head
  Position at;         // what comes next
};

/// What a head has had done, on whatever rank.
struct HeadState {
  std::shared_ptr<const std::vector<WholeChain>> chains;
  std::vector<bool> started;      // by chain
  std::vector<bool> ended;        // by KV tile
  std::vector<int32_t> row_next;  // next addend of each dQ row, [group, q_tiles]
  std::vector<std::pair<int32_t, int32_t>> row_memory;  // the rank and room that it is in
};

struct Message {
  const Send* send;
  std::vector<SumState> states;  // of each sum
};

class Proof {
 public:
  explicit Proof(const DistPlan& plan) : plan_(plan), whole_(plan.whole), at_(plan.ranks.size()) {
    std::map<const HeadOrder*, std::shared_ptr<const std::vector<WholeChain>>> chains;
    for (int32_t head = 0; head < static_cast<int32_t>(whole_.order_of_head.size()); ++head) {
      const HeadOrder& order = whole_.order(head);
      auto& own = chains[&order];
      if (!own) own = std::make_shared<const std::vector<WholeChain>>(dist::whole_chains(order));
      heads_.push_back(state_of(order, own));
    }
    const dist::Cuts q_cuts = dist::q_cuts(plan), kv_cuts = dist::kv_cuts(plan);
    const std::vector<HeldRows> zeros = rows_without_keys();
    for (r_ = 0; r_ < world(); ++r_) {
      const RankPlan& own = rank(r_);
      blocks_.emplace_back(static_cast<size_t>(own.blocks));
      memory_.emplace_back(plan_, own, q_cuts, kv_cuts);
      begin(zeros);
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (r_ = 0; r_ < world(); ++r_) {
        size_t& step = at_[r_];
        while (step < rank(r_).steps.size() &&
               std::visit([this](const auto& s) { return make(s); }, rank(r_).steps[step])) {
          ++step;
          moved = true;
        }
      }
    }
    for (r_ = 0; r_ < world(); ++r_)
      if (at_[r_] < rank(r_).steps.size()) fail("waits forever");
    if (!messages_.empty()) {
      const auto& [from, to, number] = messages_.begin()->first;
      r_ = to;
      fail(fmt::format("never takes message {} of rank {}", number, from));
    }
    check_complete();
  }

 private:
  int32_t world() const { return static_cast<int32_t>(plan_.ranks.size()); }
  const RankPlan& rank(int32_t r) const { return plan_.ranks[r]; }
  bool backward() const { return whole_.pass == Pass::backward; }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::invalid_plan, "dist.verify",
                fmt::format("rank {}, step {}: {}", r_, at_[r_], what));
  }
  template <class... Args>
  void require(bool holds, fmt::format_string<Args...> text, Args&&... args) const {
    if (!holds) fail(fmt::format(text, std::forward<Args>(args)...));
  }

  static HeadState state_of(const HeadOrder& order,
                            std::shared_ptr<const std::vector<WholeChain>> chains) {
    HeadState state;
    const auto rows =
        static_cast<size_t>(order.group) * static_cast<size_t>(order.tiles->q_tiles());
    state.started.resize(chains->size());
    state.chains = std::move(chains);
    state.ended.resize(order.tiles->kv_tiles());
    state.row_next.resize(rows);
    state.row_memory.resize(rows, {-1, 0});
    return state;
  }

  // --- What is where ----------------------------------------------------------------------------

  Holdings& memory() { return memory_[r_]; }
  void read(Space space, const Box& box, int32_t room = 0) {
    if (const char* wrong = memory().read(space, box, room)) fail_rows(box, wrong);
  }
  void write(Space space, const Box& box, int32_t room = 0) {
    if (const char* wrong = memory().write(space, box, room)) fail_rows(box, wrong);
  }
  [[noreturn]] void fail_rows(const Box& box, const char* what) const {
    fail(fmt::format("rows {} to {} of {} are {}", box.range.rows.begin, box.range.rows.end,
                     to_string(box.operand), what));
  }

  static bool is_input(Pass pass, Operand operand) {
    if (pass == Pass::forward)
      return operand == Operand::q || operand == Operand::k || operand == Operand::v;
    return operand < Operand::dq;
  }

  bool is_output(Operand operand) const {
    return backward() ? operand >= Operand::dq : operand == Operand::o || operand == Operand::lse;
  }

  /// Rows of dQ to which no key is visible, by head.
  std::vector<HeldRows> rows_without_keys() const {
    std::vector<HeldRows> rows;
    for (int32_t head = 0; backward() && head < static_cast<int32_t>(heads_.size()); ++head) {
      const HeadOrder& order = whole_.order(head);
      std::vector<RowRange> ranges;
      for (int32_t t = 0; t < order.tiles->q_tiles(); ++t)
        if (order.row_addends[t] == 0)
          ranges.push_back(rows_of(order.tiles->q_edges, head, t, t + 1));
      rows.emplace_back(std::move(ranges));
    }
    return rows;
  }

  /// Inputs are in the shards, and zeros in the dQ of rows that no key is visible to.
  void begin(const std::vector<HeldRows>& zeros) {
    for (int o = 0; o < kOperands; ++o) {
      const auto operand = static_cast<Operand>(o);
      if (!is_input(whole_.pass, operand)) continue;
      for (const RowRange& range : held_at_home(operand).ranges())
        write(Space::home, {operand, range, memory().heads_at_home(operand)});
    }
    for (size_t head = 0; head < zeros.size(); ++head) {
      const HeldRows own = rank(r_).home_q.intersect(zeros[head]);
      for (const RowRange& range : own.ranges())
        write(Space::home, {Operand::dq, range, group_heads(static_cast<int32_t>(head))});
    }
  }
  const HeldRows& held_at_home(Operand operand) const {
    return dist::on_kv_axis(operand) ? rank(r_).home_kv : rank(r_).home_q;
  }

  Interval group_heads(int32_t head) const {
    const int64_t kv_head = head % whole_.problem.kv_heads, group = whole_.problem.group();
    return {kv_head * group, (kv_head + 1) * group};
  }
  /// Box of tiles [first, last) of a head: of query head `q_head` of its group, or of the KV head.
  Box q_box(Operand operand, int32_t head, int32_t q_head, int32_t first, int32_t last) const {
    const int64_t h = group_heads(head).begin + q_head;
    return {operand, rows_of(whole_.order(head).tiles->q_edges, head, first, last), {h, h + 1}};
  }
  Box kv_box(Operand operand, int32_t head, int64_t first, int64_t last) const {
    const int64_t h = head % whole_.problem.kv_heads;
    return {operand, rows_of(whole_.order(head).tiles->kv_edges, head, first, last), {h, h + 1}};
  }
  RowRange rows_of(const std::vector<int64_t>& edges, int32_t head, int64_t first,
                   int64_t last) const {
    return {head / whole_.problem.kv_heads, {edges[first], edges[last]}};
  }

  /// What a launch reads of KV tiles.
  void read_kv(int32_t head, const PartFacts& facts) {
    for (const Interval& tiles : facts.kv_tiles)
      for (const Operand operand : {Operand::k, Operand::v})
        read(Space::work, kv_box(operand, head, tiles.begin, tiles.end));
  }

  // --- Steps: false where a message is missing --------------------------------------------------

  SumState& block(int32_t number) {
    auto& blocks = blocks_[r_];
    require(0 <= number && number < static_cast<int32_t>(blocks.size()), "has no block {}", number);
    return blocks[number];
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

  const WholeChain& chain_of(const SumState& state) const {
    return (*heads_[state.head].chains)[state.chain];
  }

  bool make(const Hold& hold) {
    require(memory().hold(hold), "cannot hold head {} in slot {}", hold.head, hold.slot);
    return true;
  }

  bool make(const Send& send) {
    Message message{&send, {}};
    require(send.to != r_, "sends message {} to itself", send.message);
    for (const Box& box : send.boxes) read(send.space, box, send.room);
    for (const CarriedSum& sum : send.sums) {
      for (int32_t i = 0; i < sum.count; ++i) {
        const SumState state = take(sum.block + i);
        require(state.head == sum.head && chain_of(state).tile == sum.kv_tile + i,
                "block {} holds another sum than that of KV tile {}", sum.block + i,
                sum.kv_tile + i);
        message.states.push_back(state);
      }
    }
    require(messages_.try_emplace({r_, send.to, send.message}, std::move(message)).second,
            "sends message {} twice", send.message);
    return true;
  }

  bool make(const Receive& receive) {
    const auto found = messages_.find({receive.from, r_, receive.message});
    if (found == messages_.end()) return false;
    const Message& message = found->second;
    auto state = message.states.begin();
    bool same = std::ranges::equal(message.send->boxes, receive.boxes);
    for (const CarriedSum& sum : receive.sums) {
      for (int32_t i = 0; i < sum.count && same; ++i, ++state) {
        same = state != message.states.end() && state->head == sum.head &&
               chain_of(*state).tile == sum.kv_tile + i;
        if (same) put(sum.block + i, *state);
      }
    }
    require(same && state == message.states.end(), "message {} of rank {} holds something else",
            receive.message, receive.from);
    for (const Box& box : receive.boxes) write(receive.space, box, receive.room);
    messages_.erase(found);
    return true;
  }

  bool make(const Copy& copy) {
    for (const Box& box : copy.boxes) {
      read(copy.from, box, copy.room);
      write(copy.to, box, copy.room);
    }
    return true;
  }

  bool make(const Compute& compute) {
    room_ = compute.room;
    require(0 <= room_ && room_ < std::ssize(rank(r_).rooms), "has no room {}", room_);
    check_heads(compute);
    for (const HeadPart& own : compute.heads) {
      const PartFacts& facts = facts_of(own);
      if (backward()) {
        check_chains(own, facts);
      } else {
        for (const PartFacts::ChainPart& chain : facts.chains) check_forward(own.head, chain);
      }
      check_rows(own.head, facts);
      read_kv(own.head, facts);
    }
    return true;
  }

  /// A launch runs its heads beside each other, and finds them by one stride.
  void check_heads(const Compute& compute) {
    const std::vector<HeadPart>& heads = compute.heads;
    require(!heads.empty(), "computes nothing");
    for (const HeadPart& own : heads)
      require(0 <= own.head && own.head < std::ssize(heads_) &&
                  own.part->whole.get() == &whole_.order(own.head),
              "computes with another order than that of head {}", own.head);
    const int64_t kv_heads = whole_.problem.kv_heads;
    const int32_t first = heads.front().head, slot = memory().slot_of(first);
    for (size_t i = 1; i < heads.size(); ++i) {
      const int32_t head = heads[i].head;
      require(head > heads[i - 1].head && head / kv_heads == first / kv_heads,
              "launches head {} with head {}, which is not before it in its batch entry", head,
              heads[i - 1].head);
      require(memory().slot_of(head) - slot == head - first,
              "launches head {} with head {}, but their K and V are not as far apart", head, first);
    }
    if (heads.size() > 1) {
      const Interval own = rank(r_).rooms[room_].heads;
      require(
          own.begin <= group_heads(first).begin && group_heads(heads.back().head).end <= own.end,
          "launches head {} with others, but has not all of their groups", first);
    }
    check_blocks(heads);
  }

  /// Chains of a launch run beside each other, so none ends in a block that another begins with.
  void check_blocks(const std::vector<HeadPart>& heads) {
    for (const HeadPart& own : heads) {
      facts_of(own);  // its order has these chains
      for (size_t s = 0; s < std::min(own.carries.size(), own.part->stretches.size()); ++s) {
        const Carry& carry = own.carries[s];
        for (int32_t i = 0; carry.in != carry.out && i < own.part->stretches[s].count; ++i)
          require(block(carry.out + i).head < 0, "puts a second sum into block {}", carry.out + i);
      }
    }
  }

  /// Heads share parts, of which each is looked at once.
  const PartFacts& facts_of(const HeadPart& own) {
    const auto [at, fresh] = facts_.try_emplace(own.part.get());
    if (fresh) at->second = dist::facts_of(*own.part, *heads_[own.head].chains);
    return at->second;
  }

  /// One chain of the forward: whole.
  void check_forward(int32_t number, const PartFacts::ChainPart& part) {
    HeadState& head = heads_[number];
    const auto c = static_cast<size_t>(part.chain);
    const bool whole =
        part.begin == start_of((*head.chains)[c]) && part.end == end_of((*head.chains)[c]);
    if (whole && !head.started[c]) {
      head.started[c] = true;
      return;
    }
    const Chain& chain = whole_.order(number).chains[c];
    fail(fmt::format("chain {} of tile (head {}, q_head {}, q_tile {}) is {}", chain.addend, number,
                     chain.q_head, chain.tile, whole ? "made twice" : "not whole"));
  }

  /// Chains of the backward go on where they were. Then nothing waits in a circle, for their visits
  /// are part of a plan without one.
  void check_chains(const HeadPart& own, const PartFacts& facts) {
    HeadState& head = heads_[own.head];
    const std::vector<Stretch>& stretches = own.part->stretches;
    require(own.carries.size() == stretches.size(), "has not one carry for each stretch");
    auto part = facts.chains.begin();
    for (size_t s = 0; s < stretches.size(); ++s) {
      const Carry& carry = own.carries[s];
      for (int32_t i = 0; i < stretches[s].count; ++i, ++part) {
        const WholeChain& chain = (*head.chains)[part->chain];
        SumState state{own.head, part->chain, start_of(chain)};
        if (carry.in < 0) {
          require(!head.started[part->chain], "starts chain {} of KV tile {} of head {} twice",
                  chain.addend, chain.tile, own.head);
          head.started[part->chain] = true;
        } else {
          state = take(carry.in + i);
        }
        require(state.head == own.head && state.chain == part->chain,
                "KV tile {} goes on from another's sum", chain.tile);
        require(state.at == part->begin,
                "chain {} of KV tile {} of head {} does not go on where it was", chain.addend,
                chain.tile, own.head);
        state.at = part->end;
        put(carry.out + i, state);
      }
    }
  }

  /// Rows of a launch: those of one query head behind each other are looked at together.
  void check_rows(int32_t head, const PartFacts& facts) {
    auto first = facts.rows.begin();
    bool all_complete = false;
    for (auto row = first; row != facts.rows.end(); ++row) {
      const bool complete = backward() ? add_up(head, *row) : merge(head, *row);
      if (row != first && (complete != all_complete || row->q_head != first->q_head ||
                           row->q_tile != (row - 1)->q_tile + 1)) {
        settle(head, *first, *(row - 1), all_complete);
        first = row;
      }
      all_complete = complete;
    }
    if (first != facts.rows.end()) settle(head, *first, facts.rows.back(), all_complete);
  }

  /// What a launch reads of rows and, when they are complete, writes.
  void settle(int32_t head, const PartFacts::RowPart& first, const PartFacts::RowPart& last,
              bool complete) {
    for (int o = 0; o < kOperands; ++o) {
      const auto operand = static_cast<Operand>(o);
      if (dist::on_kv_axis(operand)) continue;
      const Box box = q_box(operand, head, first.q_head, first.q_tile, last.q_tile + 1);
      if (is_input(whole_.pass, operand)) {
        read(Space::work, box, room_);
      } else if (complete && is_output(operand)) {
        write(Space::work, box, room_);
      }
    }
  }

  static std::string name_of(int32_t head, const PartFacts::RowPart& row) {
    return fmt::format("row (head {}, q_head {}, q_tile {})", head, row.q_head, row.q_tile);
  }

  /// A row of dQ takes its next addends, each once. Whether these are the last.
  bool add_up(int32_t number, const PartFacts::RowPart& row) {
    HeadState& head = heads_[number];
    const HeadOrder& order = whole_.order(number);
    const size_t place =
        static_cast<size_t>(row.q_head) * static_cast<size_t>(order.tiles->q_tiles()) +
        static_cast<size_t>(row.q_tile);
    int32_t& next = head.row_next[place];
    const int64_t count = row.count;
    if (row.numbers != count * next + count * (count - 1) / 2)
      fail(fmt::format("{} has {} addends and gets {} that are not the next", name_of(number, row),
                       next, count));
    auto& memory = head.row_memory[place];
    if (memory != std::pair(r_, room_) && memory.first >= 0)
      fail(name_of(number, row) + " is summed up in other memory");
    memory = {r_, room_};
    next += row.count;
    return next == order.row_addends[row.q_tile];
  }

  /// The parts of a row of the forward meet in memory of their launch.
  bool merge(int32_t head, const PartFacts::RowPart& row) const {
    if (row.numbers != int64_t{row.count} * row.count)
      fail(name_of(head, row) + " lacks parts that it is merged from");
    return true;
  }

  bool make(const Add& add) {
    const TileSums& sums = add.sums;
    HeadState& head = heads_[sums.head];
    const std::string name = fmt::format("KV tile {} of head {}", sums.kv_tile, sums.head);
    require(!head.ended[sums.kv_tile], "{} is added up twice", name);
    head.ended[sums.kv_tile] = true;
    int32_t addend = 0, addends = 0;
    for (const int32_t number : sums.blocks) {
      const SumState state = take(number);
      require(state.head == sums.head, "{} gets the sum of another head", name);
      const WholeChain& chain = chain_of(state);
      require(chain.tile == sums.kv_tile && chain.addend == addend++,
              "{} gets its parts in another order", name);
      require(state.at == end_of(chain), "{} gets a part that is not complete", name);
      addends = chain.addends;
    }
    require(addend == addends, "{} lacks a part", name);
    for (const Operand operand : {Operand::dk, Operand::dv})
      write(Space::work, kv_box(operand, sums.head, sums.kv_tile, sums.kv_tile + 1));
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
        if (!is_output(operand)) continue;
        for (const RowRange& range : held_at_home(operand).ranges())
          read(Space::home, {operand, range, memory().heads_at_home(operand)});
      }
    }
  }

  const DistPlan& plan_;
  const Plan& whole_;
  std::vector<HeadState> heads_;
  std::vector<Holdings> memory_;  // by rank
  std::map<const OrderPart*, PartFacts> facts_;
  std::vector<std::vector<SumState>> blocks_;
  std::map<std::tuple<int32_t, int32_t, int64_t>, Message> messages_;  // sender, receiver, number
  std::vector<size_t> at_;
  int32_t r_ = 0, room_ = 0;  // of the launch that is looked at
};

}  // namespace

void verify(const DistPlan& plan) { Proof(plan).run(); }

}  // namespace verbatim
