// Messages that come beside launches: what is wrong with them is found, and what a transport has
// not brought is not used.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "dist/dist_case.h"
#include "dist/held_sums.h"
#include "dist/ranks.h"
#include "dist/shard_memory.h"
#include "dist/sizes.h"

namespace verbatim::test {
namespace {

DistPlan overlapped_plan(Pass pass, const std::string& strategy = "balanced", int32_t world = 4) {
  static const DistCase c(problem_of(200), masks::causal(200, 200), kTile, "descending/rows:48");
  const auto dealt =
      c.deal({.world = world, .strategy = strategy, .joined_heads = 1, .overlapped = true});
  return pass == Pass::forward ? dealt.forward : dealt.backward;
}

struct Found {
  size_t rank, expect, receive;  // steps
  bool beside;                   // a launch is between the two
};
std::vector<Found> expected_in(const DistPlan& plan) {
  std::vector<Found> found;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const std::vector<Step>& steps = plan.ranks[r].steps;
    for (size_t s = 0; s < steps.size(); ++s) {
      if (!std::holds_alternative<Expect>(steps[s])) continue;
      const Receive* receive = dist::find_receive(steps, s);
      size_t end = s + 1;
      bool beside = false;
      while (std::get_if<Receive>(&steps[end]) != receive)
        beside |= std::holds_alternative<Compute>(steps[end++]);
      found.push_back({r, s, end, beside});
    }
  }
  return found;
}

/// Breaks a fresh plan at each Expect for which `break_it` returns true, and expects a refusal.
void expect_refused(
    Pass pass, const char* why,
    const std::function<bool(const Found&, RankPlan&, std::vector<Step>&)>& break_it) {
  const DistPlan good = overlapped_plan(pass);
  ASSERT_EQ(refusal(good), "");
  int tried = 0;
  for (const Found& at : expected_in(good)) {
    DistPlan bad = good;
    RankPlan& rank = bad.ranks[at.rank];
    if (!break_it(at, rank, rank.steps)) continue;
    ++tried;
    EXPECT_NE(refusal(bad).find(why), std::string::npos)
        << "rank " << at.rank << " step " << at.expect << ": " << refusal(bad);
  }
  EXPECT_GT(tried, 0);
}

ptrdiff_t place(size_t step) { return static_cast<ptrdiff_t>(step); }
Expect& expect_at(std::vector<Step>& steps, const Found& at) {
  return std::get<Expect>(steps[at.expect]);
}

TEST(Expect, EveryStrategyHasMessagesBesideLaunches) {
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (const std::string& strategy : strategy_names()) {
      if (pass == Pass::backward && strategy == "ulysses") continue;  // hands no sums on
      const std::vector<Found> found = expected_in(overlapped_plan(pass, strategy, 2));
      EXPECT_TRUE(std::ranges::any_of(found, &Found::beside)) << to_string(pass) << " " << strategy;
    }
}

TEST(Expect, LostDoubledOrNeverTaken) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    expect_refused(pass, "twice", [](const Found& at, RankPlan&, std::vector<Step>& steps) {
      steps.insert(steps.begin() + place(at.expect), Step(steps[at.expect]));
      return true;
    });
    expect_refused(pass, "never takes it",
                   [](const Found& at, RankPlan&, std::vector<Step>& steps) {
                     steps.erase(steps.begin() + place(at.receive));
                     return true;
                   });
    // Without any, launches wait until what was sent is taken behind them.
    DistPlan lost = overlapped_plan(pass);
    for (RankPlan& rank : lost.ranks)
      std::erase_if(rank.steps, [](const Step& s) { return std::holds_alternative<Expect>(s); });
    EXPECT_NE(refusal(lost).find("waits forever"), std::string::npos) << refusal(lost);
  }
}

TEST(Expect, InFrontOfAStepThatTheMessageDependsOn) {
  // Sums of others come from launches, which wait for what this rank takes first.
  expect_refused(Pass::backward, "", [](const Found& at, RankPlan&, std::vector<Step>& steps) {
    if (std::get<Receive>(steps[at.receive]).sums.empty()) return false;
    const Step expect = steps[at.expect];
    steps.erase(steps.begin() + place(at.expect));
    steps.insert(steps.begin(), expect);
    return true;
  });
}

TEST(Expect, MemoryThatIsNotThereOrAnothers) {
  for (const int64_t at : {int64_t{-1}, INT64_MAX})
    expect_refused(Pass::forward, at < 0 ? "does not fill" : "have room",
                   [at](const Found& found, RankPlan&, std::vector<Step>& steps) {
                     expect_at(steps, found).at = at;
                     return true;
                   });
  expect_refused(Pass::forward, "have room", [](const Found& at, RankPlan& rank, auto& steps) {
    rank.landing = expect_at(steps, at).at;
    return true;
  });
  // Where the message lands that is expected behind it, or was before.
  expect_refused(Pass::forward, "another lands", [](const Found& at, RankPlan&, auto& steps) {
    const auto* next = std::get_if<Expect>(&steps[at.expect + 1]);
    if (next) expect_at(steps, at).at = next->at;
    return next != nullptr;
  });
}

