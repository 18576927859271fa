#include "dist/executor.h"

#include <algorithm>
#include <utility>

#include "dist/sizes.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

/// One row behind the other from `at` on, as many and as long as `like`; `at` is moved behind them.
ByteRows next_packed(std::byte*& at, const ByteRows& like) {
  return {std::exchange(at, at + like.rows * like.bytes), like.bytes, like.rows, like.bytes};
}

bool is_dense(const ByteRows& rows) { return rows.rows == 1 || rows.apart == rows.bytes; }

}  // namespace

ByteRows byte_rows(const TensorView& tensor, int64_t batch, Interval rows, Interval heads) {
  const int64_t size = size_of(tensor.dtype);
  auto* at =
      static_cast<std::byte*>(tensor.data) + tensor.offset(batch, rows.begin, heads.begin) * size;
  return {at, (heads.end - heads.begin) * tensor.shape[3] * size, rows.end - rows.begin,
          tensor.stride[1] * size};
}

ByteRows byte_rows(const RowView& statistic, int64_t batch, Interval rows, Interval heads) {
  constexpr int64_t kSize = sizeof(float);
  auto* at = reinterpret_cast<std::byte*>(statistic.row(batch, heads.begin) + rows.begin);
  return {at, (rows.end - rows.begin) * kSize, heads.end - heads.begin, statistic.shape[2] * kSize};
}

LocalMemory::LocalMemory(const Backend& backend, const RunOptions& run, const Problem& problem,
                         std::span<const Operand> operands, bool poisoned,
                         const std::function<WorkShape(Operand)>& shape_of) {
  for (const Operand operand : operands) {
    const auto [rows, heads] = shape_of(operand);
    const int64_t bytes = row_bytes(problem, operand), all = rows * heads * bytes;
    std::byte* data = bytes_.emplace_back(backend.allocate(all, run)).get();
    if (poisoned) backend.fill({data, all}, 0xff, run);
    if (operand == Operand::lse) {
      tensors_.lse = {reinterpret_cast<float*>(data), {1, heads, rows}};
    } else {
      tensors_[operand] =
          TensorView::dense(data, problem.dtype, {1, rows, heads, bytes / size_of(problem.dtype)});
    }
  }
}

const ReadyLaunch& ReadyLaunches::of(
    size_t step, const std::function<std::unique_ptr<const ReadyLaunch>()>& make) {
  if (step >= by_step_.size()) by_step_.resize(step + 1);
  if (!by_step_[step]) by_step_[step] = make();
  return *by_step_[step];
}

RankExecutor::RankExecutor(const DistPlan& plan, int32_t rank, const Backend& backend,
                           LocalTensors home, const RunOptions& run, const RankRun& asked)
    : plan_(plan),
      rank_(rank),
      backend_(backend),
      run_(run),
      memory_(backend, run, plan.whole.problem, operands_of(plan.whole.pass), !asked.kept,
              [this](Operand operand) { return work_shape(own(), operand); }),
      home_(std::move(home)),
      work_(memory_.tensors()),
      slot_of_(plan.whole.order_of_head.size(), -1),
      slot_rows_(slot_rows(own())),
      block_floats_(block_floats(plan.whole)),
      asked_(asked) {
  for (int64_t b = 0; b < plan.whole.problem.batch; ++b) kv_rows_.push_back(of_entry(own().kv, b));
  if (own().in_place) {
    work_.lse = home_.lse;
    for (const Operand operand : operands_of(plan.whole.pass))
      if (!on_kv_axis(operand)) work_[operand] = home_[operand];
  }
  if (plan.whole.pass == Pass::forward) return;
  blocks_ = floats(own().blocks * block_floats_);
  dq_sums_ =
      floats(backend.dq_sum_floats(plan.whole, own().q, own().q_heads.end - own().q_heads.begin));
  // Rows that nothing visits stay zero.
  const TensorView& dq = home_[Operand::dq];
  backend.fill(byte_rows(dq, 0, {0, dq.shape[1]}, {0, dq.shape[2]}), 0, run_);
}

std::shared_ptr<float> RankExecutor::floats(int64_t count) const {
  const auto bytes = backend_.allocate(count * int64_t{sizeof(float)}, run_);
  return {bytes, reinterpret_cast<float*>(bytes.get())};
}

bool RankExecutor::advance(Transport& transport) {
  const std::vector<Step>& steps = own().steps;
  const size_t first = step_;
  while (step_ < steps.size() && make(steps[step_], transport)) ++step_;
  return step_ > first;
}

