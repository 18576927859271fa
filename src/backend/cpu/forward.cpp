// The forward pass of FlashAttention-2 (Dao 2023, algorithm 1) in the order of a plan: a chain
// keeps one query tile with its running softmax and visits KV tiles. Scores are held transposed,
// one column per query, so that maxima and sums need no horizontal step.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "backend/cpu/passes.h"
#include "backend/cpu/tile_mask.h"
#include "backend/cpu/workspace.h"
#include "backend/executor.h"
#include "backend/sums.h"
#include "plan/dropout_origins.h"

namespace verbatim::cpu {
namespace {

/// Running softmax of the queries of one tile and their output so far.
struct State {
  float* o;  // rows x leading_dim(head_dim_v)
  RowState rows;
};

/// f32 rows that products read: a tile of ours, or the caller's.
struct RowsIn {
  const float* data;
  int64_t stride;
};

/// Tiles of one worker: M queries, N keys; s holds N keys x a block of queries.
struct Tiles {
  int64_t ld_d, ld_dv, ld_m, ld_s;
  float *q, *q_t, *k, *v, *s, *factor, *later_factor;
  State state;

  Tiles(Arena& arena, const TileLimits& limits)
      : ld_d(leading_dim(limits.head_dim)),
        ld_dv(leading_dim(limits.head_dim_v)),
        ld_m(leading_dim(limits.q)),
        ld_s(leading_dim(std::min(limits.q, kQueryBlock))) {
    const int64_t m = round_up(limits.q, kLanes), n = round_up(limits.kv, kLanes);
    q = arena.take(m * ld_d);
    q_t = arena.take(limits.head_dim * ld_m);
    k = arena.take(n * ld_d);
    v = arena.take(n * ld_dv);
    s = arena.take(n * ld_s);
    factor = arena.take(m);
    later_factor = arena.take(m);
    state = {arena.take(m * ld_dv), {arena.take(m), arena.take(m), factor}};
  }

  static int64_t floats(const TileLimits& limits) {
    Arena counter;
    Tiles tiles(counter, limits);
    return counter.floats();
  }
};

/// What all workers of one call share.
struct Call {
  const Plan& plan;
  const ForwardTensors& tensors;
  const KernelTable& kernels;
  SumLayout layout;
  TileLimits limits;
  ScoreScalars scalars;
  Dropout dropout;
  DropoutOrigins origins;
  Rows rows;
  Arena states;  // of split rows
  float* places;

  Call(const Plan& plan, const ForwardTensors& tensors, const RunOptions& run,
       const KernelTable& kernels, const PieceCall* piece)
      : plan(plan),
        tensors(tensors),
        kernels(kernels),
        layout(plan),
        limits(plan),
        scalars(score_scalars(plan.problem)),
        dropout(dropout_of(plan.problem, run)),
        origins(plan),
        rows(piece),
        states(layout.floats()),
        places(states.take(layout.floats())) {}
};

class ForwardWorker final : public Worker {
 public:
  explicit ForwardWorker(Call& call)
      : call_(call),
        kernels_(call.kernels),
        arena_(Tiles::floats(call.limits)),
        tiles_(arena_, call.limits),
        mask_(call.limits.kv, kQueryBlock),
        keep_(call.limits.kv, kQueryBlock) {}

  void start(const PlacedTask& task) override {
    at_.head = task.head;
    const Problem& problem = call_.plan.problem;
    b_ = task.head / problem.kv_heads;
    kv_head_ = task.head % problem.kv_heads;
    order_ = &call_.plan.order(task.head);
    chain_ = order_->tasks[task.task].chain_begin;
    chain_end_ = order_->tasks[task.task].chain_end;
  }

  Turn compute() override {
    while (chain_ < chain_end_) {
      begin_chain();
      for (int32_t r = chain().run_begin; r < chain().run_end; ++r) {
        const Run& run = order_->runs[r];
        for (int32_t i = 0; i < run.count; ++i) {
          const bool next_run = i + 1 == run.count && r + 1 < chain().run_end;
          announce(next_run ? order_->runs[r + 1].first : run.tile(std::min(i + 1, run.count - 1)));
          visit(run, i);
        }
      }
      if (chain().addends > 1)
        return {call_.layout.row_sum(at_.head, chain().q_head, chain().tile), chain().addend};
      add();
    }
    return {};
  }

  void add() override {
    at_.kv_tile = -1;
    const Clock::time_point begin = now();
    if (chain().addends > 1) {
      const State shared = shared_state();
      if (chain().addend > 0) merge_into_own(shared);
      if (chain().addend < chain().addends - 1) {
        copy(tiles_.state, shared);
      } else {
        finish_rows();
      }
    } else {
      finish_rows();
    }
    record(TimelineEvent::Kind::finish, begin);
    ++chain_;
  }

