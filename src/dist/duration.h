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
/// together, and the next ones as many stages later as the chains of the last of them start in.
std::vector<int32_t> starts_of(const Deals& deals, int32_t beside, int32_t entry_heads);

/// When the last launch ends, in visits. Ranks make their launches by stage; one is of all heads
/// that `joins(rank, head, other)` lets it have, and begins when those are over that it goes on
/// from. Messages take no time.
double duration(const Deals& deals, const std::vector<int32_t>& starts, int32_t world,
                const std::function<bool(int32_t, int32_t, int32_t)>& joins);

}  // namespace verbatim::dist
