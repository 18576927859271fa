#include "dist/shard_memory.h"

#include "dist/sizes.h"

namespace verbatim::dist {
namespace {

/// Copies the rows that a rank holds of a tensor of the problem to its shard, or back.
template <class View>
void copy_rows(const Backend& backend, const RunOptions& run, const View& whole,
               const HeldRows& held, const View& local, Interval heads, bool back) {
  for (const RowRange& range : held.ranges()) {
    const int64_t begin = held.at(range.batch, range.rows.begin);
    const ByteRows ours =
        byte_rows(local, 0, {begin, begin + range.rows.end - range.rows.begin}, heads);
    const ByteRows theirs = byte_rows(whole, range.batch, range.rows, heads);
    backend.copy(back ? theirs : ours, back ? ours : theirs, run);
  }
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

ShardMemory::ShardMemory(const DistPlan& plan, int32_t rank, const Backend& backend,
                         const RunOptions& run)
    : plan_(plan),
      backend_(backend),
      run_(run),
      own_(plan.ranks[rank]),
      memory_(backend, run, plan.whole.problem, operands_of(plan.whole.pass), true,
              [this](Operand operand) -> WorkShape {
                const Problem& problem = plan_.whole.problem;
                if (on_kv_axis(operand)) return {own_.home_kv.size(), problem.kv_heads};
                return {own_.home_q.size(), problem.q_heads};
              }) {}

void ShardMemory::exchange(const LocalTensors& whole, bool back) {
  for (const Operand operand : operands_of(plan_.whole.pass)) {
    if (is_output(plan_.whole.pass, operand) != back) continue;
    if (operand == Operand::lse) {
      copy_rows(backend_, run_, whole.lse, own_.home_q, tensors().lse, {0, whole.lse.shape[1]},
                back);
      continue;
    }
    const TensorView& all = whole[operand];
    const bool dense = all.stride[2] == all.shape[3];
    for (int64_t h = 0; h < all.shape[2]; h = dense ? all.shape[2] : h + 1)
      copy_rows(backend_, run_, all, on_kv_axis(operand) ? own_.home_kv : own_.home_q,
                tensors()[operand], {h, dense ? all.shape[2] : h + 1}, back);
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