 private:
  const Chain& chain() const { return order_->chains[chain_]; }
  int64_t q_head() const { return kv_head_ * order_->group + chain().q_head; }

  void begin_chain() {
    at_.q_head = chain().q_head;
    at_.q_tile = chain().tile;
    at_.kv_tile = -1;
    const Clock::time_point begin = now();
    const std::vector<int64_t>& edges = order_->tiles->q_edges;
    queries_ = {edges[chain().tile], edges[chain().tile + 1]};
    rows_ = static_cast<int32_t>(queries_.end - queries_.begin);
    const TensorView& q = call_.tensors.q;
    kernels_.load_rows(row_address(q, call_.rows.q(b_, queries_.begin, q_head())), q.dtype,
                       q.stride[1], rows_, head_dim(), tiles_.q, tiles_.ld_d);
    kernels_.transpose(tiles_.q, tiles_.ld_d, rows_, head_dim(), tiles_.q_t, tiles_.ld_m);
    const int64_t padded = round_up(rows_, kLanes);
    const RowState& state = tiles_.state.rows;
    std::fill_n(tiles_.state.o, padded * tiles_.ld_dv, 0.0f);
    std::fill_n(state.max, padded, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, padded, 0.0f);
    record(TimelineEvent::Kind::start, begin);
  }

  /// Lets the products of the coming visit fetch the KV tile of the one after it.
  void announce(int32_t kv_tile) {
    const std::vector<int64_t>& edges = order_->tiles->kv_edges;
    upcoming_.count = 0;
    for (const TensorView* t : {&call_.tensors.k, &call_.tensors.v}) {
      const int64_t bytes = size_of(t->dtype), begin = edges[kv_tile];
      upcoming_.push(row_address(*t, call_.rows.kv(b_, begin, kv_head_)), t->stride[1] * bytes,
                     edges[kv_tile + 1] - begin, t->shape[3] * bytes);
    }
  }

  void visit(const Run& run, int32_t i) {
    at_.kv_tile = run.tile(i);
    const Clock::time_point begin = now();
    const std::vector<int64_t>& edges = order_->tiles->kv_edges;
    const Interval keys{edges[at_.kv_tile], edges[at_.kv_tile + 1]};
    const int32_t count = static_cast<int32_t>(keys.end - keys.begin);
    const TensorView& v = call_.tensors.v;
    const RowsIn k = rows_of_k(keys);
    const bool finite_v =
        kernels_.load_rows(row_address(v, call_.rows.kv(b_, keys.begin, kv_head_)), v.dtype,
                           v.stride[1], count, head_dim_v(), tiles_.v, tiles_.ld_dv);
    for (int64_t q = queries_.begin; q < queries_.end; q += kQueryBlock)
      visit_block(run, {{q, std::min(q + kQueryBlock, queries_.end)}, keys}, k, finite_v);
    record(TimelineEvent::Kind::compute, begin);
  }

  /// Where they are, unless they must be widened or padded to whole row groups.
  RowsIn rows_of_k(Interval keys) {
    const TensorView& k = call_.tensors.k;
    const void* first = row_address(k, call_.rows.kv(b_, keys.begin, kv_head_));
    const int32_t count = static_cast<int32_t>(keys.end - keys.begin);
    if (k.dtype == Dtype::f32 && count % kRowGroup == 0)
      return {static_cast<const float*>(first), k.stride[1]};
    kernels_.load_rows(first, k.dtype, k.stride[1], count, head_dim(), tiles_.k, tiles_.ld_d);
    return {tiles_.k, tiles_.ld_d};
  }

