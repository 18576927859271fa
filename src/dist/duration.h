// About how long all ranks take for a backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dist/deal.h"

namespace verbatim::dist {

using Deals = std::vector<std::shared_ptr<const Deal>>;  // by head

/// The stage in which each head starts: `beside` heads of a batch entry, of `entry_heads`, start
/// together, and the next ones as many stages later as the chains of the last of them start in. All
/// start at once where all heads of an entry may and none goes on from another rank.
std::vector<int32_t> starts_of(const Deals& deals, int32_t beside, int32_t entry_heads);

/// Visits that a launch takes longer than its chains, and that it takes at most when its workers
/// start behind each other, each waiting for the rows of the one before.
inline constexpr double kLaunch = 8, kFilledLaunch = kLaunch + kWorkers;

/// Visits that a link takes for a sum of a tile, to an H200 over NVLink.
inline constexpr double kSum = 1.0 / 16;
/// The most sums that one of the ranks sends.
double sums_sent(const Deals& deals, const std::vector<int32_t>& ranks);

/// When the last launch ends, in visits, where each takes `launch` besides its chains. Ranks make
/// their launches by stage, then room: one is of all heads that `joins(room, head, other)` lets it
/// have, and begins when those are over that it goes on from. Messages take no time. `ranks`: whose
/// the rooms are.
double duration(const Deals& deals, const std::vector<int32_t>& starts,
                const std::vector<int32_t>& ranks, double launch,
                const std::function<bool(int32_t, int32_t, int32_t)>& joins);

}  // namespace verbatim::dist
