// The proof that one order visits every tile once and that its sums are complete.
#pragma once

#include <cstdint>
#include <span>

#include "plan/alike.h"
#include "plan/subject.h"

namespace verbatim {

/// Proves that every non-empty tile is visited once, masked as it should be, and that the addends
/// of every row and of every shared tile are 0..n-1. Returns whether they count up as the tasks are
/// issued. Throws Error(invalid_plan) naming the tile at fault.
bool check_order(const Subject& subject);

/// Whether each visit finds its sum counted up to exactly its addend when the tasks run in
/// `sequence`, all of them: then none waits for one that comes later. Costs runs, not visits.
bool counts_up(const Subject& subject, std::span<const int32_t> sequence);
/// The same of chains as `issued`, of an order that visits each tile once.
bool counts_up(const Subject& subject, const ChainRows& issued);

}  // namespace verbatim
