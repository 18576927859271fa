// Finds out who waits for whom, and cycles, by running a plan without computing anything.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/walk.h"

namespace verbatim {

/// "tile (head h, q_head g, q_tile i, kv_tile j)" of a kept and a streamed tile of a chain.
std::string name_tile(Pass pass, int32_t head, int32_t q_head, int32_t kept, int32_t streamed);

/// Called for each addend that follows one of another task of the same head.
using OnWait = std::function<void(const PlacedTask& waiting, int32_t awaited)>;

/// Lets every sequence of tasks go on until it needs an addend that is not there, in time linear in
/// visits. Throws Error(invalid_plan) naming a tile when some can never finish. Addends must be
/// 0..n-1 for every row and every shared tile.
void dry_run(const Plan& plan, std::vector<Walker> sequences, const OnWait& on_wait);

}  // namespace verbatim
