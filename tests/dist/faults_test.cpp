// What is wrong in a distributed plan is found before anything runs, or while it does.
#include "dist/faults.h"

#include <fmt/format.h>

#include <algorithm>

namespace verbatim::test {
namespace {

TEST(DistFaults, ATransferLost) {
  expect_refused<Send>(any<Send>, erase);
  expect_refused<Receive>(any<Receive>, erase);
  expect_refused<Copy>(any<Copy>, erase);
}

TEST(DistFaults, ATransferDoubled) {
  expect_refused<Send>(any<Send>, repeat);
  expect_refused<Receive>(any<Receive>, repeat);
  expect_refused<Send>(any<Send>, [](std::vector<Step>& steps, size_t at) {
    repeat(steps, at);
    std::get<Send>(steps[at]).message = 1 << 20;
  });
}

TEST(DistFaults, ANumberOfTwoMessages) {
  const DistPlan good = backward_plan();
  const auto sends = find<Send>(good, any<Send>);
  for (size_t i = 1; i < sends.size(); ++i) {
    DistPlan bad = good;
    const auto send_at = [&](size_t n) -> Send& {
      return std::get<Send>(bad.ranks[sends[n].first].steps[sends[n].second]);
    };
    Send& send = send_at(i);
    for (Step& step : bad.ranks[static_cast<size_t>(send.to)].steps)
      if (auto* receive = std::get_if<Receive>(&step); receive && receive->message == send.message)
        receive->message = send_at(i - 1).message;
    send.message = send_at(i - 1).message;
    const std::string expected =
        fmt::format("two messages have the number {}: one of rank {} and one of rank {}",
                    send.message, sends[i - 1].first, sends[i].first);
    EXPECT_NE(refusal(bad).find(expected), std::string::npos) << refusal(bad);
  }
}

/// Those are of messages of a transport's own.
TEST(DistFaults, ANumberBelowZero) {
  const DistPlan good = backward_plan();
  for (const auto& [rank, step] : find<Send>(good, any<Send>)) {
    DistPlan bad = good;
    Send& send = std::get<Send>(bad.ranks[rank].steps[step]);
    for (Step& other : bad.ranks[static_cast<size_t>(send.to)].steps)
      if (auto* receive = std::get_if<Receive>(&other); receive && receive->message == send.message)
        receive->message = -1;
    send.message = -1;
    EXPECT_NE(refusal(bad).find(fmt::format("of rank {} has the number -1", rank)),
              std::string::npos)
        << refusal(bad);
  }
}

TEST(DistFaults, TransfersInEachOthersPlace) {
  const DistPlan good = backward_plan();
  int tried = 0;
  for (size_t r = 0; r < good.ranks.size(); ++r) {
    // Two messages to one rank that hold different things change numbers.
    const auto sends = find<Send>(good, any<Send>);
    for (const auto& [rank, first] : sends) {
      if (rank != r) continue;
      for (const auto& [other, second] : sends) {
        if (other != rank || second <= first) continue;
        DistPlan bad = good;
        Send& a = std::get<Send>(bad.ranks[rank].steps[first]);
        Send& b = std::get<Send>(bad.ranks[rank].steps[second]);
        if (a.to != b.to) continue;
        std::swap(a.message, b.message);
        EXPECT_NE(refusal(bad), "") << "rank " << rank << " steps " << first << ", " << second;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 0);
}

TEST(DistFaults, AWaitOfTwoRanksForEachOther) {
  // A rank that first takes what another sends only when it has what this one sends later.
  const auto of_sums = [](const Receive& receive) { return !receive.sums.empty(); };
  expect_refused<Receive>(of_sums, [](std::vector<Step>& steps, size_t at) {
    const Step receive = steps[at];
    erase(steps, at);
    steps.insert(steps.begin(), receive);
  });
}

TEST(DistFaults, APieceTwiceOrNever) {
  expect_refused<Compute>(any<Compute>, repeat);
  expect_refused<Compute>(any<Compute>, erase);
  expect_refused<Add>(any<Add>, repeat);
  expect_refused<Add>(any<Add>, erase);
}

TEST(DistFaults, ACarriedSumTakenAStepEarly) {
  const auto carries = [](const Compute& compute) {
    return std::ranges::any_of(compute.heads.front().carries,
                               [](const Carry& c) { return c.in >= 0; });
  };
  // The launch comes before the one, or the message, that its sums come from.
  expect_refused<Compute>(carries, [](std::vector<Step>& steps, size_t at) {
    const Step compute = steps[at];
    erase(steps, at);
    steps.insert(steps.begin(), compute);
  });
  // A chain that should go on starts from zero.
  expect_refused<Compute>(carries, [](std::vector<Step>& steps, size_t at) {
    for (Carry& carry : std::get<Compute>(steps[at]).heads.front().carries) carry.in = -1;
  });
  // A chain takes the sum of another.
  expect_refused<Compute>(
      [&](const Compute& compute) {
        return carries(compute) && compute.heads.front().carries.size() > 1;
      },
      [](std::vector<Step>& steps, size_t at) {
        auto& all = std::get<Compute>(steps[at]).heads.front().carries;
        std::swap(all.front().in, all.back().in);
      });
}

TEST(DistFaults, SumsOfOtherTilesOrBlocks) {
  const auto of_sums = [](const auto& step) { return !step.sums.empty(); };
  const auto expect = [&](const std::function<void(CarriedSum&)>& how) {
    expect_refused<Send>(of_sums, [&](std::vector<Step>& steps, size_t at) {
      edit(std::get<Send>(steps[at]).sums, [&](auto& sums) { how(sums.back()); });
    });
    expect_refused<Receive>(of_sums, [&](std::vector<Step>& steps, size_t at) {
      edit(std::get<Receive>(steps[at]).sums, [&](auto& sums) { how(sums.back()); });
    });
  };
  expect([](CarriedSum& sum) { --sum.count; });
  expect([](CarriedSum& sum) { ++sum.count; });
  expect([](CarriedSum& sum) { ++sum.kv_tile; });
  expect([](CarriedSum& sum) { ++sum.head; });
  expect([](CarriedSum& sum) { sum.block = 1 << 20; });
}

/// A chunk of 64 rows is one rank's, and 8 or 9 KV tiles are at home on each: their sums go
/// together.
DistPlan chunked_plan(const char* order) {
  const DistCase c(problem_of(400), masks::causal(400, 400), kTile, order);
  return c.deal({.world = 3, .strategy = "ring", .shard = "contiguous"}).backward;
}

TEST(DistFaults, SumsOfSeveralTilesAtOnce) {
  for (const char* order : {"ascending/rows:64", "descending/rows:64"}) {
    SCOPED_TRACE(order);
    const DistPlan good = chunked_plan(order);
    const auto several = [](const auto& step) {
      return std::ranges::any_of(step.sums, [](const CarriedSum& sum) { return sum.count > 1; });
    };
    const auto turn = [](std::vector<CarriedSum>& sums) {
      for (CarriedSum& sum : sums) {
        sum.kv_tile += sum.step * (sum.count - 1);
        sum.step = -sum.step;
      }
    };
    expect_refused<Send>(
        several, [&](auto& steps, size_t at) { edit(std::get<Send>(steps[at]).sums, turn); }, good);
    expect_refused<Receive>(
        several, [&](auto& steps, size_t at) { edit(std::get<Receive>(steps[at]).sums, turn); },
        good);
    const auto spread = [](std::vector<CarriedSum>& sums) {
      for (CarriedSum& sum : sums) sum.step *= 2;
    };
    expect_refused<Send>(
        [](const Send& send) { return !send.sums.empty(); },
        [&](auto& steps, size_t at) { edit(std::get<Send>(steps[at]).sums, spread); }, good);
    expect_refused<Receive>(
        [](const Receive& receive) { return !receive.sums.empty(); },
        [&](auto& steps, size_t at) { edit(std::get<Receive>(steps[at]).sums, spread); }, good);
    const auto expect = [&](const std::function<void(Add&)>& how) {
      expect_refused<Add>(
          [](const Add& add) { return add.count > 1 && add.sums.blocks.size() > 1; },
          [&](auto& steps, size_t at) { how(std::get<Add>(steps[at])); }, good);
    };
    expect([](Add& add) { --add.count; });
    expect([](Add& add) { ++add.sums.kv_tile; });
    expect([](Add& add) { add.step = -add.step; });
    expect([](Add& add) { add.step *= 2; });
    expect([](Add& add) { add.sums.blocks.pop_back(); });
    expect([](Add& add) { add.sums.blocks.clear(); });
    expect([](Add& add) { std::swap(add.sums.blocks.front(), add.sums.blocks.back()); });
  }
}

/// 3 KV heads with 2 query heads each, in launches of several.
DistPlan joined_plan() {
  static const DistCase c(problem_of(200, 6, 3), masks::causal(200, 200), kTile, "descending");
  return c.deal({.world = 2, .strategy = "ring"}).backward;
}
bool of_several(const Compute& compute) { return compute.heads.size() > 1; }

TEST(DistFaults, ALaunchOfHeadsThatCannotBeOne) {
  const auto expect = [](const std::function<void(std::vector<HeadPart>&)>& how) {
    expect_refused<Compute>(
        of_several,
        [&](std::vector<Step>& steps, size_t at) { how(std::get<Compute>(steps[at]).heads); },
        joined_plan());
  };
  expect([](std::vector<HeadPart>& heads) { heads.clear(); });
  expect([](std::vector<HeadPart>& heads) { heads.pop_back(); });
  expect([](std::vector<HeadPart>& heads) { heads.push_back(heads.back()); });
  expect([](std::vector<HeadPart>& heads) { std::swap(heads.front(), heads.back()); });
  expect([](std::vector<HeadPart>& heads) { heads.back().head = 1 << 20; });
  expect([](std::vector<HeadPart>& heads) { heads.back().carries.pop_back(); });
}

TEST(DistFaults, ALaunchWhoseHeadsAreNotAsFarApartAsTheirMemory) {
  const DistPlan good = joined_plan();
  DistPlan bad = good;
  for (Step& step : bad.ranks[0].steps)
    if (Hold* hold = std::get_if<Hold>(&step)) hold->slot = 2 - hold->slot;
  EXPECT_EQ(refusal(good), "");
  EXPECT_NE(refusal(bad).find("not as far apart"), std::string::npos) << refusal(bad);
}

TEST(DistFaults, ALaunchThatHasNotAllOfAGroup) {
  // Rank 1 has the last query head of KV head 0 and the first of KV head 1.
  const DistCase c(problem_of(64, 12, 4), masks::full(64, 64), kTile, "descending");
  DistPlan plan = c.deal({.world = 6, .strategy = "ulysses"}).forward;
  EXPECT_EQ(refusal(plan), "");
  std::vector<Step>& steps = plan.ranks[1].steps;
  const auto launch = [](const Step& step) { return std::holds_alternative<Compute>(step); };
  const auto first = std::ranges::find_if(steps, launch);
  const auto second = std::find_if(first + 1, steps.end(), launch);
  ASSERT_NE(second, steps.end());
  auto& heads = std::get<Compute>(*second).heads;
  heads.insert(heads.begin(), std::get<Compute>(*first).heads.front());
  steps.erase(first);
  EXPECT_NE(refusal(plan).find("not all of their groups"), std::string::npos) << refusal(plan);
}

TEST(DistFaults, AHeadThatEndsInABlockThatAnotherBeginsWith) {
  // Played one after the other the heads are right; a launch plays them beside each other.
  DistPlan plan = joined_plan();
  const auto goes_on = [](const Compute& compute) {
    return of_several(compute) && compute.heads.front().carries.front().in >= 0;
  };
  const auto places = find<Compute>(plan, goes_on);
  ASSERT_FALSE(places.empty());
  const auto [rank, step] = places.front();
  std::vector<HeadPart>& heads = std::get<Compute>(plan.ranks[rank].steps[step]).heads;
  Carry& first = heads.front().carries.front();
  heads.back().carries.front().out = first.in;
  first.out = plan.ranks[rank].blocks;
  plan.ranks[rank].blocks += heads.front().part->stretches.front().count;
  EXPECT_NE(refusal(plan).find("puts a second sum into block"), std::string::npos) << refusal(plan);
}

TEST(DistFaults, WhatIsWrongInAForward) {
  const DistPlan good = causal_case().deal({.world = 4, .strategy = "ring"}).forward;
  expect_refused<Compute>(any<Compute>, repeat, good);
  expect_refused<Compute>(any<Compute>, erase, good);
  expect_refused<Send>(any<Send>, erase, good);
  expect_refused<Receive>(any<Receive>, erase, good);
  const auto first = [](std::vector<Step>& steps, size_t at) {
    std::rotate(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(at),
                steps.begin() + static_cast<ptrdiff_t>(at) + 1);
  };
  expect_refused<Compute>(any<Compute>, first, good);
  expect_refused<Compute>(
      any<Compute>,
      [](std::vector<Step>& steps, size_t at) {
        change(steps[at], [](OrderPart& part) { part.stretches.back().end = {0, 0}; });
      },
      good);
}

TEST(DistFaults, MemoryOfKAndVThatIsGoneOrAnothers) {
  const DistCase c(problem_of(200), masks::causal(200, 200), kTile);
  const DistPlan good = c.deal({.world = 3, .strategy = "ring", .joined_heads = 2}).forward;
  expect_refused<Hold>(any<Hold>, erase, good);
  expect_refused<Hold>(any<Hold>, repeat, good);
  for (const int32_t slot : {-1, 2})
    expect_refused<Hold>(
        any<Hold>,
        [slot](std::vector<Step>& steps, size_t at) { std::get<Hold>(steps[at]).slot = slot; },
        good);
  // Of the last head, whose slot another still needs; or of the next, which takes it too early.
  expect_refused<Hold>(
      [](const Hold& hold) { return hold.head == 3; },
      [](std::vector<Step>& steps, size_t at) { std::get<Hold>(steps[at]).slot = 0; }, good);
  expect_refused<Hold>([](const Hold& hold) { return hold.head == 2; },
                       [](std::vector<Step>& steps, size_t at) {
                         size_t to = at;
                         while (!std::holds_alternative<Compute>(steps[to])) --to;
                         std::rotate(steps.begin() + static_cast<ptrdiff_t>(to),
                                     steps.begin() + static_cast<ptrdiff_t>(at),
                                     steps.begin() + static_cast<ptrdiff_t>(at) + 1);
                       },
                       good);
  // Held again, it is not there.
  expect_refused<Compute>([](const Compute& compute) { return compute.heads.back().head == 3; },
                          [](std::vector<Step>& steps, size_t at) {
                            const auto before = steps.begin() + static_cast<ptrdiff_t>(at);
                            steps.insert(before, {Hold{0, 1}, Hold{3, 1}});
                          },
                          good);
}

TEST(DistFaults, LaunchesThatWaitForEachOthersReceives) {
  const DistCase c(problem_of(256, 2, 2), masks::full(256, 256), kTile);
  const DistPlan good = c.deal({.world = 2, .strategy = "balanced", .joined_heads = 1}).forward;
  // Of the second head K and V are sent in front of the first launch, and taken behind it.
  const auto send_ahead = [](std::vector<Step>& steps) {
    const auto launch = std::ranges::find_if(
        steps, [](const Step& step) { return std::holds_alternative<Compute>(step); });
    const auto send = std::find_if(
        launch, steps.end(), [](const Step& step) { return std::holds_alternative<Send>(step); });
    ASSERT_NE(send, steps.end());
    std::rotate(launch, send, send + 1);
  };
  DistPlan one = good, both = good;
  send_ahead(one.ranks[0].steps);
  for (RankPlan& rank : both.ranks) send_ahead(rank.steps);
  EXPECT_EQ(refusal(one), "");
  EXPECT_NE(refusal(both), "");
}

TEST(DistFaults, TheExecutorSeesALostAndADoubledTransfer) {
  const DistCase& c = causal_case();
  const DistPlan good = c.deal({.world = 2, .strategy = "ring"}).forward;
  const auto [rank, step] = find<Send>(good, any<Send>).front();
  DistPlan lost = good, doubled = good, other = good;
  erase(lost.ranks[rank].steps, step);
  repeat(doubled.ranks[rank].steps, step);
  repeat(other.ranks[rank].steps, step);
  std::get<Send>(other.ranks[rank].steps[step]).message = 1 << 20;
  const auto message = [&](const DistPlan& plan) -> std::string {
    try {
      replay(plan, c.tensors.forward());
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message(lost).find("waits forever at step"), std::string::npos);
  EXPECT_NE(message(doubled).find("twice"), std::string::npos);
  EXPECT_NE(message(other).find("never takes message"), std::string::npos);
  EXPECT_EQ(message(good), "");
}

}  // namespace
}  // namespace verbatim::test
