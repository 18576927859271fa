#include "dist/shard_memory.h"

#include <cstring>

#include "dist/sizes.h"

namespace verbatim::dist {
namespace {

std::byte* row(const TensorView& t, int64_t b, int64_t l, int64_t h) {
  return static_cast<std::byte*>(t.data) + t.offset(b, l, h) * size_of(t.dtype);
}

/// Copies the rows that a rank holds of a tensor of the problem to its shard, or back.
void copy_rows(const TensorView& whole, const HeldRows& rows, const TensorView& local, bool back) {
  const auto bytes = static_cast<size_t>(whole.shape[3] * size_of(whole.dtype));
  for (const RowRange& range : rows.ranges()) {
    for (int64_t l = range.rows.begin; l < range.rows.end; ++l) {
      for (int64_t h = 0; h < whole.shape[2]; ++h) {
        std::byte* ours = row(local, 0, rows.at(range.batch, l), h);
        std::byte* theirs = row(whole, range.batch, l, h);
        std::memcpy(back ? theirs : ours, back ? ours : theirs, bytes);
      }
    }
  }
}

void copy_rows(const RowView& whole, const HeldRows& rows, const RowView& local, bool back) {
  for (const RowRange& range : rows.ranges()) {
    for (int64_t h = 0; h < whole.shape[1]; ++h) {
      float* ours = local.row(0, h) + rows.at(range.batch, range.rows.begin);
      float* theirs = whole.row(range.batch, h) + range.rows.begin;
      const auto bytes = static_cast<size_t>(range.rows.end - range.rows.begin) * sizeof(float);
      std::memcpy(back ? theirs : ours, back ? ours : theirs, bytes);
    }
  }
}

bool is_output(Pass pass, Operand operand) {
  if (pass == Pass::forward) return operand == Operand::o || operand == Operand::lse;
  return operand >= Operand::dq;
}

}  // namespace

LocalTensors whole_tensors(const ForwardTensors& tensors) {
  LocalTensors whole;
  whole[Operand::q] = tensors.q;
  whole[Operand::k] = tensors.k;
  whole[Operand::v] = tensors.v;
  whole[Operand::o] = tensors.o;
  whole.lse = tensors.lse;
  return whole;
}

LocalTensors whole_tensors(const BackwardTensors& tensors) {
  LocalTensors whole =
      whole_tensors(ForwardTensors{tensors.q, tensors.k, tensors.v, tensors.o, tensors.lse});
  whole[Operand::dout] = tensors.dout;
  whole[Operand::dq] = tensors.dq;
  whole[Operand::dk] = tensors.dk;
  whole[Operand::dv] = tensors.dv;
  return whole;
}

ShardMemory::ShardMemory(const DistPlan& plan, int32_t rank)
    : plan_(plan),
      own_(plan.ranks[static_cast<size_t>(rank)]),
      memory_(plan.whole.problem, operands_of(plan.whole.pass), own_.home_q.size(),
              own_.home_kv.size(), plan.whole.problem.q_heads, plan.whole.problem.kv_heads) {}

void ShardMemory::exchange(const LocalTensors& whole, bool back) {
  for (const Operand operand : operands_of(plan_.whole.pass)) {
    if (is_output(plan_.whole.pass, operand) != back) continue;
    if (operand == Operand::lse) {
      copy_rows(whole.lse, own_.home_q, tensors().lse, back);
    } else {
      copy_rows(whole[operand], on_kv_axis(operand) ? own_.home_kv : own_.home_q,
                tensors()[operand], back);
    }
  }
}

std::vector<std::span<std::byte>> ShardMemory::outputs() {
  const Problem& problem = plan_.whole.problem;
  std::vector<std::span<std::byte>> runs;
  for (const Operand operand : operands_of(plan_.whole.pass)) {
    if (!is_output(plan_.whole.pass, operand)) continue;
    void* data = operand == Operand::lse ? tensors().lse.data : tensors()[operand].data;
    const int64_t rows = on_kv_axis(operand) ? own_.home_kv.size() * problem.kv_heads
                                             : own_.home_q.size() * problem.q_heads;
    runs.emplace_back(static_cast<std::byte*>(data),
                      static_cast<size_t>(rows * row_bytes(problem, operand)));
  }
  return runs;
}

}  // namespace verbatim::dist
