// The backward pass of FlashAttention-2 (Dao 2023, algorithm 2) in the order of a plan: a chain
// keeps one KV tile with its dK and dV and visits query tiles; each visit adds to one dQ row.
//
// Products keep P and dS in f32 for every dtype: only inputs and outputs are 16 bits wide.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/cpu/passes.h"
#include "backend/cpu/tile_mask.h"
#include "backend/cpu/workspace.h"
#include "backend/executor.h"
#include "backend/sums.h"
#include "plan/chain_sums.h"
#include "plan/dropout_origins.h"
#include "plan/visits.h"

namespace verbatim::cpu {
namespace {

/// Tiles of one worker. N keys x D dims are k, dk; a block of queries x N keys are s, dp; and so
/// on. Only dq holds all queries of a tile.
struct Tiles {
  int64_t ld_d, ld_dv, ld_n;
  float *q, *dout, *o, *s, *dp, *dq, *k, *k_t, *v, *v_t, *dk, *dv, *delta;

  Tiles(Arena& arena, const TileLimits& limits)
      : ld_d(leading_dim(limits.head_dim)),
        ld_dv(leading_dim(limits.head_dim_v)),
        ld_n(leading_dim(limits.kv)) {
    const int64_t m = round_up(std::min(limits.q, kQueryBlock), kLanes);
    const int64_t n = round_up(limits.kv, kLanes);
    q = arena.take(m * ld_d);
    dout = arena.take(m * ld_dv);
    o = arena.take(m * ld_dv);
    s = arena.take(m * ld_n);
    dp = arena.take(m * ld_n);
    dq = arena.take(round_up(limits.q, kLanes) * ld_d);
    k = arena.take(n * ld_d);
    k_t = arena.take(limits.head_dim * ld_n);
    v = arena.take(n * ld_dv);
    v_t = arena.take(limits.head_dim_v * ld_n);
    dk = arena.take(n * ld_d);
    dv = arena.take(n * ld_dv);
    delta = arena.take(m);
  }

  static int64_t floats(const TileLimits& limits) {
    Arena counter;
    Tiles tiles(counter, limits);
    return counter.floats();
  }
};

/// delta = rowsum(dO * O) of all queries. The first visit of a row tile makes it for the others;
/// those that come before it is done make their own, which is the same.
class Deltas {
 public:
  Deltas(const std::array<int64_t, 3>& shape, int64_t tiles)
      : values_(new float[shape[0] * shape[1] * shape[2]]),
        rows_{values_.get(), shape},
        states_(tiles) {}

  static int64_t floats(const Plan& plan) {
    return plan.problem.batch * plan.problem.q_heads * plan.problem.q_len;
  }
  float* at(Place place) { return row_address(rows_, place); }

  bool known(int64_t tile) const {
    return states_[tile].load(std::memory_order_acquire) == State::known;
  }
  /// Whether the caller is the one to fill in the values of `tile`, and then to publish() them.
  bool claim(int64_t tile) {
    State expected = State::unknown;
    return states_[tile].compare_exchange_strong(expected, State::claimed);
  }
  void publish(int64_t tile) { states_[tile].store(State::known, std::memory_order_release); }

 private:
  enum class State : uint8_t { unknown, claimed, known };

  std::unique_ptr<float[]> values_;
  RowView rows_;                            // shaped like LSE
  std::vector<std::atomic<State>> states_;  // by the number of the row's sum
};

/// What all workers of one call share.
struct Call {
  const Plan& plan;
  const BackwardTensors& tensors;
  const KernelTable& kernels;
  SumLayout layout;
  TileLimits limits;
  ScoreScalars scalars;
  Dropout dropout;
  DropoutOrigins origins;
  const PieceCall* piece;
  std::vector<const std::vector<Carry>*> carries;  // of a piece, by head
  Rows rows;
  Arena partial_sums;
  Deltas deltas;

  Call(const Plan& plan, const BackwardTensors& tensors, const RunOptions& run,
       const KernelTable& kernels, const PieceCall* piece)
      : plan(plan),
        tensors(tensors),
        kernels(kernels),
        layout(plan, piece != nullptr),
        limits(plan),
        scalars(score_scalars(plan.problem)),
        dropout(dropout_of(plan.problem, run)),
        origins(plan),
        piece(piece),
        rows(piece),
        partial_sums(layout.floats()),
        deltas(tensors.lse.shape, layout.sums()) {
    places = partial_sums.take(layout.floats());
    if (!piece) return;
    carries.resize(plan.order_of_head.size());
    for (const HeadPiece& own : piece->piece.heads) carries[own.head] = &own.carries;
  }
  float* places;
};

class BackwardWorker final : public Worker {
 public:
  explicit BackwardWorker(Call& call)
      : call_(call),
        kernels_(call.kernels),
        arena_(Tiles::floats(call.limits)),
        tiles_(arena_, call.limits),
        mask_(kQueryBlock, call.limits.kv),
        keep_(kQueryBlock, call.limits.kv) {}

