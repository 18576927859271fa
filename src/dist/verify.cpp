// The proof of a distributed plan: all ranks are played step by step on what they know instead of
// numbers. Which rows are there, how far each sum has come, what each block and message holds. Sums
// of a section that repeats another are not played: sections.h compares it.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "dist/facts.h"
#include "dist/head_boxes.h"
#include "dist/head_state.h"
#include "dist/held_sums.h"
#include "dist/landing.h"
#include "dist/mail.h"
#include "dist/rows_proof.h"
#include "dist/sections.h"
#include "dist/sizes.h"
#include "verbatim/dist.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using dist::group_heads;
using dist::HeadState;
using dist::kv_box;
using dist::Message;
using dist::PartFacts;
using dist::Position;
using dist::q_box;
using dist::Sums;

const CarriedSums kNoSums;

class Proof : dist::RowsProof {
 public:
  explicit Proof(const DistPlan& plan)
      : RowsProof(plan), sections_(plan), mail_(plan.ranks.size()), landings_(plan.ranks.size()) {
    std::map<const HeadOrder*, dist::Chains> chains;
    for (int32_t head = 0; head < static_cast<int32_t>(whole_.order_of_head.size()); ++head) {
      const HeadOrder& order = whole_.order(head);
      heads_.emplace_back(order, chains.try_emplace(&order, order).first->second.whole);
    }
    facts_ = dist::facts_of(plan, chains);
    for (r_ = 0; r_ < world(); ++r_) {
      sums_.emplace_back(rank(r_).blocks);
      enter_section();
    }
  }

  void run() {
    check_numbers();
    for (bool moved = true; moved;) {
      moved = false;
      for (r_ = 0; r_ < world(); ++r_) {
        size_t& step = at_[r_];
        while (step < rank(r_).steps.size() &&
               std::visit([this](const auto& s) { return make(s); }, rank(r_).steps[step])) {
          ++step;
          moved = true;
          enter_section();
        }
      }
    }
    for (r_ = 0; r_ < world(); ++r_)
      if (at_[r_] < rank(r_).steps.size()) fail("waits forever");
    for (int32_t from = 0; from < world(); ++from)
      for (r_ = 0; r_ < world() && !mail_.is_taken(from); ++r_)
        if (const Message* left = mail_.next(from, r_))
          fail(fmt::format("never takes message {} of rank {}", left->send->message, from));
    check_complete();
  }

 private:
  bool backward() const { return whole_.pass == Pass::backward; }
  dist::HeldSums& sums() { return sums_[static_cast<size_t>(r_)]; }

  /// Each message has a number of its own, and none below 0: those are of a transport's messages.
  void check_numbers() const {
    std::vector<std::pair<int64_t, int32_t>> sent;  // and the rank
    for (int32_t r = 0; r < world(); ++r)
      for (const Step& step : rank(r).steps)
        if (const auto* send = std::get_if<Send>(&step)) sent.emplace_back(send->message, r);
    std::ranges::sort(sent);
    if (!sent.empty() && sent.front().first < 0)
      throw Error(ErrorCode::invalid_plan, "dist.verify",
                  fmt::format("a message of rank {} has the number {}, which is below 0",
                              sent.front().second, sent.front().first));
    const auto twice = std::ranges::adjacent_find(sent, {}, &std::pair<int64_t, int32_t>::first);
    if (twice == sent.end()) return;
    throw Error(ErrorCode::invalid_plan, "dist.verify",
                fmt::format("two messages have the number {}: one of rank {} and one of rank {}",
                            twice->first, twice->second, std::next(twice)->second));
  }

  // --- Sections: one that repeats another does with its sums what that one did -------------------

  void enter_section() {
    if (sections_.enter(r_, at_[r_]))
      require(sums().held() == 0, "begins or ends a section with sums in its blocks");
  }
  bool repeats() const { return sections_.repeats(r_); }

  // --- Steps: false where a message is missing --------------------------------------------------

