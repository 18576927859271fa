#include "dist/executor.h"

#include <algorithm>
#include <type_traits>
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
      home_(std::move(home)),
      keys_(backend, run, plan.whole.problem, operands_of(plan.whole.pass, true), !asked.kept,
            [this](Operand operand) { return work_shape(own(), operand); }),
      slot_of_(plan.whole.order_of_head.size(), -1),
      slot_rows_(slot_rows(own())),
      block_floats_(block_floats(plan.whole)),
      landing_(backend.allocate(own().landing, run)),
      asked_(asked) {
  for (int64_t b = 0; b < plan.whole.problem.batch; ++b) kv_rows_.push_back(of_entry(own().kv, b));
  for (const Room& room : own().rooms)
    rooms_.emplace_back(
        backend, run, plan.whole.problem,
        room.in_place ? std::vector<Operand>{} : operands_of(plan.whole.pass, false), !asked.kept,
        [&](Operand) { return work_shape(room); });
  dq_sums_.resize(rooms_.size());
  if (plan.whole.pass == Pass::forward) return;
  blocks_ = floats(own().blocks * block_floats_);
  for (size_t n = 0; n < rooms_.size(); ++n) {
    const Room& room = own().rooms[n];
    dq_sums_[n] =
        floats(backend.dq_sum_floats(plan.whole, room.q, room.heads.end - room.heads.begin));
  }
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
  while (step_ < steps.size() && make(steps[step_], transport)) continue;
  return step_ > first;
}

ByteRows RankExecutor::rows_of(Space space, const Box& box, int32_t room) const {
  const bool kv = on_kv_axis(box.operand), home = space == Space::home;
  const int64_t batch = box.range.batch, count = box.range.rows.end - box.range.rows.begin;
  if (!home && is_kv(box.operand)) {
    const auto head = static_cast<int32_t>(batch * plan_.whole.problem.kv_heads + box.heads.begin);
    const int64_t at = kv_rows_[static_cast<size_t>(batch)].at(batch, box.range.rows.begin);
    return byte_rows(held(box.operand, head), 0, {at, at + count}, {0, 1});
  }
  const Room& queries = own().rooms[static_cast<size_t>(room)];
  if (!home && !kv && queries.in_place) return rows_of(Space::home, box, 0);
  const HeldRows& all =
      kv ? (home ? own().home_kv : own().ended) : (home ? own().home_q : queries.q);
  const int64_t first = home ? 0 : kv ? own().kv_heads.begin : queries.heads.begin;
  const LocalTensors& tensors =
      home ? home_ : (kv ? keys_ : rooms_[static_cast<size_t>(room)]).tensors();
  const int64_t begin = all.at(batch, box.range.rows.begin);
  const Interval rows{begin, begin + count};
  const Interval heads{box.heads.begin - first, box.heads.end - first};
  if (box.operand == Operand::lse) return byte_rows(tensors.lse, 0, rows, heads);
  return byte_rows(tensors[box.operand], 0, rows, heads);
}