  void start(const PlacedTask& task) override {
    at_.head = task.head;
    const Problem& problem = call_.plan.problem;
    b_ = task.head / problem.kv_heads;
    kv_head_ = task.head % problem.kv_heads;
    order_ = &call_.plan.order(task.head);
    chain_ = order_->tasks[task.task].chain_begin;
    chain_end_ = order_->tasks[task.task].chain_end;
    step_ = Step::begin_chain;
  }

  Turn compute() override {
    for (;;) {
      switch (step_) {
        case Step::begin_chain:
          if (chain_ == chain_end_) return {};
          begin_chain();
          if (chain().continues) {
            step_ = Step::take_over;
            return {call_.layout.kv_sum(at_.head, chain().tile), chain().addend, false};
          }
          step_ = Step::visit;
          break;
        case Step::take_over:
          break;  // left by add()
        case Step::visit:
          if (run_ == chain().run_end) {
            step_ = Step::end_chain;
          } else if (visit_ == run().count) {
            ++run_;
            visit_ = 0;
          } else {
            visit();
            const int32_t row = run().tile(visit_);
            if (order_->row_addends[row] > 1)
              return {row_tile(run().q_head, row), run().addend_of(visit_)};
            add();
          }
          break;
        case Step::end_chain:
          if (chain().addends > 1)
            return {call_.layout.kv_sum(at_.head, chain().tile), chain().addend};
          add();
          break;
      }
    }
  }

  void add() override {
    if (step_ == Step::visit) {
      add_row();
      ++visit_;
    } else if (step_ == Step::take_over) {
      take_over();
      step_ = Step::visit;
    } else {
      add_tile();
      ++chain_;
      step_ = Step::begin_chain;
    }
  }

 private:
  enum class Step { begin_chain, take_over, visit, end_chain };

  const Chain& chain() const { return order_->chains[chain_]; }
  Run run() const { return order_->runs[run_]; }
  int64_t q_head() const { return kv_head_ * order_->group + run().q_head; }

  Place q_place(int64_t row) const { return call_.rows.q(b_, row, q_head()); }
  Place kv_place() const { return call_.rows.kv(b_, keys_.begin, kv_head_); }

  bool load(const TensorView& t, Place place, Interval rows, float* tile, int64_t ld) {
    return kernels_.load_rows(row_address(t, place), t.dtype, t.stride[1],
                              static_cast<int32_t>(rows.end - rows.begin),
                              static_cast<int32_t>(t.shape[3]), tile, ld);
  }

  void begin_chain() {
    run_ = chain().run_begin;
    visit_ = 0;
    at_.kv_tile = chain().tile;
    at_.q_tile = -1;
    const Clock::time_point begin = now();
    const std::vector<int64_t>& edges = order_->tiles->kv_edges;
    keys_ = {edges[chain().tile], edges[chain().tile + 1]};
    cols_ = static_cast<int32_t>(keys_.end - keys_.begin);
    const BackwardTensors& t = call_.tensors;
    finite_k_ = load(t.k, kv_place(), keys_, tiles_.k, tiles_.ld_d);
    load(t.v, kv_place(), keys_, tiles_.v, tiles_.ld_dv);
    kernels_.transpose(tiles_.k, tiles_.ld_d, cols_, head_dim(), tiles_.k_t, tiles_.ld_n);
    kernels_.transpose(tiles_.v, tiles_.ld_dv, cols_, head_dim_v(), tiles_.v_t, tiles_.ld_n);
    const size_t padded = round_up(cols_, kRowGroup);
    std::memset(tiles_.dk, 0, padded * tiles_.ld_d * sizeof(float));
    std::memset(tiles_.dv, 0, padded * tiles_.ld_dv * sizeof(float));
    if (call_.piece && carry().in >= 0) load_sums(carried_dk(carry().in), carried_dv(carry().in));
    record(TimelineEvent::Kind::start, begin);
  }