  void require_blocks(int32_t first, int32_t count) {
    require(sums().has(first, count), "has no block {}", first < 0 ? first : first + count - 1);
  }
  /// Calls f(Sums) for what blocks [first, first + count) hold, part by part; they are free then.
  template <class F>
  void take(int32_t first, int32_t count, F&& f) {
    require_blocks(first, count);
    while (count > 0) {
      const Sums part = sums().take(first, count);
      require(part.count > 0, "takes a sum from block {} before it is there", first);
      f(part);
      first += part.count;
      count -= part.count;
    }
  }
  void require_neighbours(int32_t step) {
    require(step == 1 || step == -1, "has sums {} apart", step);
  }
  void require_free(int32_t first, int32_t count) {
    require_blocks(first, count);
    const int32_t held = sums().find_held(first, count);
    require(held < 0, "puts a second sum into block {}", held);
  }
  void put(int32_t first, const Sums& made) {
    require_free(first, made.count);
    sums().put(first, made);
  }

  bool make(const Hold& hold) {
    require(memory().hold(hold), "cannot hold head {} in slot {}", hold.head, hold.slot);
    return true;
  }

  bool make(const Send& send) {
    Message message{&send, sections_.of(r_), {}};
    require(0 <= send.to && send.to < world() && send.to != r_,
            "sends message {} to itself or nobody", send.message);
    read(send.space, send.boxes, send.room);
    for (const CarriedSum& sum : repeats() ? kNoSums : send.sums) {
      require_neighbours(sum.step);
      int32_t tile = sum.kv_tile;
      take(sum.block, sum.count, [&](const Sums& part) {
        require(part.are_of(sum.head, tile, sum.step),
                "block {} holds another sum than that of KV tile {}",
                sum.block + (tile - sum.kv_tile) * sum.step, tile);
        tile += part.count * sum.step;
        message.sums.push_back(part);
      });
    }
    mail_.send(r_, std::move(message));
    return true;
  }

  /// A message as it was sent; null: it was not yet.
  const Message* find(int32_t from, int64_t number) const {
    const Message* next = mail_.next(from, r_);
    require(!next || next->send->message == number,
            "takes message {} of rank {}, whose message {} comes first", number, from,
            next ? next->send->message : 0);
    return next;
  }
  /// Calls f(block, Sums) for the sums of a message.
  template <class F>
  void match(const Receive& receive, const Message& message, F&& f) {
    require(message.section == sections_.of(r_), "takes message {} of rank {} in another section",
            receive.message, receive.from);
    require(message.is(receive.boxes, repeats() ? kNoSums : receive.sums, f),
            "message {} of rank {} holds something else", receive.message, receive.from);
  }

  /// Waits until the message was sent, as a transport may, and takes it: it may come from here on.
  bool make(const Expect& expect) {
    const auto& [from, number, at] = expect;
    require(!landings_[r_].find(from, number), "expects message {} of rank {} twice", number, from);
    const Receive* receive = dist::find_receive(rank(r_).steps, at_[r_]);
    require(receive, "expects message {} of rank {} and never takes it", number, from);
    const Message* found = find(from, number);
    if (!found) return false;
    match(*receive, *found, [](int32_t, const Sums&) {});
    const int64_t bytes = dist::message_bytes(plan_, receive->boxes, receive->sums);
    require(at <= rank(r_).landing - bytes || at < 0,
            "expects {} bytes from {} on, where {} have room", bytes, at, rank(r_).landing);
    const Interval place = at < 0 ? Interval{} : Interval{at, at + bytes};
    require(landings_[r_].is_free(place), "expects message {} of rank {} where another lands",
            number, from);
    require(at >= 0 || dist::lies_dense(plan_, *receive),
            "expects message {} in blocks that it does not fill", number);
    for (const CarriedSum& sum : receive->sums) {
      if (at >= 0) break;
      require_free(sum.block, sum.count);
      sums().expect(sum.block, sum.count);
    }
    landings_[r_].put(from, mail_.take(from, r_), place);
    return true;
  }

  bool make(const Receive& receive) {
    const dist::Landing::Landed* landed = landings_[r_].find(receive.from, receive.message);
    if (!landed && !find(receive.from, receive.message)) return false;
    if (landed && landed->bytes.end == 0)
      for (const CarriedSum& sum : receive.sums) sums().release(sum.block, sum.count);
    const Message message =
        landed ? landings_[r_].take(receive.from, receive.message) : mail_.take(receive.from, r_);
    match(receive, message, [this](int32_t block, const Sums& part) { put(block, part); });
    write(receive.space, receive.boxes, receive.room);
    return true;
  }

