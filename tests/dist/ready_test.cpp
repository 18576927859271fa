// What a rank makes anew in every run of a plan, and what it waits for.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "dist/dist_case.h"
#include "dist/memory_wire.h"
#include "dist/ranks.h"
#include "dist/shard_memory.h"
#include "dist/sizes.h"

namespace verbatim::test {
namespace {

/// The CPU's, which counts what would cost a GPU's host time.
class CountingBackend final : public Backend {
 public:
  mutable std::atomic<int> made = 0, launched = 0, waits = 0;
  mutable std::atomic<int64_t> allocated = 0;  // bytes, so far

  std::string_view name() const override { return cpu_->name(); }
  void check(const Problem& problem) const override { cpu_->check(problem); }
  std::string_view arithmetic() const override { return cpu_->arithmetic(); }
  int32_t residents() const override { return cpu_->residents(); }
  std::string machine() const override { return cpu_->machine(); }
  int64_t workspace_bytes(const Plan& plan) const override { return cpu_->workspace_bytes(plan); }
  std::string kernel_name(const Plan& plan) const override { return cpu_->kernel_name(plan); }
  void forward(const std::shared_ptr<const Plan>& plan, const ForwardTensors& tensors,
               const RunOptions& run) const override {
    cpu_->forward(plan, tensors, run);
  }
  void backward(const std::shared_ptr<const Plan>& plan, const BackwardTensors& tensors,
                const RunOptions& run) const override {
    cpu_->backward(plan, tensors, run);
  }
  std::unique_ptr<const ReadyLaunch> ready_piece(const Plan& whole, const Piece& piece,
                                                 const PieceMemory& memory, int64_t q_heads,
                                                 const RunOptions& run) const override {
    ++made;
    return cpu_->ready_piece(whole, piece, memory, q_heads, run);
  }
  void forward_piece(const ReadyLaunch& piece, const ForwardTensors& tensors,
                     const PieceMemory& memory, const RunOptions& run) const override {
    ++launched;
    cpu_->forward_piece(piece, tensors, memory, run);
  }
  void backward_piece(const ReadyLaunch& piece, const BackwardTensors& tensors,
                      const PieceMemory& memory, const RunOptions& run) const override {
    ++launched;
    cpu_->backward_piece(piece, tensors, memory, run);
  }
  std::unique_ptr<const ReadyLaunch> ready_sums(const Plan& whole, std::span<const TileSums> tiles,
                                                const PieceMemory& memory,
                                                const RunOptions& run) const override {
    ++made;
    return cpu_->ready_sums(whole, tiles, memory, run);
  }
  void add(const ReadyLaunch& sums, const BackwardTensors& tensors, const PieceMemory& memory,
           const RunOptions& run) const override {
    ++launched;
    cpu_->add(sums, tensors, memory, run);
  }
  std::shared_ptr<std::byte> allocate(int64_t bytes, const RunOptions& run) const override {
    allocated += bytes;
    return cpu_->allocate(bytes, run);
  }
  std::unique_ptr<Moment> moment(const RunOptions& run) const override {
    ++waits;
    return cpu_->moment(run);
  }
  int64_t dq_sum_floats(const Plan& whole, const HeldRows& rows, int64_t heads) const override {
    return cpu_->dq_sum_floats(whole, rows, heads);
  }
  void synchronize(const RunOptions& run) const override {
    ++waits;
    cpu_->synchronize(run);
  }

 private:
  std::unique_ptr<Backend> cpu_ = make_cpu_backend();
};

constexpr int32_t kRanks = 3;

/// Gives room for messages.
class Roomy final : public Transport {
 public:
  explicit Roomy(Transport& inner) : inner_(inner) {}
  std::byte* room(int64_t bytes) override {
    return rooms_.emplace_back(static_cast<size_t>(bytes)).data();
  }
  void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override {
    EXPECT_LE(rooms_.back().data(), bytes.data());
    EXPECT_LE(bytes.data() + bytes.size(), rooms_.back().data() + rooms_.back().size());
    inner_.send(to, message, bytes);
  }
  bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override {
    return inner_.receive(from, message, bytes);
  }
  int64_t rooms() const { return std::ssize(rooms_); }