ByteRows RankExecutor::rows_of(Space space, const Box& box) const {
  const bool kv = on_kv_axis(box.operand), home = space == Space::home;
  const int64_t batch = box.range.batch, count = box.range.rows.end - box.range.rows.begin;
  if (!home && is_kv(box.operand)) {
    const auto head = static_cast<int32_t>(batch * plan_.whole.problem.kv_heads + box.heads.begin);
    const int64_t at = kv_rows_[static_cast<size_t>(batch)].at(batch, box.range.rows.begin);
    return byte_rows(held(box.operand, head), 0, {at, at + count}, {0, 1});
  }
  const HeldRows& all = kv ? (home ? own().home_kv : own().ended) : (home ? own().home_q : own().q);
  const int64_t first = home ? 0 : kv ? own().kv_heads.begin : own().q_heads.begin;
  const LocalTensors& tensors = home ? home_ : work_;
  const int64_t begin = all.at(batch, box.range.rows.begin);
  const Interval rows{begin, begin + count};
  const Interval heads{box.heads.begin - first, box.heads.end - first};
  if (box.operand == Operand::lse) return byte_rows(tensors.lse, 0, rows, heads);
  return byte_rows(tensors[box.operand], 0, rows, heads);
}

std::vector<ByteRows> RankExecutor::rows_of(Space space, std::span<const Box> boxes,
                                            std::span<const CarriedSum> sums) const {
  std::vector<ByteRows> rows;
  for (const Box& box : boxes) rows.push_back(rows_of(space, box));
  const size_t first = rows.size();
  const int64_t apart = block_floats_ * int64_t{sizeof(float)};
  for (const CarriedSum& sum : sums) {
    std::byte* block = reinterpret_cast<std::byte*>(blocks_.get() + sum.block * block_floats_);
    for (int32_t i = 0; i < sum.count; ++i, block += apart) {
      const int64_t bytes = sum_bytes(plan_, {sum.head, sum.kv_tile + i, sum.block + i});
      ByteRows* last = rows.size() > first ? &rows.back() : nullptr;
      if (last && last->bytes == bytes && last->at + last->rows * apart == block) {
        ++last->rows;  // of equal tiles behind each other all at once
      } else {
        rows.push_back({block, bytes, 1, apart});
      }
    }
  }
  return rows;
}

bool RankExecutor::timed(StepTime::Kind kind, int64_t bytes, const std::function<bool()>& work) {
  if (!asked_.record) return work();
  StepRecord::Begin begin = asked_.record->begin();
  const bool done = work();
  if (done) asked_.record->end(plan_.whole.pass, kind, bytes, std::move(begin));
  return done;
}

bool RankExecutor::make(const Step& step, Transport& transport) {
  if (const auto* hold = std::get_if<Hold>(&step)) {
    this->hold(*hold);
  } else if (const auto* send = std::get_if<Send>(&step)) {
    this->send(*send, transport);
  } else if (const auto* receive = std::get_if<Receive>(&step)) {
    return this->receive(*receive, transport);
  } else if (const auto* copy = std::get_if<Copy>(&step)) {
    std::vector<RowCopy> copies;
    for (const Box& box : copy->boxes)
      copies.push_back({rows_of(copy->to, box), rows_of(copy->from, box)});
    timed(StepTime::Kind::copy, message_bytes(plan_, copy->boxes, {}), [&] {
      backend_.copy(copies, run_);
      return true;
    });
  } else if (const auto* compute = std::get_if<Compute>(&step)) {
    this->compute(*compute);
  } else {
    const size_t first = step_;  // and those behind it, at once
    const std::vector<Step>& steps = own().steps;
    while (step_ + 1 < steps.size() && std::holds_alternative<Add>(steps[step_ + 1])) ++step_;
    add(first);
  }
  return true;
}

void RankExecutor::send(const Send& step, Transport& transport) {
  const int64_t bytes = message_bytes(plan_, step.boxes, step.sums);
  std::shared_ptr<std::byte> own;
  std::byte* message = transport.room(bytes);
  if (!message) {
    own = backend_.allocate(bytes, run_);
    message = own.get();
  }
  std::vector<RowCopy> copies;
  for (std::byte* next = message; const ByteRows& rows : rows_of(step.space, step.boxes, step.sums))
    copies.push_back({next_packed(next, rows), rows});
  timed(StepTime::Kind::pack, bytes, [&] {
    backend_.copy(copies, run_);
    return true;
  });
  timed(StepTime::Kind::send, bytes, [&] {
    transport.send(step.to, step.message, {message, static_cast<size_t>(bytes)});
    return true;
  });
}

