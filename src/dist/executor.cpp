#include "dist/executor.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "dist/sizes.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

TensorView rows_of(std::vector<float>& floats, int64_t rows, int64_t heads, int64_t dim) {
  floats.resize(static_cast<size_t>(rows * heads * dim));
  return TensorView::dense(floats.data(), Dtype::f32, {1, rows, heads, dim});
}

}  // namespace

LocalMemory::LocalMemory(const Problem& problem, std::span<const Operand> operands, int64_t q_rows,
                         int64_t kv_rows, int64_t q_heads, int64_t kv_heads) {
  for (const Operand operand : operands) {
    const bool kv = on_kv_axis(operand);
    const int64_t rows = kv ? kv_rows : q_rows, heads = kv ? kv_heads : q_heads;
    const int64_t bytes = row_bytes(problem, operand);
    std::vector<std::byte>& data =
        bytes_.emplace_back(static_cast<size_t>(rows * heads * bytes), std::byte{0xff});
    if (operand == Operand::lse) {
      tensors_.lse = {reinterpret_cast<float*>(data.data()), {1, heads, rows}};
    } else {
      tensors_[operand] = TensorView::dense(data.data(), problem.dtype,
                                            {1, rows, heads, bytes / size_of(problem.dtype)});
    }
  }
}

RankExecutor::RankExecutor(const DistPlan& plan, int32_t rank, const Backend& backend,
                           LocalTensors home, const RunOptions& run)
    : plan_(plan),
      rank_(rank),
      backend_(backend),
      run_(run),
      memory_(plan.whole.problem, operands_of(plan.whole.pass), own().in_place ? 0 : own().q.size(),
              own().kv.size(), own().q_heads.end - own().q_heads.begin,
              own().kv_heads.end - own().kv_heads.begin),
      home_(std::move(home)),
      work_(memory_.tensors()),
      block_floats_(block_floats(plan.whole)) {
  if (own().in_place) {
    work_.lse = home_.lse;
    for (const Operand operand : operands_of(plan.whole.pass))
      if (!on_kv_axis(operand)) work_[operand] = home_[operand];
  }
  if (plan.whole.pass == Pass::forward) return;
  const Problem& problem = plan.whole.problem;
  blocks_.resize(static_cast<size_t>(own().blocks * block_floats_));
  if (problem.dtype != Dtype::f32)
    dq_sums_view_ = rows_of(dq_sums_, own().q.size(), own().q_heads.end - own().q_heads.begin,
                            problem.head_dim);
  // Rows that nothing visits stay zero.
  const TensorView& dq = home_[Operand::dq];
  for (int64_t l = 0; l < dq.shape[1]; ++l)
    for (int64_t h = 0; h < dq.shape[2]; ++h)
      std::memset(static_cast<std::byte*>(dq.data) + dq.offset(0, l, h) * size_of(dq.dtype), 0,
                  static_cast<size_t>(dq.shape[3] * size_of(dq.dtype)));
}

bool RankExecutor::advance(Transport& transport) {
  const std::vector<Step>& steps = own().steps;
  const size_t first = step_;
  while (step_ < steps.size() && make(steps[step_], transport)) ++step_;
  return step_ > first;
}

std::byte* RankExecutor::row(Space space, Operand operand, int64_t batch, int64_t position,
                             int64_t head) const {
  const bool kv = on_kv_axis(operand), home = space == Space::home;
  const HeldRows& rows = kv ? (home ? own().home_kv : own().kv) : (home ? own().home_q : own().q);
  const int64_t first = home ? 0 : kv ? own().kv_heads.begin : own().q_heads.begin;
  const LocalTensors& tensors = home ? home_ : work_;
  const int64_t l = rows.at(batch, position), h = head - first;
  if (operand == Operand::lse) return reinterpret_cast<std::byte*>(tensors.lse.row(0, h) + l);
  const TensorView& view = tensors[operand];
  return static_cast<std::byte*>(view.data) + view.offset(0, l, h) * size_of(view.dtype);
}