  void visit() {
    at_.q_head = run().q_head;
    at_.q_tile = run().tile(visit_);
    const Clock::time_point begin = now();
    announce();
    const int64_t first = order_->tiles->q_edges[at_.q_tile];
    const int64_t end = order_->tiles->q_edges[at_.q_tile + 1];
    const int64_t tile = row_tile(run().q_head, at_.q_tile);
    const bool known = call_.deltas.known(tile), mine = !known && call_.deltas.claim(tile);
    for (int64_t q = first; q < end; q += kQueryBlock) {
      const Interval queries{q, std::min(q + kQueryBlock, end)};
      float* delta = call_.deltas.at(q_place(q));
      if (!known) {
        make_delta(queries);
        if (mine) std::copy_n(tiles_.delta, queries.end - queries.begin, delta);
      }
      visit_block(queries, known ? delta : tiles_.delta, tiles_.dq + (q - first) * tiles_.ld_d);
    }
    if (mine) call_.deltas.publish(tile);
    record(TimelineEvent::Kind::compute, begin);
  }

  int64_t row_tile(int32_t q_head, int32_t q_tile) const {
    return call_.layout.row_sum(at_.head, q_head, q_tile);
  }

  /// Of some queries, into the worker's own tile.
  void make_delta(Interval queries) {
    const BackwardTensors& t = call_.tensors;
    load(t.dout, q_place(queries.begin), queries, tiles_.dout, tiles_.ld_dv);
    load(t.o, q_place(queries.begin), queries, tiles_.o, tiles_.ld_dv);
    kernels_.row_dots(tiles_.dout, tiles_.o, tiles_.ld_dv,
                      static_cast<int32_t>(queries.end - queries.begin), head_dim_v(),
                      tiles_.delta);
  }

  /// What the visit computes for some queries of its tile; their rows of this tile's dQ.
  void visit_block(Interval queries, const float* delta, float* dq) {
    const BackwardTensors& t = call_.tensors;
    const int32_t rows = static_cast<int32_t>(queries.end - queries.begin);
    const Place place = q_place(queries.begin);
    const bool finite_q = load(t.q, place, queries, tiles_.q, tiles_.ld_d);
    const bool finite_dout = load(t.dout, place, queries, tiles_.dout, tiles_.ld_dv);

    const TileRect rect{queries, keys_};
    const bool masked = run().slice_count > 0;
    if (masked)
      mask_.build(*order_->tiles, run().slice_begin, run().slice_count, rect, TileRows::queries);
    const Extent* cols_of_rows = masked ? mask_.cols_of_rows() : nullptr;
    const Extent* rows_of_cols = masked ? mask_.rows_of_cols() : nullptr;

    // S = Q K^T and dP = dO V^T, then P and dS in their place.
    Gemm scores{tiles_.q, tiles_.ld_d, 1,    tiles_.k_t, tiles_.ld_n,
                tiles_.s, tiles_.ld_n, rows, cols_,      head_dim()};
    Gemm d_probs{tiles_.dout, tiles_.ld_dv, 1,    tiles_.v_t, tiles_.ld_n,
                 tiles_.dp,   tiles_.ld_n,  rows, cols_,      head_dim_v()};
    for (Gemm* gemm : {&scores, &d_probs}) gemm->upcoming = &upcoming_;
    scores.cols_of = d_probs.cols_of = cols_of_rows;
    kernels_.gemm(scores);
    kernels_.gemm(d_probs);
    ScoreTile tile{
        tiles_.s, tiles_.ld_n, rows, cols_, nullptr, nullptr, round_up(cols_, kLanes) / kLanes};
    if (masked) tile.bits = mask_.data();
    if (call_.dropout.enabled()) {
      const DropoutOrigin origin = call_.origins.at(at_.head, at_.q_tile);
      keep_.build(call_.dropout, origin, q_head(), rect, TileRows::queries);
      tile.keep = keep_.data();
    }
    kernels_.softmax_backward(tile, tiles_.dp, call_.scalars, row_address(t.lse, place), delta);

    // dV += P^T dO, dK += dS^T Q, dQ = dS K.
    Gemm d_v{tiles_.s,     1,     tiles_.ld_n,  tiles_.dout, tiles_.ld_dv, tiles_.dv,
             tiles_.ld_dv, cols_, head_dim_v(), rows,        true};
    Gemm d_k{tiles_.dp,   1,     tiles_.ld_n, tiles_.q, tiles_.ld_d, tiles_.dk,
             tiles_.ld_d, cols_, head_dim(),  rows,     true};
    Gemm d_q{tiles_.dp, tiles_.ld_n, 1,    tiles_.k,   tiles_.ld_d,
             dq,        tiles_.ld_d, rows, head_dim(), cols_};
    for (Gemm* gemm : {&d_v, &d_k, &d_q}) gemm->upcoming = &upcoming_;
    d_v.depth_of = d_k.depth_of = rows_of_cols;
    d_q.depth_of = cols_of_rows;
    if (masked && !finite_dout) skip_hidden_queries(d_v);
    if (masked && !finite_q) skip_hidden_queries(d_k);
    if (masked && !finite_k_) {
      d_q.visible = mask_.data();
      d_q.visible_row = mask_.strips();
    }
    kernels_.gemm(d_v);
    kernels_.gemm(d_k);
    kernels_.gemm(d_q);
  }