bool RankExecutor::receive(const Receive& step, Transport& transport) {
  const int64_t bytes = message_bytes(plan_, step.boxes, step.sums);
  const std::vector<ByteRows> places = rows_of(step.space, step.boxes, step.sums);
  const auto fill = [&](std::byte* message) {
    return timed(StepTime::Kind::receive, bytes, [&] {
      return transport.receive(step.from, step.message, {message, static_cast<size_t>(bytes)});
    });
  };
  if (places.size() == 1 && is_dense(places[0])) return fill(places[0].at);
  const auto message = backend_.allocate(bytes, run_);
  if (!fill(message.get())) return false;
  std::vector<RowCopy> copies;
  for (std::byte* next = message.get(); const ByteRows& rows : places)
    copies.push_back({rows, next_packed(next, rows)});
  return timed(StepTime::Kind::unpack, bytes, [&] {
    backend_.copy(copies, run_);
    return true;
  });
}

void RankExecutor::hold(const Hold& hold) {
  std::ranges::replace(slot_of_, hold.slot, -1);
  slot_of_[static_cast<size_t>(hold.head)] = hold.slot;
  if (asked_.kept) return;
  for (const Operand operand : {Operand::k, Operand::v}) {
    const TensorView slot = held(operand, hold.head);
    backend_.fill(byte_rows(slot, 0, {0, slot.shape[1]}, {0, 1}), 0xff, run_);
  }
}

TensorView RankExecutor::held(Operand operand, int32_t head, int32_t last) const {
  const int64_t batch = head / plan_.whole.problem.kv_heads;
  TensorView view = work_[operand];
  view.data =
      static_cast<std::byte*>(view.data) +
      view.offset(0, slot_of_[static_cast<size_t>(head)] * slot_rows_, 0) * size_of(view.dtype);
  view.shape[1] = kv_rows_[static_cast<size_t>(batch)].size();
  view.shape[2] = last - head + 1;
  view.stride[2] = slot_rows_ * view.stride[1];
  return view;
}

PieceMemory RankExecutor::memory(int32_t head) const {
  const int64_t kv_heads = plan_.whole.problem.kv_heads;
  return {own().q,
          kv_rows_[static_cast<size_t>(head / kv_heads)],
          own().q_heads.begin,
          head % kv_heads,
          dq_sums_.get(),
          blocks_.get(),
          block_floats_};
}

void RankExecutor::launch(size_t step,
                          const std::function<std::unique_ptr<const ReadyLaunch>()>& make,
                          StepTime::Kind kind,
                          const std::function<void(const ReadyLaunch&)>& work) {
  std::unique_ptr<const ReadyLaunch> made;
  if (!asked_.kept) made = make();
  const ReadyLaunch& ready = made ? *made : asked_.kept->of(step, make);
  timed(kind, 0, [&] {
    work(ready);
    return true;
  });
}

void RankExecutor::compute(const Compute& step) {
  const int32_t first = step.heads.front().head, last = step.heads.back().head;
  const PieceMemory memory = this->memory(first);
  const auto make = [&] {
    return backend_.ready_piece(plan_.whole, step.piece(plan_.whole), memory,
                                own().q_heads.end - own().q_heads.begin, run_);
  };
  launch(step_, make, StepTime::Kind::launch, [&](const ReadyLaunch& piece) {
    BackwardTensors tensors = backward_tensors();
    tensors.k = held(Operand::k, first, last);
    tensors.v = held(Operand::v, first, last);
    if (plan_.whole.pass == Pass::backward)
      return backend_.backward_piece(piece, tensors, memory, run_);
    backend_.forward_piece(piece, {tensors.q, tensors.k, tensors.v, tensors.o, tensors.lse}, memory,
                           run_);
  });
}

void RankExecutor::add(size_t first) {
  const PieceMemory memory{own().q,        own().ended,   own().q_heads.begin, own().kv_heads.begin,
                           dq_sums_.get(), blocks_.get(), block_floats_};
  const auto make = [&] {
    std::vector<TileSums> tiles;
    for (size_t step = first; step <= step_; ++step)
      tiles.push_back(std::get<Add>(own().steps[step]).sums);
    return backend_.ready_sums(plan_.whole, tiles, memory, run_);
  };
  launch(first, make, StepTime::Kind::add,
         [&](const ReadyLaunch& sums) { backend_.add(sums, backward_tensors(), memory, run_); });
}

BackwardTensors RankExecutor::backward_tensors() const {
  return {work_[Operand::q],  work_[Operand::k],    work_[Operand::v],
          work_[Operand::o],  work_[Operand::dout], work_.lse,
          work_[Operand::dq], work_[Operand::dk],   work_[Operand::dv]};
}

}  // namespace verbatim::dist
