// Ranks that share nothing but a wire: here threads, each with tensors of its own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>

#include "dist/dist_case.h"
#include "dist/faulty_wire.h"
#include "dist/memory_wire.h"
#include "dist/processes.h"

namespace verbatim::test {
namespace {

constexpr int32_t kRanks = 3;

struct Fault {
  std::string kind;
  int64_t at = 0;
};

/// What each of the ranks, run in a thread, threw; rank 1 sends over a wire with that fault.
std::vector<std::string> errors_of(const std::function<void(dist::Processes&)>& run,
                                   const Fault& fault = {}, double timeout = 60,
                                   uint64_t delay = 0) {
  Lines lines(kRanks, delay);
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      MemoryWire memory(lines, r);
      FaultyWire wire(memory, r == 1 ? fault.kind : "", fault.at);
      // A rank that is held waits for a meeting, too: the others are to tell first.
      const double own = r == 1 && fault.kind == "held" ? 10 * timeout : timeout;
      dist::Processes processes(wire, own);
      try {
        run(processes);
      } catch (const dist::Refused& error) {  // all throw it, when they have heard of it
        errors[r] = error.what();
      } catch (const std::exception& error) {
        errors[r] = error.what();
        lines.over = true;
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}
const std::vector<std::string> kNone(kRanks);

/// The same problem for each rank.
class Ranks {
 public:
  explicit Ranks(const std::string& strategy)
      : options_{.world = kRanks, .strategy = strategy, .shard = "zigzag"} {
    for (auto& c : cases_)
      c = std::make_unique<DistCase>(Problem{.q_heads = 6,
                                             .kv_heads = 3,
                                             .q_len = 100,
                                             .kv_len = 100,
                                             .head_dim = 16,
                                             .head_dim_v = 16,
                                             .dtype = Dtype::bf16},
                                     masks::causal(100, 100), TileShape{16, 16}, "descending");
  }
  void run(dist::Processes& processes) { cases_[processes.rank()]->run_in(processes, options_); }
  /// Whether rank 0 has the bits of one device.
  bool same() const { return cases_[0]->tensors.hashes() == cases_[0]->expected; }
  /// Those that rank 1 sends before the last meeting. It meets the two others before and after each
  /// pass, and what the forward made is gathered in four: a report in two, O and LSE.
  int64_t frames() const {
    const DistCase::Dealt dealt = cases_[0]->deal(options_);
    int64_t count = 3 * (kRanks - 1) + 4;
    for (const DistPlan* plan : {&dealt.forward, &dealt.backward})
      for (const Step& step : plan->ranks[1].steps) count += std::holds_alternative<Send>(step);
    return count;
  }

 private:
  DistOptions options_;
  std::array<std::unique_ptr<DistCase>, kRanks> cases_;
};

TEST(DistWire, EveryStrategyHasTheBitsOfOneDevice) {
  for (const std::string& strategy : strategy_names()) {
    SCOPED_TRACE(strategy);
    Ranks ranks(strategy);
    for (const uint64_t delay : {0, 500}) {
      EXPECT_EQ(errors_of([&](auto& processes) { ranks.run(processes); }, {}, 60, delay), kNone);
      EXPECT_TRUE(ranks.same());
    }
  }
}

class EveryTransfer : public testing::TestWithParam<const char*> {};

TEST_P(EveryTransfer, IsMissedWhenItGoesWrong) {
  const std::string kind = GetParam();
  Ranks ranks("ulysses");
  const int64_t frames = ranks.frames();  // behind the last meeting ranks may listen no more
  // What is not doubled shows only when a rank has waited for half of its timeout: fewer of these.
  for (int64_t at = kind == "doubled" ? 0 : 3; at < frames; at += kind == "doubled" ? 1 : 7) {
    std::string all;
    for (const std::string& error :
         errors_of([&](auto& processes) { ranks.run(processes); }, {kind, at}, 8))
      all += error + "\n";
    const char* const fault = kind == "doubled" ? "came twice" : "lost or comes out of turn";
    EXPECT_TRUE(all.find("rank 1") != std::string::npos && all.find(fault) != std::string::npos)
        << kind << " at " << at << ": " << all;
  }
}
INSTANTIATE_TEST_SUITE_P(DistWire, EveryTransfer, testing::Values("lost", "doubled", "swapped"),
                         [](const auto& info) { return std::string(info.param); });

TEST(DistWire, ATransferThatNeverComesNamesRankAndStep) {
  Ranks ranks("ring");
  // All behind the first meeting: both others wait at a step.
  std::string all;
  for (const std::string& error :
       errors_of([&](auto& processes) { ranks.run(processes); }, {"held", 2}, 5))
    all += error + "\n";
  EXPECT_NE(all.find("at step"), std::string::npos) << all;
  EXPECT_NE(all.find(" in 5 s"), std::string::npos) << all;
  EXPECT_NE(all.find("rank 1"), std::string::npos) << all;
}

TEST(DistWire, ATransferThatNeverComesNamesTheCall) {
  Ranks ranks("ring");
  const auto agree = [](dist::Processes& processes) { processes.agree("{}"); };
  const auto run = [&](dist::Processes& processes) { ranks.run(processes); };
  const auto expect = [](const auto& calls, int64_t at, const std::string& call) {
    std::string all;  // the first to give up is any of those that wait
    for (const std::string& error : errors_of(calls, {"held", at}, 2)) all += error + "\n";
    EXPECT_NE(all.find(", as " + call + ", did not come to rank "), std::string::npos) << all;
    EXPECT_NE(all.find(" in 2 s"), std::string::npos) << all;
    EXPECT_NE(all.find("rank 1"), std::string::npos) << all;
    EXPECT_EQ(all.find("message"), std::string::npos) << all;
  };
  expect(agree, 0, "ranks compare what they were asked");
  expect(run, 0, "ranks meet");
  expect(run, ranks.frames() + kRanks - 1,
         "rank 0 gathers what ranks made");  // behind all meetings
}

TEST(DistWire, RanksThatDifferAreToldApart) {
  const std::string usual = R"({"version": "1", "problem": {"scale": 0.5, "seed": 3}, "x": 1})";
  const auto with = [&](const std::string& other) {
    return errors_of([&](dist::Processes& p) { p.agree(p.rank() == 2 ? other : usual); });
  };
  EXPECT_EQ(with(usual), kNone);
  const auto expect = [&](const std::string& other, const std::string& message) {
    for (const std::string& error : with(other)) EXPECT_EQ(error, "[dist.agree] " + message);
  };
  expect(R"({"version": "2", "problem": {"scale": 0.5, "seed": 3}, "x": 1})",
         R"(version of rank 2 is another; got "2", expected "1", as rank 0 has it)");
  expect(R"({"version": "1", "problem": {"scale": 0.25, "seed": 4}, "x": 1})",
         "problem.scale of rank 2 is another; got 0.25, expected 0.5, as rank 0 has it");
  expect(R"({"version": "1", "problem": {"scale": 0.5}, "x": 1})",
         "problem.seed of rank 2 is another; got none, expected 3, as rank 0 has it");
}

TEST(DistWire, BadInputOfOneRankIsToldToAll) {
  const auto errors = errors_of([](dist::Processes& p) {
    const Error bad(ErrorCode::unsupported, "mask", "no such name",
                    {"mask", "causl", "a name", "causal"});
    try {
      p.agree("{}", p.rank() == 1 ? &bad : nullptr);
    } catch (const dist::Refused& told) {
      EXPECT_EQ(told.code(), bad.code()) << "at rank " << p.rank();
      throw;
    }
  });
  for (const std::string& error : errors)
    EXPECT_EQ(error, "[mask] rank 1: no such name; got causl, expected a name (nearest: causal)");
}

}  // namespace
}  // namespace verbatim::test