  /// What the visit computes for some queries of the chain's tile.
  void visit_block(const Run& run, const TileRect& rect, RowsIn k, bool finite_v) {
    const int64_t first = rect.q.begin - queries_.begin;
    const int32_t rows = static_cast<int32_t>(rect.q.end - rect.q.begin);
    const int32_t count = static_cast<int32_t>(rect.k.end - rect.k.begin);
    const bool masked = run.slice_count > 0;
    if (masked) mask_.build(*order_->tiles, run.slice_begin, run.slice_count, rect, TileRows::keys);

    Gemm scores{k.data,      k.stride, 1,    tiles_.q_t + first, tiles_.ld_m, tiles_.s,
                tiles_.ld_s, count,    rows, head_dim()};
    if (masked) scores.cols_of = mask_.cols_of_rows();
    scores.upcoming = &upcoming_;
    kernels_.gemm(scores);

    const int64_t strips = round_up(rows, kLanes) / kLanes;
    ScoreTile tile{tiles_.s, tiles_.ld_s, count, rows, nullptr, nullptr, strips};
    if (masked) tile.bits = mask_.data();
    if (call_.dropout.enabled()) {
      const DropoutOrigin origin = call_.origins.at(at_.head, at_.q_tile);
      keep_.build(call_.dropout, origin, q_head(), rect, TileRows::keys);
      tile.keep = keep_.data();
    }
    const Extent* hulls = masked ? mask_.rows_of_cols() : nullptr;
    const RowState& all = tiles_.state.rows;
    const RowState state{all.max + first, all.sum + first, all.factor + first};
    float* o = tiles_.state.o + first * tiles_.ld_dv;
    if (kernels_.softmax_forward(tile, call_.scalars, hulls, state))
      kernels_.scale_rows(o, tiles_.ld_dv, rows, head_dim_v(), state.factor);

    Gemm out{tiles_.s,     1,    tiles_.ld_s,  tiles_.v, tiles_.ld_dv, o,
             tiles_.ld_dv, rows, head_dim_v(), count,    true};
    out.depth_of = hulls;
    if (masked && !finite_v) {
      out.visible = mask_.data();
      out.visible_depth = mask_.strips();
    }
    out.upcoming = &upcoming_;
    kernels_.gemm(out);
  }

  /// O / sum and log-sum-exp of the finished rows; 0 and -inf for rows without a key.
  void finish_rows() {
    const RowState& state = tiles_.state.rows;
    const Place place = call_.rows.q(b_, queries_.begin, q_head());
    float* lse = row_address(call_.tensors.lse, place);
    for (int32_t r = 0; r < rows_; ++r) {
      const bool empty = state.sum[r] == 0;
      state.factor[r] = empty ? 0.0f : call_.scalars.keep_scale / state.sum[r];
      if (empty) {
        lse[r] = -std::numeric_limits<float>::infinity();
      } else if (std::isfinite(state.sum[r])) {
        lse[r] = static_cast<float>(static_cast<double>(state.max[r]) + log_fixed(state.sum[r]));
      } else {
        lse[r] = std::isnan(state.sum[r]) ? std::numeric_limits<float>::quiet_NaN() : state.sum[r];
      }
    }
    float* o = tiles_.state.o;
    kernels_.scale_rows(o, tiles_.ld_dv, rows_, head_dim_v(), state.factor);
    kernels_.add_rows(o, tiles_.ld_dv, rows_, head_dim_v(), nullptr, 0, 1.0f,
                      rows_out(call_.tensors.o, place));
  }

  /// Where the chains of a split tile meet.
  State shared_state() const {
    float* place = call_.places + call_.layout.row_place(at_.head, chain().q_head, chain().tile);
    float* max = place + round_up(rows_, kRowGroup) * tiles_.ld_dv;
    return {place, {max, max + round_up(rows_, kLanes), tiles_.later_factor}};
  }

  /// The earlier addends come first in the merge; the result lands in our own state.
  void merge_into_own(const State& earlier) {
    kernels_.merge_rows(earlier.o, tiles_.ld_dv, earlier.rows, tiles_.state.o, tiles_.ld_dv,
                        tiles_.state.rows, rows_, head_dim_v());
    copy(earlier, tiles_.state);
  }

  void copy(const State& from, const State& to) const {
    std::copy_n(from.o, rows_ * tiles_.ld_dv, to.o);
    std::copy_n(from.rows.max, round_up(rows_, kLanes), to.rows.max);
    std::copy_n(from.rows.sum, round_up(rows_, kLanes), to.rows.sum);
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
  int32_t chain_ = 0, chain_end_ = 0;
  Interval queries_{};
  int32_t rows_ = 0;
};

}  // namespace

void run_forward(const Plan& plan, const ForwardTensors& tensors, const RunOptions& run,
                 const KernelTable& kernels, const PieceCall* piece) {
  Call call(plan, tensors, run, kernels, piece);
  std::vector<int32_t> added(call.layout.sums(), 0);
  execute(
      plan, std::move(added), [&] { return std::make_unique<ForwardWorker>(call); }, run);
}

int64_t forward_workspace_bytes(const Plan& plan) {
  const SumLayout layout(plan);
  const int64_t workers = preferred_workers(plan, thread_count(plan, {}));
  const int64_t floats = layout.floats() + workers * Tiles::floats(TileLimits(plan));
  return floats * int64_t{sizeof(float)} + layout.sums() * int64_t{sizeof(int32_t)};
}

}  // namespace verbatim::cpu
