#include "backend/tl/interpreter.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "backend/executor.h"
#include "backend/sums.h"
#include "backend/tl/tile.h"

namespace verbatim::tl {
namespace {

/// The tensors of either pass by their names in TL. What a pass has not has no memory.
struct Tensors {
  TensorView q{}, k{}, v{}, o{}, dout{}, dq{}, dk{}, dv{};
  RowView lse{};

  const TensorView& named(std::string_view name) const {
    if (name == "Q") return q;
    if (name == "K") return k;
    if (name == "V") return v;
    if (name == "O") return o;
    if (name == "dO") return dout;
    if (name == "dQ") return dq;
    return name == "dK" ? dk : dv;
  }
};

/// What all workers of one call share.
struct Call {
  const Kernel& kernel;
  const Plan& plan;
  Tensors tensors;
  SumNumbers numbers;
  std::vector<const Step*> reduces;          // a number each; every sum has a turn for each
  std::vector<std::vector<float>> partials;  // of sums in progress, [sums * reduces]

  Call(const Kernel& kernel, const Plan& plan, const Tensors& tensors)
      : kernel(kernel), plan(plan), tensors(tensors), numbers(plan) {
    for (const std::vector<Step>* steps : {&kernel.visit, &kernel.after})
      for (const Step& step : *steps)
        if (step.kind == Step::Kind::reduce) reduces.push_back(&step);
    partials.resize(sums());
  }
  int64_t sums() const { return numbers.sums() * std::ssize(reduces); }
};

class ProgramWorker final : public Worker {
 public:
  explicit ProgramWorker(Call& call)
      : call_(call), kernel_(call.kernel), tiles_(kernel_.variables.size()) {
    for (size_t v = 0; v < tiles_.size(); ++v) {
      const Variable& variable = kernel_.variables[v];
      tiles_[v] = {.rows = variable.rows, .cols = variable.cols};
      tiles_[v].data.resize(variable.rows * variable.cols);
    }
    pairs_.cols = kernel_.tile.kv;
    pairs_.visible.resize(kernel_.tile.q * kernel_.tile.kv);
  }

  void start(const PlacedTask& task) override {
    at_.head = task.head;
    const Problem& problem = call_.plan.problem;
    b_ = task.head / problem.kv_heads;
    kv_head_ = task.head % problem.kv_heads;
    order_ = &call_.plan.order(task.head);
    chain_ = order_->tasks[task.task].chain_begin;
    chain_end_ = order_->tasks[task.task].chain_end;
    phase_ = Phase::begin_chain;
  }

  Turn compute() override {
    for (;;) {
      switch (phase_) {
        case Phase::begin_chain:
          if (chain_ == chain_end_) return {};
          begin_chain();
          break;
        case Phase::take_over:
          if (const Turn turn = next_to_take_over(); turn.sum >= 0) return turn;
          phase_ = Phase::next_visit;
          break;
        case Phase::next_visit:
          next_visit();
          break;
        case Phase::visit:
        case Phase::end_chain:
          if (const Turn turn = go_on(); turn.sum >= 0) return turn;
          break;
      }
    }
  }

  void add() override {
    if (phase_ == Phase::take_over) {
      const Step& step = *call_.reduces[taken_++];
      const std::vector<float>& sum = partial(step);
      std::ranges::copy(sum, tiles_[step.a].data.begin());
      return;
    }
    const Clock::time_point begin = now();
    const Step& step = steps()[step_++];
    const Addend addend = addend_of(step);
    add_to_sum(step, addend.first, addend.last);
    record(addend.kept ? TimelineEvent::Kind::finish : TimelineEvent::Kind::reduce, begin);
  }

 private:
  enum class Phase { begin_chain, take_over, next_visit, visit, end_chain };
  /// A chain keeps the sums of its own tile; the others are of the visited one.
  struct Addend {
    int32_t number;
    bool kept, first, last;
  };