  /// Lets the products of this visit fetch its dQ rows and the query tiles of the next one.
  void announce() {
    upcoming_.count = 0;
    const bool last_of_run = visit_ + 1 == run().count;
    if (!last_of_run || run_ + 1 < chain().run_end) {
      const Run next = last_of_run ? order_->runs[run_ + 1] : run();
      const int32_t tile = last_of_run ? next.first : next.tile(visit_ + 1);
      const BackwardTensors& t = call_.tensors;
      if (!call_.deltas.known(row_tile(next.q_head, tile))) push_upcoming(t.o, next.q_head, tile);
      for (const TensorView* view : {&t.dout, &t.q}) push_upcoming(*view, next.q_head, tile);
    }
    if (call_.tensors.dq.dtype == Dtype::f32)
      push_upcoming(call_.tensors.dq, run().q_head, at_.q_tile);
  }

  void push_upcoming(const TensorView& t, int32_t q_head, int32_t tile) {
    const std::vector<int64_t>& edges = order_->tiles->q_edges;
    const int64_t bytes = size_of(t.dtype), head = kv_head_ * order_->group + q_head;
    upcoming_.push(row_address(t, call_.rows.q(b_, edges[tile], head)), t.stride[1] * bytes,
                   edges[tile + 1] - edges[tile], t.shape[3] * bytes);
  }

  void skip_hidden_queries(Gemm& gemm) const {
    gemm.visible = mask_.data();
    gemm.visible_depth = mask_.strips();
  }

  void add_row() {
    const Clock::time_point begin = now();
    const std::vector<int64_t>& edges = order_->tiles->q_edges;
    const int64_t first = edges[at_.q_tile];
    const int32_t rows = static_cast<int32_t>(edges[at_.q_tile + 1] - first);
    const RowsOut out = rows_out(call_.tensors.dq, q_place(first));
    const int32_t addend = run().addend_of(visit_);
    add_partial(tiles_.dq, tiles_.ld_d, rows, head_dim(), addend == 0,
                addend + 1 == order_->row_addends[at_.q_tile], row_sums(first, out),
                call_.scalars.scale, out);
    record(TimelineEvent::Kind::reduce, begin);
  }

  /// Where the sums of the current dQ rows lie until their last addend is in.
  RowsOut row_sums(int64_t first, const RowsOut& out) const {
    if (out.dtype == Dtype::f32) return out;
    if (call_.piece) {
      const Place at = q_place(first);
      const int64_t apart = call_.tensors.dq.shape[2] * head_dim();  // rows of all heads
      return {call_.piece->memory.dq_sums + at.l * apart + at.h * head_dim(), Dtype::f32, apart};
    }
    const int64_t place = call_.layout.row_place(at_.head, run().q_head, at_.q_tile);
    return {call_.places + place, Dtype::f32, head_dim()};
  }

  /// What a piece of a plan hands in and out for its chain.
  const Carry& carry() const { return (*call_.carries[at_.head])[chain_]; }
  RowsOut carried_dk(int32_t block) const {
    return {call_.piece->memory.block(block), Dtype::f32, head_dim()};
  }
  RowsOut carried_dv(int32_t block) const {
    return {call_.piece->memory.block(block) + cols_ * head_dim(), Dtype::f32, head_dim_v()};
  }

  RowsOut dk_out() { return rows_out(call_.tensors.dk, kv_place()); }
  RowsOut dv_out() { return rows_out(call_.tensors.dv, kv_place()); }

  /// The f32 sums of the chain's dK and dV that are not the last: those that it goes on from
  /// (`at_start`), or that it leaves. In the outputs where these are f32 and the sums are the
  /// tile's.
  struct KeySums {
    RowsOut dk, dv;
  };
  KeySums key_sums(bool at_start) {
    const bool apart = lies_apart(chain(), at_start);
    const RowsOut dk = dk_out(), dv = dv_out();
    if (!apart && dk.dtype == Dtype::f32) return {dk, dv};
    float* place = call_.places + call_.layout.kv_place(at_.head, chain().tile, apart);
    return {{place, Dtype::f32, head_dim()},
            {place + cols_ * call_.limits.head_dim, Dtype::f32, head_dim_v()}};
  }

