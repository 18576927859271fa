// A step-by-step walk through the visits of a sequence of tasks.
#pragma once

#include <span>

#include "verbatim/plan.h"

namespace verbatim {

/// Calls f(chain, run, i) for every visit of a task in sequence, i counting inside the run.
template <class F>
void for_each_visit(const HeadOrder& order, const Task& task, F&& f) {
  for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
    const Chain& chain = order.chains[c];
    order.for_each_part(chain, [&](int32_t q_head, RunView runs) {
      for (Run run : runs) {
        run.q_head = q_head;
        for (int32_t i = 0; i < run.count; ++i) f(chain, run, i);
      }
    });
  }
}

/// Where a worker stands in its sequence of placed tasks. Before the first visit of a chain that
/// continues another comes a stop, `at_chain_start()`, where it takes over that one's sums; after
/// the last visit of any comes `at_chain_end()`, where it hands over its share of a shared tile.
class Walker {
 public:
  Walker() = default;
  Walker(const Plan& plan, std::span<const PlacedTask> tasks) : plan_(&plan), tasks_(tasks) {
    open_task();
  }

  bool done() const { return task_ == tasks_.size(); }
  bool at_chain_start() const { return starts_; }
  bool at_chain_end() const { return !starts_ && run_ == chain().run_end; }

  const PlacedTask& placed() const { return tasks_[task_]; }
  size_t task_index() const { return task_; }
  const HeadOrder& order() const { return *order_; }
  const Chain& chain() const { return order().chains[chain_]; }
  const Run& run() const { return current_; }
  int32_t tile() const { return run().tile(visit_); }
  int32_t addend() const { return run().addend_of(visit_); }

  void advance() {
    if (starts_) {
      starts_ = false;
      return;
    }
    if (!at_chain_end()) {
      if (++visit_ < run().count) return;
      visit_ = 0;
      ++run_;
      open_run();
      return;
    }
    const Task& task = order().tasks[placed().task];
    if (++chain_ < task.chain_end) return open_chain();
    ++task_;
    open_task();
  }

 private:
  void open_task() {
    if (done()) return;
    order_ = &plan_->order(placed().head);
    chain_ = order().tasks[placed().task].chain_begin;
    open_chain();
  }
  void open_chain() {
    run_ = chain().run_begin;
    visit_ = 0;
    starts_ = chain().continues;
    open_run();
  }
  void open_run() {
    if (run_ < chain().run_end) current_ = order().runs.at_near(run_, near_);
  }

  const Plan* plan_ = nullptr;
  const HeadOrder* order_ = nullptr;  // of the task, unless done
  std::span<const PlacedTask> tasks_;
  size_t task_ = 0, near_ = 0;
  int32_t chain_ = 0, run_ = 0, visit_ = 0;
  bool starts_ = false;
  Run current_;  // run_, where there is one
};

}  // namespace verbatim