  const Chain& chain() const { return order_->chains[chain_]; }
  Run run() const { return order_->runs[run_]; }
  bool forward() const { return kernel_.pass == Pass::forward; }
  const std::vector<Step>& steps() const {
    return phase_ == Phase::visit ? kernel_.visit : kernel_.after;
  }
  int32_t q_head_of_group() const {
    return forward() ? chain().q_head : run_ < chain().run_end ? run().q_head : 0;
  }
  Interval tile_of(bool queries, int32_t tile) const {
    const TileMap& map = *order_->tiles;
    const std::vector<int64_t>& edges = queries ? map.q_edges : map.kv_edges;
    return {edges[tile], edges[tile + 1]};
  }

  void begin_chain() {
    run_ = chain().run_begin;
    visit_ = 0;
    at_.q_head = chain().q_head;
    at_.q_tile = forward() ? chain().tile : -1;
    at_.kv_tile = forward() ? -1 : chain().tile;
    (forward() ? queries_ : keys_) = tile_of(forward(), chain().tile);
    const Clock::time_point begin = now();
    for (const Step& step : kernel_.before) execute(step);
    record(TimelineEvent::Kind::start, begin);
    taken_ = 0;
    phase_ = chain().continues ? Phase::take_over : Phase::next_visit;
  }

  /// A chain that continues another starts with the sums that it left.
  Turn next_to_take_over() {
    while (taken_ < call_.reduces.size() && !call_.reduces[taken_]->tensor->kept(kernel_.pass))
      ++taken_;
    if (taken_ == call_.reduces.size()) return {};
    return {sum_of(*call_.reduces[taken_]), chain().addend, false};
  }

  void next_visit() {
    step_ = 0;
    if (run_ == chain().run_end) {
      phase_ = Phase::end_chain;
      (forward() ? at_.kv_tile : at_.q_tile) = -1;
      return;
    }
    if (visit_ == run().count) {
      ++run_;
      visit_ = 0;
      return;
    }
    const int32_t tile = run().tile(visit_);
    (forward() ? at_.kv_tile : at_.q_tile) = tile;
    at_.q_head = q_head_of_group();
    (forward() ? keys_ : queries_) = tile_of(!forward(), tile);
    find_pairs();
    phase_ = Phase::visit;
  }

  /// Up to the next addend that has to wait, or to the end of the visit or chain.
  Turn go_on() {
    const Clock::time_point begin = now();
    while (step_ < steps().size()) {
      const Step& step = steps()[step_];
      if (step.kind == Step::Kind::reduce) {
        const Addend addend = addend_of(step);
        if (!addend.first || !addend.last) {
          record(TimelineEvent::Kind::compute, begin);
          return {sum_of(step), addend.number};
        }
        add_to_sum(step, true, true);
      } else {
        execute(step);
      }
      ++step_;
    }
    const bool visited = phase_ == Phase::visit;
    record(visited ? TimelineEvent::Kind::compute : TimelineEvent::Kind::finish, begin);
    ++(visited ? visit_ : chain_);
    phase_ = visited ? Phase::next_visit : Phase::begin_chain;
    return {};
  }

  Addend addend_of(const Step& step) const {
    if (step.tensor->kept(kernel_.pass))
      return {chain().addend, true,
              chain().addends == 1 || chain().addend == 0 || chain().continues,
              chain().addend + 1 == chain().addends};
    const int32_t number = run().addend_of(visit_);
    return {number, false, number == 0, number + 1 == order_->row_addends[run().tile(visit_)]};
  }

  int64_t sum_of(const Step& step) const {
    const int64_t sum = step.tensor->kept(kernel_.pass)
                            ? call_.numbers.kv_sum(at_.head, chain().tile)
                            : call_.numbers.row_sum(at_.head, run().q_head, run().tile(visit_));
    const auto number = std::ranges::find(call_.reduces, &step) - call_.reduces.begin();
    return sum * std::ssize(call_.reduces) + number;
  }
  std::vector<float>& partial(const Step& step) { return call_.partials[sum_of(step)]; }

