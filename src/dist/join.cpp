#include "dist/join.h"

#include <algorithm>
#include <utility>

#include "dist/deal.h"

namespace verbatim::dist {
namespace {

/// Whether the rank has all query heads of a head's group: kernels take it that heads have as many.
bool has_group(const RankPlan& rank, const Problem& problem, int32_t head) {
  const int64_t first = head % problem.kv_heads * problem.group();
  return rank.q_heads.begin <= first && first + problem.group() <= rank.q_heads.end;
}

}  // namespace

int32_t chains_of(const OrderPart& part) {
  int32_t chains = 0;
  for (const Stretch& stretch : part.stretches) chains += stretch.count;
  return chains;
}

int32_t heads_of_launch(int64_t chains) {
  if (chains >= kWorkers) return 1;
  return static_cast<int32_t>((2 * kWorkers + chains - 1) / std::max<int64_t>(chains, 1));
}

std::vector<Compute> join(std::vector<HeadPart> parts, const RankPlan& rank, const Problem& problem,
                          int32_t most) {
  std::vector<Compute> launches;
  int32_t chains = 0;  // of the last
  for (HeadPart& part : parts) {
    const bool goes_on = [&] {
      if (launches.empty() || chains >= 2 * kWorkers) return false;
      const std::vector<HeadPart>& last = launches.back().heads;
      return std::ssize(last) < most && chains_of(*last.back().part) < kWorkers &&
             chains_of(*part.part) < kWorkers &&
             last.back().head / problem.kv_heads == part.head / problem.kv_heads &&
             has_group(rank, problem, last.back().head) && has_group(rank, problem, part.head);
    }();
    if (!goes_on) {
      launches.emplace_back();
      chains = 0;
    }
    chains += chains_of(*part.part);
    launches.back().heads.push_back(std::move(part));
  }
  return launches;
}

}  // namespace verbatim::dist
