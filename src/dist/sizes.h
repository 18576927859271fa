// Bytes of what moves and of what ranks hold.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

bool on_kv_axis(Operand operand);
inline bool is_kv(Operand operand) { return operand == Operand::k || operand == Operand::v; }
inline bool is_input(Pass pass, Operand operand) {
  return pass == Pass::forward ? operand == Operand::q || is_kv(operand) : operand < Operand::dq;
}
inline bool is_output(Pass pass, Operand operand) {
  return pass == Pass::forward ? operand == Operand::o || operand == Operand::lse
                               : operand >= Operand::dq;
}
/// The rows of one batch entry.
HeldRows of_entry(const HeldRows& rows, int64_t batch);
/// Rows of a slot for K and V: of the batch entry that has most.
int64_t slot_rows(const RankPlan& rank);
/// Of a tensor in the work space of a rank.
struct WorkShape {
  int64_t rows, heads;
};
/// Of an operand on the axis of keys: K and V lie slot behind slot, as rows of one head.
WorkShape work_shape(const RankPlan& rank, Operand operand);
/// Of the others; nothing where that at home is used.
WorkShape work_shape(const Room& room);
/// Of one position and head.
int64_t row_bytes(const Problem& problem, Operand operand);
/// Of dK and dV of these KV tiles in f32.
int64_t sum_bytes(const DistPlan& plan, const CarriedSum& sum);
int64_t message_bytes(const DistPlan& plan, const Boxes& boxes, const CarriedSums& sums);
/// Bytes that a link moves in about the time that a message takes of the host's
/// (docs/lab/ranks.md): more are not put together.
inline constexpr int64_t kWorthAMessage = int64_t{32} << 20;
/// Where the next message begins, behind so many bytes: copies move 16 at a time.
inline int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }
/// Whether the bytes of the message lie in its blocks as they come: it is of sums, whose blocks are
/// one behind the other, each full but the last.
bool lies_dense(const DistPlan& plan, const Receive& receive);
/// The Receive of the Expect at this step; null: there is none behind it.
const Receive* find_receive(const std::vector<Step>& steps, size_t expect);
/// How many steps from `first` on, all sends or all receives, have their messages packed or
/// unpacked by one copy: one, or as many as are kWorthAMessage together. 0: it is neither.
size_t copied_together(const DistPlan& plan, const std::vector<Step>& steps, size_t first);
/// The first `count` steps as to_json() lists them: an Add is one for each of its tiles.
int64_t listed_steps(const RankPlan& rank, size_t count);
inline int64_t listed_steps(const RankPlan& rank) { return listed_steps(rank, rank.steps.size()); }
/// Floats that hold the sum of any tile.
int64_t block_floats(const Plan& whole);
/// Operands that a pass reads and writes; of these those on one axis.
std::span<const Operand> operands_of(Pass pass);
std::vector<Operand> operands_of(Pass pass, bool on_kv_axis);

}  // namespace verbatim::dist
