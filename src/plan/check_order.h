// The proof that one order visits every tile once and that its sums are complete.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "plan/alike.h"
#include "plan/dry_run.h"

namespace verbatim {

/// One distinct order, named in errors by the first head that follows it.
struct Subject {
  const HeadOrder& order;
  int32_t head;

  bool backward() const { return order.pass == Pass::backward; }
  int32_t kept_tiles() const {
    return backward() ? order.tiles->kv_tiles() : order.tiles->q_tiles();
  }
  int32_t streamed_tiles() const {
    return backward() ? order.tiles->q_tiles() : order.tiles->kv_tiles();
  }
  /// Query heads that chains tell apart: in the backward a chain may walk all of the group.
  size_t chain_heads() const { return backward() ? 1 : static_cast<size_t>(order.group); }
  std::span<const TileRun> expected(int32_t kept) const {
    return backward() ? order.tiles->column(kept) : order.tiles->row(kept);
  }
  std::string name(int32_t kept, int32_t q_head, int32_t streamed) const {
    return name_tile(order.pass, head, q_head, kept, streamed);
  }
};

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
