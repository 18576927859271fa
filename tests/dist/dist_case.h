// One problem on one device and, from the same inputs, dealt to ranks.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cases.h"
#include "dist/processes.h"
#include "verbatim/dist.h"

namespace verbatim::test {

constexpr TileShape kTile{16, 16};  // 13 tiles of 200 positions: some of 16 ranks get none

/// bf16, one batch entry, as many queries as keys.
Problem problem_of(int64_t length, int64_t q_heads = 16, int64_t kv_heads = 4, int64_t dim = 16);

struct DistCase {
  Case tensors;
  Plan forward, backward;
  std::vector<std::string> expected;  // hashes() of one device

  DistCase(const Problem& problem, const Mask& mask, TileShape tile = {},
           const std::string& order = "auto");
  /// Both passes, dealt; not yet proved.
  struct Dealt {
    DistPlan forward, backward;
  };
  Dealt deal(const DistOptions& options) const;
  std::array<GuardedTensor*, 5> outputs();
  /// Proves and replays; expects the bits of one device and the bytes predicted.
  void expect_same(const DistOptions& options);
  /// Runs both passes as one of these processes. Whether all sent the bytes predicted, at rank 0.
  bool run_in(dist::Processes& processes, const DistOptions& options);

 private:
  void poison_outputs();
};

/// What the proof says of a plan; empty when it holds.
std::string refusal(const DistPlan& plan);
/// Calls how(std::vector<CarriedSum>&) for the sums of a message, which others may share.
template <class How>
void edit(CarriedSums& sums, const How& how) {
  std::vector<CarriedSum> own(sums.begin(), sums.end());
  how(own);
  sums = std::move(own);
}
std::vector<const Compute*> launches_of(const RankPlan& rank);
std::vector<std::string> strategy_names();
std::vector<std::string> shard_names();
std::string to_text(const DistOptions& options);

/// Which random problems a test draws: those of VERBATIM_DIST_SEED, VERBATIM_DIST_CASE (the first)
/// and VERBATIM_DIST_CASES.
struct DrawnCases {
  explicit DrawnCases(uint64_t usual);
  uint64_t seed, first, end;
  /// How to run this one alone.
  std::string text(uint64_t number) const;
};

}  // namespace verbatim::test