  bool make(const Copy& copy) {
    for (const Box& box : copy.boxes) {
      read(copy.from, box, copy.room);
      write(copy.to, box, copy.room);
    }
    return true;
  }

  /// Comes when all that the rank has sent is taken, as a transport may wait for (settle).
  bool make(const Compute& compute) {
    if (!mail_.is_taken(r_)) return false;
    room_ = compute.room;
    require(0 <= room_ && room_ < std::ssize(rank(r_).rooms), "has no room {}", room_);
    check_heads(compute);
    for (const HeadPart& own : compute.heads) {
      const PartFacts& facts = facts_of(own);
      if (backward()) {
        check_chains(own, facts);
      } else {
        for (const PartFacts::Row& chains : facts.chains) check_forward(own.head, chains);
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
      require(own.begin <= group_heads(whole_, first).begin &&
                  group_heads(whole_, heads.back().head).end <= own.end,
              "launches head {} with others, but has not all of their groups", first);
    }
    if (!repeats()) check_blocks(heads);
  }

  /// Chains of a launch run beside each other, so none ends in a block that another begins with.
  void check_blocks(const std::vector<HeadPart>& heads) {
    for (const HeadPart& own : heads) {
      for (size_t s = 0; s < std::min(own.carries.size(), own.part->stretches.size()); ++s) {
        const Carry& carry = own.carries[s];
        if (carry.out >= 0 && carry.in != carry.out)
          require_free(carry.out, own.part->stretches[s].count);
      }
    }
  }

  /// Heads share parts, of which each was looked at once.
  const PartFacts& facts_of(const HeadPart& own) const { return facts_.at(own.part.get()); }

  /// Chains of the forward: whole.
  void check_forward(int32_t number, const PartFacts::Row& chains) {
    const bool whole = chains.begin == Position{} && !chains.next;
    const int32_t c = whole ? heads_[number].start(chains.chain, chains.count) : chains.chain;
    if (c < 0) return;
    const Chain& chain = whole_.order(number).chains[c];
    fail(fmt::format("chain {} of tile (head {}, q_head {}, q_tile {}) is {}", chain.addend, number,
                     chain.q_head, chain.tile, whole ? "made twice" : "not whole"));
  }

  /// Chains of the backward go on where they were. Then nothing waits in a circle, for their visits
  /// are part of a plan without one.
  void check_chains(const HeadPart& own, const PartFacts& facts) {
    require(own.carries.size() == own.part->stretches.size(), "has not one carry for each stretch");
    for (const PartFacts::Row& chains : facts.chains) {
      const Carry& carry = own.carries[chains.stretch];
      if (carry.in < 0) start_chains(own.head, chains);
      if (carry.out < 0) end_in_place(own.head, chains, carry);
      if (repeats() || carry.out < 0) continue;
      if (carry.in >= 0) go_on(own.head, chains, carry.in + chains.offset);
      put(carry.out + chains.offset, {chains, own.head, chains.next});
    }
  }

  /// Chains write the results of their tiles themselves.
  void end_in_place(int32_t head, const PartFacts::Row& chains, const Carry& carry) {
    require(carry.in < 0 && !chains.next && chains.addends == 1,
            "ends KV tile {} of head {} with a chain that is not all of it", chains.tile, head);
    require(rank(r_).ended == rank(r_).kv,
            "ends KV tile {} of head {} in a launch, but dK and dV do not lie as K and V",
            chains.tile, head);
    const int32_t first = chains.lowest();
    require(heads_[head].end(first, chains.count) < 0, "KV tile {} of head {} is ended twice",
            chains.tile, head);
    for (const Operand operand : {Operand::dk, Operand::dv})
      write(Space::work, kv_box(whole_, operand, head, {first, first + chains.count}));
  }

  void start_chains(int32_t head, const PartFacts::Row& chains) {
    const int32_t again = heads_[head].start(chains.chain, chains.count);
    require(again < 0, "starts chain {} of KV tile {} of head {} twice", chains.addend,
            chains.tile + (again - chains.chain) * chains.step, head);
    require_goes_on(chains.begin == Position{}, head, chains, chains.chain);
  }

  void go_on(int32_t head, const PartFacts::Row& chains, int32_t block) {
    int32_t at = 0;
    take(block, chains.count, [&](const Sums& part) {
      require(part.head == head && part.chain == chains.chain + at,
              "KV tile {} goes on from another's sum", chains.tile + at * chains.step);
      // Complete ones can only go on without visits.
      for (int32_t i = 0; i < (part.next ? 1 : part.count); ++i) {
        const Chain& chain = heads_[head].chains[chains.chain + at + i];
        const Position next = part.next.value_or(Position{chain.run_end - chain.run_begin, 0});
        require_goes_on(next == chains.begin, head, chains, chains.chain + at + i);
      }
      at += part.count;
    });
  }

  void require_goes_on(bool holds, int32_t head, const PartFacts::Row& chains, int32_t chain) {
    require(holds, "chain {} of KV tile {} of head {} does not go on where it was", chains.addend,
            chains.tile + (chain - chains.chain) * chains.step, head);
  }

  /// What a launch reads of KV tiles.
  void read_kv(int32_t head, const PartFacts& facts) {
    for (const Interval& tiles : facts.kv_tiles)
      for (const Operand operand : {Operand::k, Operand::v})
        read(Space::work, kv_box(whole_, operand, head, {tiles.begin, tiles.end}));
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
      const Box box = q_box(whole_, operand, head, first.q_head, {first.q_tile, last.q_tile + 1});
      if (dist::is_input(whole_.pass, operand)) {
        read(Space::work, box, room_);
      } else if (complete && dist::is_output(whole_.pass, operand)) {
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
    require(
        sums.kv_tile >= 0 && add.count > 0 && add.count <= std::ssize(head.ended) - sums.kv_tile,
        "{} and {} behind it are not all there", name, add.count - 1);
    require_neighbours(add.step);
    require(head.end(sums.kv_tile, add.count) < 0, "{} is added up twice", name);
    if (!repeats()) add_parts(add, name);
    for (const Operand operand : {Operand::dk, Operand::dv})
      write(Space::work,
            kv_box(whole_, operand, sums.head, {sums.kv_tile, sums.kv_tile + add.count}));
    return true;
  }

  void add_parts(const Add& add, const std::string& name) {
    const TileSums& sums = add.sums;
    require(!sums.blocks.empty(), "{} lacks a part", name);
    int32_t addend = 0;
    for (const int32_t number : sums.blocks) {
      const int32_t back = add.step > 0 ? 0 : add.count - 1;
      int32_t tile = sums.kv_tile + back;
      take(number - back, add.count, [&](const Sums& part) {
        require(part.head == sums.head, "{} gets the sum of another head", name);
        require(part.are_of(sums.head, tile, add.step) && part.addend == addend,
                "{} gets its parts in another order", name);
        require(!part.next, "{} gets a part that is not complete", name);
        require(part.addends == std::ssize(sums.blocks), "{} lacks a part", name);
        tile += part.count * add.step;
      });
      ++addend;
    }
  }

  // --- The end ----------------------------------------------------------------------------------

  void check_complete() {
    for (size_t head = 0; head < heads_.size(); ++head) {
      const HeadState& state = heads_[head];
      if (state.left == 0) continue;
      const auto missing = std::ranges::find(state.started, 0) - state.started.begin();
      throw Error(ErrorCode::invalid_plan, "dist.verify",
                  fmt::format("no rank makes chain {} of head {}", missing, head));
    }
    check_results();
  }

  std::vector<HeadState> heads_;
  dist::Sections sections_;
  dist::FactsOfParts facts_;
  std::vector<dist::HeldSums> sums_;  // by rank
  dist::Mail mail_;
  std::vector<dist::Landing> landings_;  // by rank
  int32_t room_ = 0;                     // of the launch that is looked at
};

}  // namespace

void verify(const DistPlan& plan) { Proof(plan).run(); }

}  // namespace verbatim