 private:
  Transport& inner_;
  std::vector<std::vector<std::byte>> rooms_;
};

/// Sends that follow each other are packed together.
int64_t packs_of(const DistPlan& plan, const std::vector<Step>& steps) {
  int64_t packs = 0;
  for (size_t s = 0; s < steps.size();) {
    const bool sends = std::holds_alternative<Send>(steps[s]);
    packs += sends ? 1 : 0;
    s += sends ? dist::copied_together(plan, steps, s) : 1;
  }
  return packs;
}

/// Runs a pass of all ranks, each with what it is asked.
void run_ranks(const DistPlan& plan, const dist::LocalTensors& whole, const Backend& backend,
               const std::vector<dist::RankRun>& asked) {
  Lines lines(kRanks);
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      try {
        MemoryWire wire(lines, r);
        dist::Courier courier(wire, 60);
        const RunOptions run{.threads = 1};
        dist::ShardMemory shard(plan, r, backend, run);
        shard.take(whole);
        Roomy transport(courier);
        dist::run_rank(plan, r, backend, shard.tensors(), run, transport,
                       asked[static_cast<size_t>(r)]);
        EXPECT_EQ(transport.rooms(), packs_of(plan, plan.ranks[static_cast<size_t>(r)].steps));
        shard.give(whole);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = error.what();
        lines.over = true;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
}

/// One for each Compute step, and for each row of Add steps.
int launches_of(const DistPlan& plan) {
  int count = 0;
  for (const RankPlan& rank : plan.ranks)
    for (size_t i = 0; i < rank.steps.size(); ++i) {
      const auto adds = [&](size_t at) { return std::holds_alternative<Add>(rank.steps[at]); };
      count += std::holds_alternative<Compute>(rank.steps[i]) || (adds(i) && !adds(i - 1));
    }
  return count;
}

TEST(ReadyLaunches, AreMadeInTheFirstRunAndNothingWaits) {
  DistCase c(problem_of(200, 6, 3), masks::causal(200, 200), kTile, "descending/split:2");
  const auto dealt = c.deal({.world = kRanks, .strategy = "ring"});
  CountingBackend backend;
  std::vector<dist::ReadyLaunches> kept_forward(kRanks), kept_backward(kRanks);
  std::vector<dist::RankRun> forward, backward;
  for (auto& kept : kept_forward) forward.push_back({.kept = &kept});
  for (auto& kept : kept_backward) backward.push_back({.kept = &kept});
  const int launches = launches_of(dealt.forward) + launches_of(dealt.backward);
  for (int step = 0; step < 3; ++step) {
    for (GuardedTensor* output : c.outputs()) output->poison();
    run_ranks(dealt.forward, dist::whole_tensors(c.tensors.forward()), backend, forward);
    run_ranks(dealt.backward, dist::whole_tensors(c.tensors.backward()), backend, backward);
    EXPECT_EQ(c.tensors.hashes(), c.expected) << step;
    EXPECT_EQ(backend.made, launches) << step;  // of the first run alone
    EXPECT_EQ(backend.launched, (step + 1) * launches);
  }
  EXPECT_EQ(backend.waits, 0);
}

/// What a record of the plan's steps has but for what is unpacked: kinds and bytes, in their
/// sequence.
std::vector<std::pair<StepTime::Kind, int64_t>> expected_times(const DistPlan& plan, int32_t rank) {
  using Kind = StepTime::Kind;
  std::vector<std::pair<Kind, int64_t>> expected;
  const auto bytes_of = [&](const auto& step) {
    return dist::message_bytes(plan, step.boxes, step.sums);
  };
  const std::vector<Step>& steps = plan.ranks[static_cast<size_t>(rank)].steps;
  for (size_t s = 0, packed = 0; s < steps.size(); ++s) {
    const Step& step = steps[s];
    if (const auto* send = std::get_if<Send>(&step)) {
      if (s >= packed) {
        packed = s + dist::copied_together(plan, steps, s);
        int64_t bytes = 0;
        for (size_t i = s; i < packed; ++i) bytes += bytes_of(std::get<Send>(steps[i]));
        expected.emplace_back(Kind::pack, bytes);
      }
      expected.emplace_back(Kind::send, bytes_of(*send));
    } else if (std::holds_alternative<Expect>(step)) {
      expected.emplace_back(Kind::expect, 0);
    } else if (const auto* receive = std::get_if<Receive>(&step)) {
      expected.emplace_back(Kind::receive, bytes_of(*receive));
    } else if (const auto* copy = std::get_if<Copy>(&step)) {
      expected.emplace_back(Kind::copy, dist::message_bytes(plan, copy->boxes, {}));
    } else {
      if (std::holds_alternative<Hold>(step)) continue;
      const Kind kind = std::holds_alternative<Compute>(step) ? Kind::launch : Kind::add;
      if (kind == Kind::launch) expected.emplace_back(Kind::settle, 0);
      if (kind == Kind::add && expected.back().first == kind) continue;
      expected.emplace_back(kind, 0);
    }
  }
  return expected;
}

class StepRecord : public testing::TestWithParam<std::tuple<std::string, bool>> {};
INSTANTIATE_TEST_SUITE_P(Dist, StepRecord,
                         testing::Combine(testing::Values<std::string>("ring", "allgather"),
                                          testing::Bool()));

TEST_P(StepRecord, HasWhatARankDidInItsSequence) {
  DistCase c(problem_of(200, 6, 3), masks::causal(200, 200), kTile, "descending/split:2");
  const auto [strategy, overlapped] = GetParam();
  const auto dealt = c.deal({.world = kRanks, .strategy = strategy, .overlapped = overlapped});
  const auto backend = make_cpu_backend();
  std::vector<dist::StepRecord> records;
  for (int32_t r = 0; r < kRanks; ++r) records.emplace_back(*backend, RunOptions{});
  std::vector<dist::RankRun> asked;
  for (dist::StepRecord& record : records) asked.push_back({.record = &record});
  int64_t received = 0, unpacked = 0, sent = 0, packed = 0;
  run_ranks(dealt.forward, dist::whole_tensors(c.tensors.forward()), *backend, asked);
  run_ranks(dealt.backward, dist::whole_tensors(c.tensors.backward()), *backend, asked);
  for (int32_t r = 0; r < kRanks; ++r) {
    const std::vector<StepTime> times = records[static_cast<size_t>(r)].times();
    std::vector<std::pair<StepTime::Kind, int64_t>> found[2];
    double issued = 0, end = 0;
    int64_t came = 0;  // bytes that are not unpacked yet, or need not be
    for (const StepTime& time : times) {
      received += time.kind == StepTime::Kind::receive;
      unpacked += time.kind == StepTime::Kind::unpack;
      sent += time.kind == StepTime::Kind::send;
      packed += time.kind == StepTime::Kind::pack;
      if (time.kind == StepTime::Kind::receive) came += time.bytes;
      if (time.kind == StepTime::Kind::unpack) {
        EXPECT_LE(time.bytes, std::exchange(came, 0));
      } else {
        found[time.pass == Pass::forward ? 0 : 1].emplace_back(time.kind, time.bytes);
      }
      EXPECT_LE(issued, time.called);
      EXPECT_LE(time.called, time.issued);
      EXPECT_LE(end, time.begin);
      EXPECT_LE(time.begin, time.end);
      issued = time.issued;
      end = time.end;
    }
    EXPECT_EQ(found[0], expected_times(dealt.forward, r)) << r;
    EXPECT_EQ(found[1], expected_times(dealt.backward, r)) << r;
    EXPECT_EQ(records[static_cast<size_t>(r)].report().sent_bytes,
              sent_bytes(dealt.forward, r) + sent_bytes(dealt.backward, r));
  }
  EXPECT_LT(unpacked, received);  // others came where they belong, or with others
  if (strategy == "allgather") {
    EXPECT_LT(packed, sent);
  }
}

TEST(SmallMessages, OfOneRankToAnotherAreOne) {
  const DistCase c(problem_of(200, 8, 8), masks::full(200, 200), kTile, "shift");
  const DistPlan plan = c.deal({.world = 2, .strategy = "ring"}).backward;
  verify(plan);
  bool several = false;  // heads in a message
  for (const RankPlan& rank : plan.ranks) {
    bool sums = false;  // in the step before
    for (const Step& step : rank.steps) {
      const auto* send = std::get_if<Send>(&step);
      const bool now = send && !send->sums.empty();
      EXPECT_FALSE(now && sums) << "message " << send->message
                                << " could have been one with the last";
      sums = now;
      for (size_t i = 1; now && i < send->sums.size(); ++i)
        several |= send->sums[i].head != send->sums[0].head;
    }
  }
  EXPECT_TRUE(several);
}

/// What a rank holds when it begins; what comes later are messages (docs/context-parallel.md).
TEST(RankMemory, IsWhatIsPlanned) {
  const RunOptions run{.threads = 1};
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32})
    for (const Mask& mask : every_mask(4)) {
      Problem problem = problem_of(200, 8, 4);
      problem.dtype = dtype;
      const DistCase c(problem, mask, kTile);
      for (const std::string& strategy : strategy_names()) {
        const DistOptions options{.world = 4, .strategy = strategy};
        const auto dealt = c.deal(options), overlapped = c.deal(overlapped_of(options));
        for (const DistPlan* plan :
             {&dealt.forward, &dealt.backward, &overlapped.forward, &overlapped.backward})
          for (int32_t r = 0; r < 4; ++r) {
            const CountingBackend backend;
            const dist::ShardMemory shard(*plan, r, backend, run);
            const dist::RankExecutor executor(*plan, r, backend, shard.tensors(), run);
            EXPECT_EQ(backend.allocated, memory_bytes(*plan, r))
                << mask.name() << " " << strategy << ", rank " << r;
          }
      }
    }
}

}  // namespace
}  // namespace verbatim::test