TEST(Expect, BlocksThatALaunchWritesMeanwhile) {
  expect_refused(Pass::backward, "second sum into block",
                 [](const Found& at, RankPlan&, std::vector<Step>& steps) {
                   if (!at.beside || expect_at(steps, at).at >= 0) return false;
                   const auto launch = std::find_if(
                       steps.begin() + place(at.expect), steps.end(),
                       [](const Step& s) { return std::holds_alternative<Compute>(s); });
                   std::get<Compute>(*launch).heads.front().carries.front().out =
                       std::get<Receive>(steps[at.receive]).sums.front().block;
                   return true;
                 });
}

TEST(Expect, InAnotherSequenceThanThatOfTheSends) {
  const DistCase c(problem_of(200), masks::full(200, 200), kTile);
  DistPlan plan = c.deal({.world = 2, .joined_heads = 1, .overlapped = true}).forward;
  ASSERT_EQ(refusal(plan), "");
  // The message of the second turn before that of the first, both of which are sent by then.
  Step first = Send{1, 1000, Space::home, {}}, second = Send{1, 1001, Space::home, {}};
  plan.ranks[0].steps.insert(plan.ranks[0].steps.begin(), {first, second});
  const auto receive = [](int64_t message) { return Receive{0, message, Space::home, {}}; };
  std::vector<Step>& steps = plan.ranks[1].steps;
  steps.insert(steps.begin(), {receive(1000), receive(1001)});
  EXPECT_EQ(refusal(plan), "");
  EXPECT_NO_THROW(replay(plan, c.tensors.forward()));  // messages of nothing, too
  std::swap(steps[0], steps[1]);
  EXPECT_NE(refusal(plan).find("takes message 1001 of rank 0, whose message 1000 comes first"),
            std::string::npos)
      << refusal(plan);
}

TEST(Expect, BlocksThatWaitAreHeld) {
  dist::HeldSums sums(4);
  sums.expect(1, 2);
  EXPECT_EQ(sums.held(), 2);
  EXPECT_EQ(sums.find_held(0, 4), 1);
  EXPECT_EQ(sums.take(1, 2).count, 0);
  sums.release(1, 2);
  EXPECT_EQ(sums.held(), 0);
  EXPECT_EQ(sums.find_held(0, 4), -1);
}

TEST(Expect, BlocksAndMessagesOfASectionAlone) {
  const auto section = [](const Found& at, size_t begin, size_t end) {
    return Section{{{static_cast<int32_t>(at.rank), begin, end}}};
  };
  const DistPlan forward = overlapped_plan(Pass::forward);
  EXPECT_TRUE(forward.sections.empty());
  for (const Found& at : expected_in(forward))
    for (const size_t step : {at.expect, at.receive}) {
      DistPlan bad = forward;
      bad.sections = {section(at, step, step + 1)};
      EXPECT_NE(refusal(bad).find("in another section"), std::string::npos) << refusal(bad);
    }
  const DistPlan backward = overlapped_plan(Pass::backward);
  EXPECT_TRUE(backward.sections.empty());
  for (const Found& at : expected_in(backward)) {
    if (std::get<Expect>(backward.ranks[at.rank].steps[at.expect]).at >= 0) continue;
    DistPlan bad = backward;
    bad.sections = {section(at, at.expect + 1, at.receive + 1)};
    EXPECT_NE(refusal(bad).find("with sums in its blocks"), std::string::npos) << refusal(bad);
  }
}

/// Brings zeros, and fails in a send.
class FailingTransport final : public Transport {
 public:
  explicit FailingTransport(int sends) : sends_(sends) {}
  void send(int32_t, int64_t, std::span<const std::byte>) override {
    if (sends_-- == 0) throw Error(ErrorCode::unsupported, "test", "no more");
  }
  bool receive(int32_t, int64_t, std::span<std::byte> bytes) override {
    std::ranges::fill(bytes, std::byte{});
    return true;
  }
  bool expect(int32_t from, int64_t message, std::span<std::byte>) override {
    expected.insert({from, message});
    most = std::max(most, expected.size());
    return true;
  }
  void came(int32_t from, int64_t message) override {
    EXPECT_EQ(expected.erase({from, message}), 1u);
  }
  std::set<std::pair<int32_t, int64_t>> expected;
  size_t most = 0;

 private:
  int sends_;
};

TEST(Expect, ARankThatFailsWaitsForWhatItExpects) {
  const DistPlan plan = overlapped_plan(Pass::backward);
  const auto backend = make_backend("cpu");
  const RunOptions run{.threads = 1};
  size_t most = 0;
  for (int sends = 0; sends < 8; ++sends) {
    dist::ShardMemory shard(plan, 0, *backend, run);
    FailingTransport transport(sends);
    EXPECT_THROW(dist::run_rank(plan, 0, *backend, shard.tensors(), run, transport), Error);
    EXPECT_TRUE(transport.expected.empty());
    most = std::max(most, transport.most);
  }
  EXPECT_GT(most, 0u);
}

}  // namespace
}  // namespace verbatim::test
