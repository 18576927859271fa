// Plays the steps of all ranks in simulated time. Messages pass a link in the sequence of steps, so
// every time is a maximum of sums: a faster link or machine makes nothing later.
#include <fmt/format.h>

#include <algorithm>
#include <array>
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
  // Overlapped: from when on all that has come so far of a head is there, and each box of K and V.
  std::vector<double> inputs, results;                      // by head
  std::vector<std::vector<std::pair<Box, double>>> passed;  // by head
  std::vector<int64_t> receives;                            // messages in the sequence of its steps
  size_t received = 0;                                      // those that have passed the link in
  RankTime time;
};

/// What the host asks the device for at step `s`: a launch, a copy, a message, or additions, which
/// are one where they follow each other.
size_t calls_at(const std::vector<Step>& steps, size_t s) {
  const Step& step = steps[s];
  if (std::holds_alternative<Hold>(step)) return 0;
  if (std::holds_alternative<Add>(step))
    return s > 0 && std::holds_alternative<Add>(steps[s - 1]) ? 0 : 1;
  return 1;
}

class Player {
 public:
  Player(const DistPlan& plan, const Cluster& cluster, const LaunchTimes& launches,
         Transfers transfers, Timeline* timeline)
      : plan_(plan),
        cluster_(cluster),
        launches_(launches),
        overlapped_(transfers == Transfers::overlapped),
        timeline_(timeline),
        ranks_(plan.ranks.size()) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].inputs.resize(plan.whole.order_of_head.size());
      ranks_[r].results = ranks_[r].inputs;
      ranks_[r].passed.resize(ranks_[r].inputs.size());
      for (const Step& step : plan.ranks[r].steps)
        if (const auto* receive = std::get_if<Receive>(&step))
          ranks_[r].receives.push_back(receive->message);
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
        rank.asked = static_cast<double>(calls) * cluster_.call_us * 1e-6;
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

  // Each makes a step, or parks the rank until it can.

  bool make(int32_t, Rank& rank, const Hold& hold) {
    rank.passed[at(hold.head)].clear();
    return true;
  }

  bool make(int32_t r, Rank& rank, const Send& send) {
    Rank& to = rank_of(send.to);
    if (to.received == to.receives.size() || to.receives[to.received] != send.message)
      return park(r, send.message);
    const auto bytes = static_cast<double>(dist::message_bytes(plan_, send.boxes, send.sums));
    const int32_t head = head_of(send.boxes, send.sums);
    if (!overlapped_) copy(r, rank, bytes, head);
    const double ready = std::max(rank.asked, overlapped_ ? sendable(rank, send) : rank.clock);
    const bool inside = r / cluster_.ranks_per_node == send.to / cluster_.ranks_per_node;
    const LinkSpeed& link = inside ? cluster_.inside : cluster_.between;
    const double takes = link.gb_per_s > 0 ? bytes / (link.gb_per_s * 1e9) : 0;
    const double begin = std::max({ready, rank.link_out, to.link_in}), end = begin + takes;
    arrivals_[send.message] = end + link.latency_us * 1e-6;
    record(Kind::transfer, 2 * r + 1, head, begin, end);
    if (!overlapped_) rank.clock = end;
    rank.link_out = to.link_in = end;
    rank.time.sends += takes;
    ++to.received;
    wake(send.message);
    if (to.received < to.receives.size()) wake(to.receives[to.received]);
    return true;
  }

  bool make(int32_t r, Rank& rank, const Receive& receive) {
    const auto message = arrivals_.find(receive.message);
    if (message == arrivals_.end()) return park(r, receive.message);
    const double arrival = message->second;
    rank.done = std::max(rank.done, arrival);
    if (overlapped_) {
      for (const Box& box : receive.boxes) arrive(rank, box, arrival);
      for (const CarriedSum& sum : receive.sums) raise(result(rank, sum.head), arrival);
    } else {
      wait(r, rank, arrival);
      copy(r, rank, static_cast<double>(dist::message_bytes(plan_, receive.boxes, receive.sums)),
           head_of(receive.boxes, receive.sums));
    }
    arrivals_.erase(message);
    return true;
  }

  bool make(int32_t r, Rank& rank, const Copy& step) {
    double ready = 0;
    for (const Box& box : step.boxes) ready = std::max(ready, there(rank, box, step.from));
    wait(r, rank, ready);
    copy(r, rank, static_cast<double>(dist::message_bytes(plan_, step.boxes, {})),
         head_of(step.boxes, {}));
    for (const Box& box : step.boxes) arrive(rank, box, rank.clock);
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
    double ready = 0;
    for (const HeadPart& own : heads)
      raise(ready, std::max(rank.inputs[at(own.head)], result(rank, own.head)));
    wait(r, rank, overlapped_ ? std::max(ready, rank.asked) : rank.asked);
    record(kind, 2 * r, heads.size() == 1 ? heads[0].head : -1, rank.clock, rank.clock + takes);
    rank.clock += takes;
    rank.time.compute += takes;
    for (const HeadPart& own : heads) raise(result(rank, own.head), rank.clock);
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

  // What is there, head by head.

  static size_t at(int32_t head) { return static_cast<size_t>(head); }
  static double& result(Rank& rank, int32_t head) { return rank.results[at(head)]; }
  static void raise(double& time, double to) { time = std::max(time, to); }

  bool is_result(Operand operand) const {
    if (plan_.whole.pass == Pass::forward) return operand == Operand::o || operand == Operand::lse;
    return operand == Operand::dq || operand == Operand::dk || operand == Operand::dv;
  }

  /// Calls f(head) for the heads of a box.
  template <class F>
  void for_heads(const Box& box, F&& f) const {
    const Problem& problem = plan_.whole.problem;
    const int64_t each = dist::on_kv_axis(box.operand) ? 1 : problem.group();
    const int64_t first = box.range.batch * problem.kv_heads;
    for (int64_t h = box.heads.begin / each; h * each < box.heads.end; ++h)
      f(static_cast<size_t>(first + h));
  }

  void arrive(Rank& rank, const Box& box, double time) const {
    const bool result = is_result(box.operand), passes = !result && dist::on_kv_axis(box.operand);
    for_heads(box, [&](size_t head) {
      raise((result ? rank.results : rank.inputs)[head], time);
      if (overlapped_ && passes) rank.passed[head].emplace_back(box, time);
    });
  }

  /// What is at home is there from the start. K and V go on by themselves; results of a head when
  /// all that was made of them before is there.
  double there(const Rank& rank, const Box& box, Space space) const {
    double time = 0;
    if (!overlapped_ || space == Space::home) return time;
    for_heads(box, [&](size_t head) {
      if (is_result(box.operand)) return raise(time, rank.results[head]);
      for (const auto& [came, at] : rank.passed[head])
        if (came.operand == box.operand && came.range.rows.begin < box.range.rows.end &&
            box.range.rows.begin < came.range.rows.end)
          raise(time, at);
    });
    return time;
  }

  double sendable(Rank& rank, const Send& send) {
    double time = 0;
    for (const Box& box : send.boxes) raise(time, there(rank, box, send.space));
    for (const CarriedSum& sum : send.sums) raise(time, result(rank, sum.head));
    return time;
  }

  /// The head that all of it belongs to; -1: several.
  int32_t head_of(const Boxes& boxes, const std::vector<CarriedSum>& sums) const {
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
  Timeline* timeline_;
  std::vector<Rank> ranks_;
  std::unordered_map<int64_t, double> arrivals_;  // of messages sent and not yet taken
  std::unordered_map<int64_t, int32_t> parked_;   // ranks, by the message they wait for
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
