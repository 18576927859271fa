// How many heads of a backward are under way at once, for what they may share in turn.
#pragma once

#include <cstdint>

#include "verbatim/plan.h"

namespace verbatim {

/// Heads that need memory of their own for their sums of dQ. KV head h may use that of KV head
/// h - heads, and inside a KV head query head i that of query head i - queries.
struct LiveHeads {
  int32_t heads;  // of batch * kv_heads
  // Of the group, which they divide. A chain stays inside such a share, that of query head
  // group * addend / addends, so that a kernel knows a chain's places from the chain alone.
  int32_t queries;
  bool operator==(const LiveHeads&) const = default;
};

/// The fewest so that all tasks of what had the memory are issued before the first that uses it, so
/// a wait for them ends, with half as many tasks between as there are workers, so that hardly one
/// waits. All where a wait could be in vain or where rows differ: without a queue, without turns,
/// with several orders.
LiveHeads live_heads(const Plan& plan);

}  // namespace verbatim