  /// dK and dV start with what the chain before left.
  void take_over() {
    const Clock::time_point begin = now();
    const KeySums sums = key_sums(true);
    load_sums(sums.dk, sums.dv);
    record(TimelineEvent::Kind::start, begin);
  }

  void load_sums(const RowsOut& dk, const RowsOut& dv) {
    kernels_.load_rows(dk.data, dk.dtype, dk.stride, cols_, head_dim(), tiles_.dk, tiles_.ld_d);
    kernels_.load_rows(dv.data, dv.dtype, dv.stride, cols_, head_dim_v(), tiles_.dv, tiles_.ld_dv);
  }

  void add_tile() {
    at_.q_tile = -1;
    const Clock::time_point begin = now();
    if (call_.piece && carry().out >= 0) {
      add_partial(tiles_.dk, tiles_.ld_d, cols_, head_dim(), true, false, carried_dk(carry().out),
                  1.0f, {});
      add_partial(tiles_.dv, tiles_.ld_dv, cols_, head_dim_v(), true, false,
                  carried_dv(carry().out), 1.0f, {});
    } else {
      const bool first = !joins_sum(chain()), last = chain().addend + 1 == chain().addends;
      const KeySums sums = key_sums(false);
      add_partial(tiles_.dk, tiles_.ld_d, cols_, head_dim(), first, last, sums.dk,
                  call_.scalars.scale, dk_out());
      add_partial(tiles_.dv, tiles_.ld_dv, cols_, head_dim_v(), first, last, sums.dv,
                  call_.scalars.keep_scale, dv_out());
    }
    record(TimelineEvent::Kind::finish, begin);
  }

  /// The first addend stores to `sum`, later ones add, the last one scales and rounds to `out`.
  void add_partial(const float* x, int64_t ld, int32_t rows, int32_t dim, bool first, bool last,
                   const RowsOut& sum, float scale, const RowsOut& out) {
    kernels_.add_rows(x, ld, rows, dim, first ? nullptr : static_cast<const float*>(sum.data),
                      sum.stride, last ? scale : 1.0f, last ? out : sum);
  }

  int32_t head_dim() const { return static_cast<int32_t>(call_.limits.head_dim); }
  int32_t head_dim_v() const { return static_cast<int32_t>(call_.limits.head_dim_v); }

  Call& call_;
  const KernelTable& kernels_;
  Arena arena_;
  Tiles tiles_;
  TileMask mask_;
  KeepMask keep_;
  Upcoming upcoming_;

  const HeadOrder* order_ = nullptr;
  int64_t b_ = 0, kv_head_ = 0;
  int32_t chain_ = 0, chain_end_ = 0, run_ = 0, visit_ = 0;
  Step step_ = Step::begin_chain;
  Interval keys_{};
  int32_t cols_ = 0;
  bool finite_k_ = true;
};

/// The addends that are in each sum before a piece starts, [sums].
std::vector<int32_t> added_before(const SumLayout& layout, const PieceCall* piece) {
  std::vector<int32_t> added(layout.sums(), 0);
  if (!piece) return added;
  for (const HeadPiece& own : piece->piece.heads)
    std::ranges::copy(addends_before(*own.order), added.begin() + layout.row_sum(own.head, 0, 0));
  return added;
}

}  // namespace

void run_backward(const Plan& plan, const BackwardTensors& tensors, const RunOptions& run,
                  const KernelTable& kernels, const PieceCall* piece) {
  Call call(plan, tensors, run, kernels, piece);
  if (!piece) clear_unvisited_rows(plan, tensors.dq);
  execute(
      plan, added_before(call.layout, piece),
      [&] { return std::make_unique<BackwardWorker>(call); }, run);
}

int64_t backward_workspace_bytes(const Plan& plan) {
  const SumLayout layout(plan);
  const int64_t workers = preferred_workers(plan, thread_count(plan, {}));
  const int64_t floats =
      layout.floats() + Deltas::floats(plan) + workers * Tiles::floats(TileLimits(plan));
  return floats * int64_t{sizeof(float)} + layout.sums() * int64_t{sizeof(int32_t) + 1};
}

}  // namespace verbatim::cpu