template <class F>
void RankExecutor::for_each_run_of_bytes(Space space, std::span<const Box> boxes,
                                         std::span<const CarriedSum> sums, F&& f) {
  for (const Box& box : boxes) {
    const auto bytes = static_cast<size_t>(row_bytes(plan_.whole.problem, box.operand));
    for (int64_t l = box.range.rows.begin; l < box.range.rows.end; ++l)
      for (int64_t h = box.heads.begin; h < box.heads.end; ++h)
        f(row(space, box.operand, box.range.batch, l, h), bytes);
  }
  for (const CarriedSum& sum : sums) {
    for (int32_t i = 0; i < sum.count; ++i) {
      float* block = blocks_.data() + (sum.block + i) * block_floats_;
      f(reinterpret_cast<std::byte*>(block),
        static_cast<size_t>(sum_bytes(plan_, {sum.head, sum.kv_tile + i, sum.block + i})));
    }
  }
}

bool RankExecutor::make(const Step& step, Transport& transport) {
  if (const auto* send = std::get_if<Send>(&step)) {
    std::vector<std::byte> bytes;
    for_each_run_of_bytes(send->space, send->boxes, send->sums, [&](std::byte* at, size_t size) {
      bytes.insert(bytes.end(), at, at + size);
    });
    transport.send(send->to, send->message, bytes);
    report_.sent_bytes += std::ssize(bytes);
  } else if (const auto* receive = std::get_if<Receive>(&step)) {
    std::vector<std::byte> bytes(
        static_cast<size_t>(message_bytes(plan_, receive->boxes, receive->sums)));
    if (!transport.receive(receive->from, receive->message, bytes)) return false;
    const std::byte* next = bytes.data();
    for_each_run_of_bytes(receive->space, receive->boxes, receive->sums,
                          [&](std::byte* at, size_t size) {
                            std::memcpy(at, next, size);
                            next += size;
                          });
  } else if (const auto* copy = std::get_if<Copy>(&step)) {
    for (const Box& box : copy->boxes) {
      const auto bytes = static_cast<size_t>(row_bytes(plan_.whole.problem, box.operand));
      const int64_t b = box.range.batch;
      for (int64_t l = box.range.rows.begin; l < box.range.rows.end; ++l)
        for (int64_t h = box.heads.begin; h < box.heads.end; ++h)
          std::memcpy(row(copy->to, box.operand, b, l, h), row(copy->from, box.operand, b, l, h),
                      bytes);
    }
  } else if (const auto* compute = std::get_if<Compute>(&step)) {
    const auto begin = std::chrono::steady_clock::now();
    this->compute(compute->piece());
    report_.compute_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  } else {
    add(std::get<Add>(step).sums);
  }
  return true;
}

PieceMemory RankExecutor::memory() {
  return {own().q,       own().kv,       own().q_heads.begin, own().kv_heads.begin,
          dq_sums_view_, blocks_.data(), block_floats_};
}

void RankExecutor::compute(const Piece& piece) {
  if (plan_.whole.pass == Pass::forward) {
    backend_.forward_piece(
        plan_.whole, piece,
        {work_[Operand::q], work_[Operand::k], work_[Operand::v], work_[Operand::o], work_.lse},
        memory(), run_);
    return;
  }
  backend_.backward_piece(plan_.whole, piece, backward_tensors(), memory(), run_);
}

void RankExecutor::add(const TileSums& sums) {
  backend_.add(plan_.whole, sums, backward_tensors(), memory());
}

BackwardTensors RankExecutor::backward_tensors() const {
  return {work_[Operand::q],  work_[Operand::k],    work_[Operand::v],
          work_[Operand::o],  work_[Operand::dout], work_.lse,
          work_[Operand::dq], work_[Operand::dk],   work_[Operand::dv]};
}

}  // namespace verbatim::dist
