// What a proof of a plan is about, and how it says what is wrong.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "plan/dry_run.h"
#include "verbatim/error.h"

namespace verbatim {

[[noreturn]] inline void refuse_plan(std::string message) {
  throw Error(ErrorCode::invalid_plan, "plan.verify", std::move(message));
}

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

}  // namespace verbatim