  void add_to_sum(const Step& step, bool first, bool last) {
    Tile& tile = tiles_[step.a];
    if (!first || !last) {
      std::vector<float>& sum = partial(step);
      if (first) {
        sum = tile.data;
      } else {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + tile.data[i];
      }
      if (!last) return;
      tile.data = sum;
      sum = {};
    }
    if (step.by_scale || step.number) combine(Operation::multiply, tile, scalar_of(step), tile);
    write(step);
  }

  float scalar_of(const Step& step) const {
    return static_cast<float>(step.by_scale ? call_.plan.problem.softmax_scale() : *step.number);
  }

  /// Which pairs of the visit the mask shows; behind the ends of tiles none.
  void find_pairs() {
    const TileMap& map = *order_->tiles;
    const int64_t rows = queries_.end - queries_.begin, cols = keys_.end - keys_.begin;
    std::ranges::fill(pairs_.visible, 0);
    const auto show = [&](int64_t r, int64_t begin, int64_t end) {
      uint8_t* row = pairs_.visible.data() + r * pairs_.cols;
      if (begin < end) std::fill(row + begin, row + end, 1);
    };
    for (int64_t r = 0; r < rows; ++r) {
      if (run().slice_count == 0) show(r, 0, cols);
      for (int32_t s = 0; s < run().slice_count; ++s) {
        const Slice& slice = map.slices[map.slice_ids[run().slice_begin + s]];
        const int64_t q = queries_.begin + r;
        if (q < slice.q_begin || q >= slice.q_end) continue;
        show(r, std::max({slice.k_begin, q + slice.lo, keys_.begin}) - keys_.begin,
             std::min({slice.k_end, q + slice.hi + 1, keys_.end}) - keys_.begin);
      }
    }
  }

  void execute(const Step& step) {
    switch (step.kind) {
      case Step::Kind::load:
        return read(step);
      case Step::Kind::store:
        return write(step);
      case Step::Kind::move:
        tiles_[step.out] = tiles_[step.a];
        if (kernel_.variables[step.out].memory == Memory::shared && tiles_[step.out].cols > 1)
          round_to(kernel_.dtype, tiles_[step.out]);
        return;
      case Step::Kind::reshape:
        return round_to(kernel_.dtype, tiles_[step.a]);
      case Step::Kind::compute:
        return compute(step);
      default:
        return;  // copies have arrived when they return
    }
  }

  void compute(const Step& step) {
    Tile& out = tiles_[step.out];
    switch (step.operation) {
      case Operation::gemm:
        return multiply({tiles_[step.a], step.a_transposed, tiles_[step.b], step.b_transposed},
                        step.accumulate, out, scratch_);
      case Operation::fill:
        std::ranges::fill(out.data, scalar_of(step));
        out.pairs = nullptr;
        return;
      case Operation::mask:
        return hide(pairs_, out);
      case Operation::softmax:
        if (step.c < 0) return probabilities(tiles_[step.a], tiles_[step.b], out);
        sums_.clear();
        for (const int v : step.rescaled) sums_.push_back(&tiles_[v]);
        return softmax(tiles_[step.a], tiles_[step.b], tiles_[step.c], sums_, out);
      case Operation::logsumexp:
        return logsumexp(tiles_[step.a], tiles_[step.b], out);
      default:
        if (step.b >= 0) return combine(step.operation, tiles_[step.a], tiles_[step.b], out);
        return combine(step.operation, tiles_[step.a], scalar_of(step), out);
    }
  }

  int64_t head_of(const Tensor& tensor) const {
    return tensor.queries ? kv_head_ * order_->group + q_head_of_group() : kv_head_;
  }

