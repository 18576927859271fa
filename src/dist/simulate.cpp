// Plays the steps of all ranks in simulated time. Messages pass a link in the sequence of steps, so
// every time is a maximum of sums: a faster link or machine makes nothing later.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>

#include "dist/sizes.h"
#include "verbatim/cluster.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using Kind = TimelineEvent::Kind;

struct Rank {
  size_t step = 0, launch = 0, calls = 0;
  size_t copied = 0;                 // messages of steps before it are in a copy that was asked for
  double asked = 0;                  // by its host, which asks ahead, for the step
  double clock = 0;                  // what computes is free from here
  double link_out = 0, link_in = 0;  // ... and the links from here
  double done = 0;                   // the last message is there
  std::deque<int64_t> sent;          // messages that have not passed the link out
  std::vector<int64_t> asks;         // messages in the sequence in which it asks for them
  size_t received = 0;               // those that have passed the link in
  RankTime time;
};

/// A message that is on its way, or expected.
struct UnderWay {
  int32_t from = -1, to = -1;  // -1: it is not sent
  int32_t head = -1;           // that all of it belongs to; -1: several
  double bytes = 0, ready = 0;
  double asked = -1;  // by the receiver; < 0: not yet
  bool expected = false, in_place = false;
};

class Player {
 public:
  Player(const DistPlan& plan, const Cluster& cluster, const LaunchTimes& launches,
         Transfers transfers, Timeline* timeline)
      : plan_(plan),
        cluster_(cluster),
        launches_(launches),
        overlapped_(transfers == Transfers::overlapped),
        call_us_(overlapped_ ? cluster.peer_call_us : cluster.call_us),
        timeline_(timeline),
        ranks_(plan.ranks.size()) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const Step& step : plan.ranks[r].steps) {
        if (const auto* expect = std::get_if<Expect>(&step)) {
          ranks_[r].asks.push_back(expect->message);
          under_way_[expect->message] = {.expected = true, .in_place = expect->at < 0};
        } else if (const auto* receive = std::get_if<Receive>(&step);
                   receive && !under_way_[receive->message].expected) {
          ranks_[r].asks.push_back(receive->message);
        }
      }
      ready_.push_back(static_cast<int32_t>(r));
    }
  }

  DistSimulation play() {
    while (!ready_.empty()) {
      const int32_t r = ready_.back();
      ready_.pop_back();
      Rank& rank = rank_of(r);
      const std::vector<Step>& steps = plan_.ranks[r].steps;
      for (; rank.step < steps.size(); ++rank.step) {
        const size_t together =
            rank.step < rank.copied ? 0 : dist::copied_together(plan_, steps, rank.step);
        const size_t calls = rank.calls + calls_at(steps, rank.step) + (together > 0 ? 1 : 0);
        rank.asked = static_cast<double>(calls) * call_us_ * 1e-6;
        for (size_t s = rank.step; overlapped_ && s < rank.step + together; ++s)
          if (const auto* receive = std::get_if<Receive>(&steps[s])) ask(rank, receive->message);
        if (!std::visit([&](const auto& step) { return make(r, rank, step); }, steps[rank.step]))
          break;
        rank.calls = calls;
        rank.copied = std::max(rank.copied, rank.step + together);
      }
    }
    return finish();
  }

 private:
  Rank& rank_of(int32_t r) { return ranks_[r]; }

  /// What the host asks the device for at step `s`: a launch, a copy, a message, or additions,
  /// which are one where they follow each other.
  size_t calls_at(const std::vector<Step>& steps, size_t s) const {
    const Step& step = steps[s];
    if (std::holds_alternative<Hold>(step)) return 0;
    if (std::holds_alternative<Add>(step))
      return s > 0 && std::holds_alternative<Add>(steps[s - 1]) ? 0 : 1;
    const auto* receive = std::get_if<Receive>(&step);
    return receive && under_way_.at(receive->message).expected ? 0 : 1;
  }

  // Each makes a step, or parks the rank until it can.

  bool make(int32_t, Rank&, const Hold&) { return true; }

  bool make(int32_t r, Rank& rank, const Send& send) {
    Rank& to = rank_of(send.to);
    const bool is_next = to.received < to.asks.size() && to.asks[to.received] == send.message;
    if (!overlapped_ && !is_next) return park(r, send.message);
    const auto bytes = static_cast<double>(dist::message_bytes(plan_, send.boxes, send.sums));
    UnderWay& message = under_way_[send.message];
    message.head = head_of(send.boxes, send.sums);
    copy(r, rank, bytes, message.head);
    message.from = r;
    message.to = send.to;
    message.bytes = bytes;
    message.ready = std::max(rank.asked, rank.clock);
    rank.sent.push_back(send.message);
    if (overlapped_) {
      pass(send.message);
    } else {
      rank.clock = pass_link(send.message);
    }
    return true;
  }

  bool make(int32_t r, Rank& rank, const Expect& expect) {
    if (!overlapped_) return arrive(r, rank, expect.message);
    ask(rank, expect.message);
    return true;
  }

  bool make(int32_t r, Rank& rank, const Receive& receive) {
    const UnderWay& message = under_way_.at(receive.message);
    if ((!message.expected || overlapped_) && !arrive(r, rank, receive.message)) return false;
    if (!message.in_place)
      copy(r, rank, static_cast<double>(dist::message_bytes(plan_, receive.boxes, receive.sums)),
           head_of(receive.boxes, receive.sums));
    return true;
  }

  bool make(int32_t r, Rank& rank, const Copy& step) {
    copy(r, rank, static_cast<double>(dist::message_bytes(plan_, step.boxes, {})),
         head_of(step.boxes, {}));
    return true;
  }

  bool make(int32_t r, Rank& rank, const Compute& step) {
    const auto& times = launches_[r];
    if (rank.launch == times.size()) fail_launches(r);
    compute(Kind::compute, r, rank, step.heads, times[rank.launch++]);
    return true;
  }

  bool make(int32_t r, Rank& rank, const Add& add) {
    const auto blocks = static_cast<double>(add.sums.blocks.size());
    for (int32_t i = 0; i < add.count; ++i) {
      const auto sum =
          static_cast<double>(dist::sum_bytes(plan_, {add.sums.head, add.sums.kv_tile + i, 0}));
      const double rounded =
          sum * static_cast<double>(size_of(plan_.whole.problem.dtype)) / sizeof(float);
      compute(Kind::reduce, r, rank, std::array{HeadPart{add.sums.head, nullptr}},
              moved(blocks * sum + rounded));
    }
    return true;
  }

  void compute(Kind kind, int32_t r, Rank& rank, std::span<const HeadPart> heads, double takes) {
    wait(r, rank, rank.asked);
    record(kind, 2 * r, heads.size() == 1 ? heads[0].head : -1, rank.clock, rank.clock + takes);
    rank.clock += takes;
    rank.time.compute += takes;
  }

  void wait(int32_t r, Rank& rank, double until) {
    if (until <= rank.clock) return;
    record(Kind::wait, 2 * r, -1, rank.clock, until);
    rank.clock = until;
  }

  /// From memory to memory.
  void copy(int32_t r, Rank& rank, double bytes, int32_t head) {
    const double takes = moved(2 * bytes);
    wait(r, rank, rank.asked);
    record(Kind::transfer, 2 * r, head, rank.clock, rank.clock + takes);
    rank.clock += takes;
  }

  /// Seconds for bytes read or written.
  double moved(double bytes) const {
    const Machine& machine = cluster_.machine;
    return machine.bandwidth > 0 ? bytes / (machine.bandwidth * machine.clock_ghz * 1e9) : 0;
  }

  // Messages.

  /// From here on the rank has room for it.
  void ask(const Rank& rank, int64_t message) {
    double& asked = under_way_.at(message).asked;
    if (asked >= 0) return;
    asked = rank.clock;
    pass(message);
  }

  /// Overlapped: a message, and what it held up, passes both links where it is next.
  void pass(int64_t message) {
    for (std::vector<int64_t> next{message}; !next.empty();) {
      const auto found = under_way_.find(next.back());
      next.pop_back();
      if (found == under_way_.end() || found->second.from < 0 || found->second.asked < 0) continue;
      Rank &from = rank_of(found->second.from), &to = rank_of(found->second.to);
      if (from.sent.empty() || from.sent.front() != found->first || to.received == to.asks.size() ||
          to.asks[to.received] != found->first)
        continue;
      pass_link(found->first);
      if (!from.sent.empty()) next.push_back(from.sent.front());
      if (to.received < to.asks.size()) next.push_back(to.asks[to.received]);
    }
  }

  /// One that is next. When its last byte has left.
  double pass_link(int64_t number) {
    const UnderWay& message = under_way_.at(number);
    Rank &from = rank_of(message.from), &to = rank_of(message.to);
    const bool inside =
        message.from / cluster_.ranks_per_node == message.to / cluster_.ranks_per_node;
    const LinkSpeed& link = inside ? cluster_.inside : cluster_.between;
    const double takes = link.gb_per_s > 0 ? message.bytes / (link.gb_per_s * 1e9) : 0;
    const double begin = std::max({message.ready, message.asked, from.link_out, to.link_in});
    const double end = begin + takes;
    arrivals_[number] = end + link.latency_us * 1e-6;
    record(Kind::transfer, 2 * message.from + 1, message.head, begin, end);
    from.link_out = to.link_in = end;
    from.time.sends += takes;
    from.sent.pop_front();
    ++to.received;
    wake(number);
    if (to.received < to.asks.size()) wake(to.asks[to.received]);
    return end;
  }

  /// The rank waits until a message is there.
  bool arrive(int32_t r, Rank& rank, int64_t message) {
    const auto found = arrivals_.find(message);
    if (found == arrivals_.end()) return park(r, message);
    rank.done = std::max(rank.done, found->second);
    wait(r, rank, found->second);
    arrivals_.erase(found);
    return true;
  }

  /// The head that all of it belongs to; -1: several.
  int32_t head_of(const Boxes& boxes, const CarriedSums& sums) const {
    if (boxes.empty()) return sums.empty() ? -1 : sums.front().head;
    const Problem& problem = plan_.whole.problem;
    const Box& first = *boxes.begin();
    const bool one = std::ranges::all_of(boxes, [&](const Box& box) {
      return dist::on_kv_axis(box.operand) && box.heads == first.heads &&
             box.range.batch == first.range.batch;
    });
    if (!one || first.heads.end - first.heads.begin != 1) return -1;
    return static_cast<int32_t>(first.range.batch * problem.kv_heads + first.heads.begin);
  }

  // A rank that cannot go on waits for a message to be sent, or to be next on a link.

  bool park(int32_t r, int64_t message) {
    parked_[message] = r;
    return false;
  }

  void wake(int64_t message) {
    const auto found = parked_.find(message);
    if (found == parked_.end()) return;
    ready_.push_back(found->second);
    parked_.erase(found);
  }

  void record(Kind kind, int32_t worker, int32_t head, double begin, double end) {
    if (timeline_ == nullptr || end <= begin) return;
    timeline_->events.push_back({kind, worker, head, -1, -1, -1, begin * 1e6, end * 1e6});
  }

  [[noreturn]] void fail_launches(int32_t r) const {
    size_t launches = 0;
    for (const Step& step : plan_.ranks[r].steps)
      launches += std::holds_alternative<Compute>(step) ? 1 : 0;
    throw Error(ErrorCode::invalid_argument, "dist.simulate", "times of other launches",
                {"launches", fmt::format("{} of rank {}", launches_[r].size(), r),
                 fmt::to_string(launches), ""});
  }

  DistSimulation finish() {
    DistSimulation result;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      if (rank.step < plan_.ranks[r].steps.size())
        throw Error(ErrorCode::invalid_plan, "dist.simulate",
                    fmt::format("rank {} waits forever at step {}", r, rank.step));
      if (rank.launch < launches_[r].size()) fail_launches(static_cast<int32_t>(r));
      result.makespan = std::max({result.makespan, rank.clock, rank.done, rank.link_out});
    }
    for (Rank& rank : ranks_) {
      rank.time.exposed = result.makespan - rank.time.compute;
      result.ranks.push_back(rank.time);
    }
    if (timeline_ != nullptr) {
      timeline_->source =
          fmt::format("simulated {}, {}", cluster_.name, overlapped_ ? "overlapped" : "in turn");
      timeline_->unit = "us";
      timeline_->workers = 2 * static_cast<int32_t>(ranks_.size());
      for (size_t r = 0; r < ranks_.size(); ++r) {
        timeline_->names.push_back(fmt::format("rank {}", r));
        timeline_->names.push_back(fmt::format("rank {} sends", r));
      }
    }
    return result;
  }

  const DistPlan& plan_;
  const Cluster& cluster_;
  const LaunchTimes& launches_;
  bool overlapped_;
  double call_us_;
  Timeline* timeline_;
  std::vector<Rank> ranks_;
  std::unordered_map<int64_t, UnderWay> under_way_;  // by message
  std::unordered_map<int64_t, double> arrivals_;     // of messages sent and not yet taken
  std::unordered_map<int64_t, int32_t> parked_;      // ranks, by the message they wait for
  std::vector<int32_t> ready_;
};

}  // namespace

DistSimulation simulate(const DistPlan& plan, const Cluster& cluster, const LaunchTimes& launches,
                        Transfers transfers, Timeline* timeline) {
  if (launches.size() != plan.ranks.size())
    throw Error(
        ErrorCode::invalid_argument, "dist.simulate", "times of other ranks",
        {"launches", fmt::to_string(launches.size()), fmt::to_string(plan.ranks.size()), ""});
  return Player(plan, cluster, launches, transfers, timeline).play();
}

}  // namespace verbatim
