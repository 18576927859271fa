// Bytes of what moves and of what ranks hold.
#pragma once

#include <cstdint>
#include <span>

#include "verbatim/dist.h"

namespace verbatim::dist {

bool on_kv_axis(Operand operand);
inline bool is_kv(Operand operand) { return operand == Operand::k || operand == Operand::v; }
/// The rows of one batch entry.
HeldRows of_entry(const HeldRows& rows, int64_t batch);
/// Rows of a slot for K and V: of the batch entry that has most.
int64_t slot_rows(const RankPlan& rank);
/// Of a tensor in the work space of a rank: K and V lie slot behind slot, as rows of one head.
struct WorkShape {
  int64_t rows, heads;
};
WorkShape work_shape(const RankPlan& rank, Operand operand);
/// Of one position and head.
int64_t row_bytes(const Problem& problem, Operand operand);
/// Of dK and dV of these KV tiles in f32.
int64_t sum_bytes(const DistPlan& plan, const CarriedSum& sum);
int64_t message_bytes(const DistPlan& plan, std::span<const Box> boxes,
                      std::span<const CarriedSum> sums);
/// Floats that hold the sum of any tile.
int64_t block_floats(const Plan& whole);
/// Operands that a pass reads and writes.
std::span<const Operand> operands_of(Pass pass);

}  // namespace verbatim::dist
