#include "backend/tl/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "backend/executor.h"
#include "backend/sums.h"
#include "backend/tl/state.h"
#include "plan/chain_sums.h"

namespace verbatim::tl {
namespace {

/// What all workers of one call share.
struct Call {
  const Kernel& kernel;
  const Plan& plan;
  Tensors tensors;
  SumNumbers numbers;
  std::vector<const Step*> reduces;  // a number each; every sum has a turn for each
  // Of sums in progress, and what pieces of chains pass on apart from them: [sums * reduces].
  std::vector<std::vector<float>> partials, apart;

  Call(const Kernel& kernel, const Plan& plan, const Tensors& tensors)
      : kernel(kernel), plan(plan), tensors(tensors), numbers(plan) {
    for (const std::vector<Step>* steps : {&kernel.visit, &kernel.after})
      for (const Step& step : *steps)
        if (step.kind == Step::Kind::reduce) reduces.push_back(&step);
    partials.resize(sums());
    apart.resize(sums());
  }
  int64_t sums() const { return numbers.sums() * std::ssize(reduces); }
};

class ProgramWorker final : public Worker {
 public:
  explicit ProgramWorker(Call& call)
      : call_(call), kernel_(call.kernel), state_(kernel_, call.plan.problem, call.tensors) {}

  void start(const PlacedTask& task) override {
    at_.head = task.head;
    const Problem& problem = call_.plan.problem;
    where_.b = task.head / problem.kv_heads;
    where_.kv_head = task.head % problem.kv_heads;
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
      const std::vector<float>& sum = partial(step, true);
      std::ranges::copy(sum, state_.tile(step.a).data.begin());
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
  int64_t q_head() const { return where_.kv_head * order_->group + q_head_of_group(); }
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
    (forward() ? where_.queries : where_.keys) = tile_of(forward(), chain().tile);
    where_.q_head = q_head();
    const Clock::time_point begin = now();
    for (const Step& step : kernel_.before) state_.execute(step, where_);
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
    (forward() ? where_.keys : where_.queries) = tile_of(!forward(), tile);
    where_.q_head = q_head();
    state_.find_pairs(*order_->tiles, run().slice_begin, run().slice_count, where_);
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
        state_.execute(step, where_);
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
      return {chain().addend, true, !joins_sum(chain()), chain().addend + 1 == chain().addends};
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
  /// What a sum holds so far: what is taken over by a chain that starts, or left by it.
  std::vector<float>& partial(const Step& step, bool at_start) {
    const bool apart = step.tensor->kept(kernel_.pass) && lies_apart(chain(), at_start);
    return (apart ? call_.apart : call_.partials)[sum_of(step)];
  }

  void add_to_sum(const Step& step, bool first, bool last) {
    Tile& tile = state_.tile(step.a);
    if (!first || !last) {
      std::vector<float>& sum = partial(step, false);
      if (first) {
        sum = tile.data;
      } else {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + tile.data[i];
      }
      if (!last) return;
      tile.data = sum;
      sum = {};
    }
    state_.finish(step, where_);
  }

  Call& call_;
  const Kernel& kernel_;
  ProgramState state_;
  Visit where_;

  const HeadOrder* order_ = nullptr;
  int32_t chain_ = 0, chain_end_ = 0, run_ = 0, visit_ = 0;
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

void require(const Kernel& kernel, const char* what, std::string got, std::string expected) {
  if (got == expected) return;
  throw Error(ErrorCode::unsupported, "tl.kernel",
              fmt::format("the {} program is for another {}", to_string(kernel.pass), what),
              {what, std::move(got), expected, std::move(expected)});
}

}  // namespace

void check_problem(const Kernel& k, const Problem& p) {
  require(k, "dtype", std::string(to_string(p.dtype)), std::string(to_string(k.dtype)));
  require(k, "head_dim", fmt::to_string(p.head_dim), fmt::to_string(k.head_dim));
  require(k, "head_dim_v", fmt::to_string(p.head_dim_v), fmt::to_string(k.head_dim_v));
  require(k, "softcap", fmt::to_string(p.softcap), "0");
  require(k, "dropout", fmt::to_string(p.dropout), "0");
}

void check_mask(const Kernel& kernel, const Mask& mask) {
  if (!kernel.mask.empty()) require(kernel, "mask", mask.name(), kernel.mask);
}

void check_tile(const Kernel& kernel, TileShape tile) {
  require(kernel, "tile_q", fmt::to_string(tile.q), fmt::to_string(kernel.tile.q));
  require(kernel, "tile_kv", fmt::to_string(tile.kv), fmt::to_string(kernel.tile.kv));
}

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
  const int64_t states =
      ProgramState::bytes(kernel) * preferred_workers(plan, thread_count(plan, {}));
  int64_t floats = 0;
  if (plan.pass == Pass::backward) {
    const Problem& p = plan.problem;
    const int32_t sums = std::max(tile_sums(plan), 1);
    floats = p.batch * (p.q_heads * p.q_len * p.head_dim +
                        sums * p.kv_heads * p.kv_len * (p.head_dim + p.head_dim_v));
  }
  return states + floats * int64_t{sizeof(float)};
}

}  // namespace verbatim::tl
