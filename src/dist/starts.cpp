#include "dist/starts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "dist/join.h"

namespace verbatim::dist {
namespace {

constexpr double kAsFast = 1.005;  // what less memory may cost, of the time

}  // namespace

bool Starts::try_beside(const Deals& deals, int32_t beside) {
  std::vector<int32_t> starts = starts_of(deals, beside);
  const double time = takes(deals, starts, kLaunch);
  if (time > least_) return false;
  least_ = time;
  starts_ = std::move(starts);
  return true;
}

void Starts::save_memory(const Deals& deals) {
  if (std::ranges::none_of(deals, [](const auto& deal) { return deal->hands_on(); })) return;
  const double sends = overlapped_ ? kSum * sums_sent(deals, rooms_.ranks()) : 0;
  const auto time = [&](const std::vector<int32_t>& starts) {
    const auto times = static_cast<double>(std::set(starts.begin(), starts.end()).size());
    return takes(deals, starts, kFilledLaunch) + sends / times;
  };
  std::vector<std::vector<int32_t>> all;
  for (int32_t beside = 1; beside < most_; beside *= 2) all.push_back(starts_of(deals, beside));
  all.push_back(starts_);
  std::vector<double> times;
  for (const auto& starts : all) times.push_back(time(starts));
  const double least = overlapped_ ? std::ranges::min(times) : times.back();
  const auto first = std::ranges::find_if(times, [&](double t) { return t <= kAsFast * least; });
  starts_ = all[static_cast<size_t>(first - times.begin())];
}

std::vector<int32_t> Starts::starts_of(const Deals& deals, int32_t beside) const {
  return dist::starts_of(deals, beside, static_cast<int32_t>(problem_.kv_heads));
}

double Starts::takes(const Deals& deals, const std::vector<int32_t>& starts, double launch) const {
  return duration(deals, starts, rooms_.ranks(), launch,
                  [this](int32_t room, int32_t head, int32_t other) {
                    return can_join(problem_, rooms_.heads(room), head, other);
                  });
}

}  // namespace verbatim::dist