template <class End>
std::vector<ByteRows> RankExecutor::rows_of(const End& message) const {
  std::vector<ByteRows> rows;
  for (const Box& box : message.boxes) rows.push_back(rows_of(message.space, box, message.room));
  const size_t first = rows.size();
  const int64_t apart = block_floats_ * int64_t{sizeof(float)};
  for (const CarriedSum& sum : message.sums) {
    std::byte* block = reinterpret_cast<std::byte*>(blocks_.get() + sum.block * block_floats_);
    for (int32_t i = 0; i < sum.count; ++i, block += apart) {
      const int64_t bytes = sum_bytes(plan_, {sum.head, sum.kv_tile + i * sum.step, sum.block + i});
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
  if (std::holds_alternative<Send>(step)) {
    send(transport);
    return true;
  }
  if (std::holds_alternative<Receive>(step)) return receive(transport);
  if (const auto* expected = std::get_if<Expect>(&step)) return expect(*expected, transport);
  if (const auto* hold = std::get_if<Hold>(&step)) {
    this->hold(*hold);
  } else if (const auto* copy = std::get_if<Copy>(&step)) {
    std::vector<RowCopy> copies;
    for (const Box& box : copy->boxes)
      copies.push_back({rows_of(copy->to, box, copy->room), rows_of(copy->from, box, copy->room)});
    timed(StepTime::Kind::copy, message_bytes(plan_, copy->boxes, {}), [&] {
      backend_.copy(copies, run_);
      return true;
    });
  } else if (const auto* compute = std::get_if<Compute>(&step)) {
    this->compute(*compute, transport);
  } else {
    const size_t first = step_;  // and those behind it, at once
    const std::vector<Step>& steps = own().steps;
    while (step_ + 1 < steps.size() && std::holds_alternative<Add>(steps[step_ + 1])) ++step_;
    add(first);
  }
  ++step_;
  return true;
}

template <class End>
std::vector<RankExecutor::Message> RankExecutor::together(int64_t& room) const {
  const std::vector<Step>& steps = own().steps;
  const size_t end = step_ + copied_together(plan_, steps, step_);
  std::vector<Message> messages;
  room = 0;
  for (size_t s = step_; s < end; ++s) {
    const End& message = std::get<End>(steps[s]);
    const int64_t bytes = message_bytes(plan_, message.boxes, message.sums);
    std::vector<ByteRows> rows = rows_of(message);
    std::byte* there = nullptr;
    if constexpr (std::is_same_v<End, Receive>) {
      if (rows.size() == 1 && is_dense(rows.front())) there = rows.front().at;
      const auto landed = landed_.find({message.from, message.message});
      if (landed != landed_.end()) there = landed->second;
    }
    messages.push_back({std::move(rows), room, bytes, there});
    if (!there) room = aligned(room + bytes);
  }
  return messages;
}

void RankExecutor::send(Transport& transport) {
  int64_t room = 0;
  const std::vector<Message> messages = together<Send>(room);
  std::shared_ptr<std::byte> own_room;
  std::byte* packed = transport.room(room);
  if (!packed) {
    own_room = backend_.allocate(room, run_);
    packed = own_room.get();
  }
  std::vector<RowCopy> copies;
  int64_t bytes = 0;
  for (const Message& message : messages) {
    bytes += message.bytes;
    for (std::byte* next = packed + message.begin; const ByteRows& rows : message.rows)
      copies.push_back({next_packed(next, rows), rows});
  }
  timed(StepTime::Kind::pack, bytes, [&] {
    backend_.copy(copies, run_);
    return true;
  });
  for (const Message& message : messages) {
    const Send& step = std::get<Send>(own().steps[step_]);
    timed(StepTime::Kind::send, message.bytes, [&] {
      transport.send(step.to, step.message,
                     {packed + message.begin, static_cast<size_t>(message.bytes)});
      return true;
    });
    ++step_;
  }
}

bool RankExecutor::receive(Transport& transport) {
  int64_t room = 0;
  const std::vector<Message> messages = together<Receive>(room);
  const auto packed = room > 0 ? backend_.allocate(room, run_) : nullptr;
  std::vector<RowCopy> copies;
  int64_t bytes = 0;
  bool there = true;
  for (const Message& message : messages) {
    const Receive& step = std::get<Receive>(own().steps[step_]);
    std::byte* to = message.there ? message.there : packed.get() + message.begin;
    there = timed(StepTime::Kind::receive, message.bytes, [&] {
      const bool expected = landed_.erase({step.from, step.message}) > 0;
      if (expected) transport.came(step.from, step.message);
      const bool came = expected || transport.receive(step.from, step.message,
                                                      {to, static_cast<size_t>(message.bytes)});
      if (!came || &message == &messages.back()) transport.arrived();
      return came;
    });
    if (!there) break;
    ++step_;
    if (!message.rows.empty() && to == message.rows.front().at) continue;
    bytes += message.bytes;
    for (std::byte* next = to; const ByteRows& rows : message.rows)
      copies.push_back({rows, next_packed(next, rows)});
  }
  if (!copies.empty())
    timed(StepTime::Kind::unpack, bytes, [&] {
      backend_.copy(copies, run_);
      return true;
    });
  return there;
}

bool RankExecutor::expect(const Expect& step, Transport& transport) {
  const Receive& receive = *find_receive(own().steps, step_);
  std::byte* to =
      step.at < 0
          ? reinterpret_cast<std::byte*>(blocks_.get() + receive.sums.front().block * block_floats_)
          : landing_.get() + step.at;
  const int64_t bytes = message_bytes(plan_, receive.boxes, receive.sums);
  const bool asked = timed(StepTime::Kind::expect, 0, [&] {
    return transport.expect(step.from, step.message, {to, static_cast<size_t>(bytes)});
  });
  if (!asked) return false;
  landed_[{step.from, step.message}] = to;
  ++step_;
  return true;
}

void RankExecutor::stop(Transport& transport) {
  for (const auto& [message, to] : std::exchange(landed_, {})) {
    try {
      transport.came(message.first, message.second);
    } catch (const Error&) {  // what failed first is told
    }
  }
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
  TensorView view = keys_.tensors()[operand];
  view.data =
      static_cast<std::byte*>(view.data) +
      view.offset(0, slot_of_[static_cast<size_t>(head)] * slot_rows_, 0) * size_of(view.dtype);
  view.shape[1] = kv_rows_[static_cast<size_t>(batch)].size();
  view.shape[2] = last - head + 1;
  view.stride[2] = slot_rows_ * view.stride[1];
  return view;
}

TensorView RankExecutor::ended(Operand operand, int32_t head, int32_t last) const {
  const int64_t kv_heads = plan_.whole.problem.kv_heads;
  const HeldRows& rows = kv_rows_[static_cast<size_t>(head / kv_heads)];
  TensorView view = keys_.tensors()[operand];
  if (rows.size() == 0) return view;
  const int64_t at = own().ended.at(head / kv_heads, rows.ranges().front().rows.begin);
  view.data = static_cast<std::byte*>(view.data) +
              view.offset(0, at, head % kv_heads - own().kv_heads.begin) * size_of(view.dtype);
  view.shape[1] = rows.size();
  view.shape[2] = last - head + 1;
  return view;
}

PieceMemory RankExecutor::memory(int32_t room, int32_t head) const {
  const int64_t kv_heads = plan_.whole.problem.kv_heads;
  const Room& queries = own().rooms[static_cast<size_t>(room)];
  return {queries.q,       kv_rows_[static_cast<size_t>(head / kv_heads)], queries.heads.begin,
          head % kv_heads, dq_sums_[static_cast<size_t>(room)].get(),      blocks_.get(),
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

void RankExecutor::compute(const Compute& step, Transport& transport) {
  timed(StepTime::Kind::settle, 0, [&] {
    transport.settle();
    return true;
  });
  const int32_t first = step.heads.front().head, last = step.heads.back().head;
  const PieceMemory memory = this->memory(step.room, first);
  const auto make = [&] {
    const Interval heads = own().rooms[static_cast<size_t>(step.room)].heads;
    return backend_.ready_piece(plan_.whole, step.piece(plan_.whole), memory,
                                heads.end - heads.begin, run_);
  };
  launch(step_, make, StepTime::Kind::launch, [&](const ReadyLaunch& piece) {
    BackwardTensors tensors = backward_tensors(step.room);
    tensors.k = held(Operand::k, first, last);
    tensors.v = held(Operand::v, first, last);
    if (own().ended == own().kv) {
      tensors.dk = ended(Operand::dk, first, last);
      tensors.dv = ended(Operand::dv, first, last);
    }
    if (plan_.whole.pass == Pass::backward)
      return backend_.backward_piece(piece, tensors, memory, run_);
    backend_.forward_piece(piece, {tensors.q, tensors.k, tensors.v, tensors.o, tensors.lse}, memory,
                           run_);
  });
}

void RankExecutor::add(size_t first) {
  const PieceMemory memory{own().home_q,  own().ended,  0, own().kv_heads.begin, nullptr,
                           blocks_.get(), block_floats_};
  const auto make = [&] {
    std::vector<TileSums> tiles;
    for (size_t step = first; step <= step_; ++step) {
      const Add& add = std::get<Add>(own().steps[step]);
      for (int32_t i = 0; i < add.count; ++i) tiles.push_back(add.tile(i));
    }
    return backend_.ready_sums(plan_.whole, tiles, memory, run_);
  };
  launch(first, make, StepTime::Kind::add,
         [&](const ReadyLaunch& sums) { backend_.add(sums, backward_tensors(0), memory, run_); });
}

BackwardTensors RankExecutor::backward_tensors(int32_t room) const {
  const auto n = static_cast<size_t>(room);
  const LocalTensors& q = own().rooms[n].in_place ? home_ : rooms_[n].tensors();
  const LocalTensors& kv = keys_.tensors();
  return {q[Operand::q], kv[Operand::k], kv[Operand::v],  q[Operand::o],  q[Operand::dout],
          q.lse,         q[Operand::dq], kv[Operand::dk], kv[Operand::dv]};
}

}  // namespace verbatim::dist