  void read(const Step& step) {
    const Tensor& tensor = *step.tensor;
    Tile& tile = tiles_[step.out];
    const Interval rows = tensor.queries ? queries_ : keys_;
    const int64_t h = head_of(tensor), count = rows.end - rows.begin;
    if (tensor.columns)
      return load(call_.tensors.named(tensor.name), b_, h, rows.begin, count, tile);
    std::ranges::fill(tile.data, 0.0f);
    if (std::string_view(tensor.name) == "L") {
      std::copy_n(call_.tensors.lse.row(b_, h) + rows.begin, count, tile.data.begin());
    } else {
      read_delta(h, rows, tile);
    }
  }

  /// D = rowsum(dO * O).
  void read_delta(int64_t h, Interval rows, Tile& tile) {
    const int64_t dim = call_.plan.problem.head_dim_v;
    for (Tile* each : {&dout_, &o_}) {
      *each = {.rows = tile.rows, .cols = dim};
      each->data.resize(tile.rows * dim);
    }
    load(call_.tensors.dout, b_, h, rows.begin, rows.end - rows.begin, dout_);
    load(call_.tensors.o, b_, h, rows.begin, rows.end - rows.begin, o_);
    for (int64_t r = 0; r < tile.rows; ++r) {
      float sum = 0;
      for (int64_t c = 0; c < dim; ++c) sum += dout_.row(r)[c] * o_.row(r)[c];
      tile.data[r] = sum;
    }
  }

  void write(const Step& step) {
    const Tensor& tensor = *step.tensor;
    const Tile& tile = tiles_[step.a];
    const Interval rows = tensor.queries ? queries_ : keys_;
    const int64_t h = head_of(tensor), count = rows.end - rows.begin;
    if (tensor.columns)
      return store(tile, count, call_.tensors.named(tensor.name), b_, h, rows.begin);
    std::copy_n(tile.data.begin(), count, call_.tensors.lse.row(b_, h) + rows.begin);
  }

  Call& call_;
  const Kernel& kernel_;
  std::vector<Tile> tiles_;  // of kernel_.variables
  Tile dout_, o_;
  Pairs pairs_;
  std::vector<float> scratch_;
  std::vector<Tile*> sums_;

  const HeadOrder* order_ = nullptr;
  int64_t b_ = 0, kv_head_ = 0;
  int32_t chain_ = 0, chain_end_ = 0, run_ = 0, visit_ = 0;
  Interval queries_{}, keys_{};
  Phase phase_ = Phase::begin_chain;
  size_t step_ = 0, taken_ = 0;
};

void run_program(const Kernel& kernel, const Plan& plan, const Tensors& tensors,
                 const RunOptions& run) {
  Call call(kernel, plan, tensors);
  execute(
      plan, std::vector<int32_t>(call.sums()),
      [&] { return std::make_unique<ProgramWorker>(call); }, run);
}

}  // namespace

void run_forward(const Kernel& kernel, const Plan& plan, const ForwardTensors& t,
                 const RunOptions& run) {
  run_program(kernel, plan, {.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse}, run);
}

void run_backward(const Kernel& kernel, const Plan& plan, const BackwardTensors& t,
                  const RunOptions& run) {
  clear_unvisited_rows(plan, t.dq);
  run_program(kernel, plan,
              {.q = t.q,
               .k = t.k,
               .v = t.v,
               .o = t.o,
               .dout = t.dout,
               .dq = t.dq,
               .dk = t.dk,
               .dv = t.dv,
               .lse = t.lse},
              run);
}

int64_t workspace_bytes(const Kernel& kernel, const Plan& plan) {
  int64_t floats = kernel.tile.q * kernel.tile.kv / 4;  // visible pairs: a byte each
  for (const Variable& v : kernel.variables) floats += v.rows * v.cols;
  floats *= preferred_workers(plan, thread_count(plan, {}));
  if (plan.pass == Pass::backward) {
    const Problem& p = plan.problem;
    floats += p.batch * (p.q_heads * p.q_len * p.head_dim +
                         p.kv_heads * p.kv_len * (p.head_dim + p.head_dim_v));
  }
  return floats * int64_t{sizeof(float)};
}

}  // namespace verbatim::tl
