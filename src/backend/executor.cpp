#include "backend/executor.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/threads.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

/// A virtual worker and what it is doing.
struct Slot {
  std::unique_ptr<Worker> worker;
  int32_t id = 0;
  int32_t list = 0;  // without a queue: the worker of the placement whose list it follows
  Turn turn;         // while parked
  Clock::time_point parked_since;
  bool parked = false;
  std::vector<TimelineEvent> events;
};

class Executor {
 public:
  Executor(const Plan& plan, std::vector<int32_t> added,
           const std::function<std::unique_ptr<Worker>()>& make_worker, const RunOptions& run)
      : placement_(plan.placement),
        make_worker_(make_worker),
        timeline_(run.timeline),
        threads_(thread_count(plan, run)),
        added_(std::move(added)),
        unfinished_(static_cast<int64_t>(placement_.tasks.size())) {
    const int64_t lists = placement_.queue ? 1 : placement_.workers;
    for (int64_t list = 0; list < lists; ++list) {
      const int64_t tasks = static_cast<int64_t>(placement_.tasks.size());
      cursors_.push_back({placement_.queue ? 0 : placement_.worker_begin[list],
                          placement_.queue ? tasks : placement_.worker_begin[list + 1]});
    }
    // Workers that wait keep their buffers: while any can run, start only some to spare.
    preferred_slots_ = preferred_workers(plan, threads_);
  }

  void run() {
    const Clock::time_point begin = Clock::now();
    in_parallel(threads_, [this] { work(); });
    if (error_) std::rethrow_exception(error_);
    if (timeline_) collect(begin);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (unfinished_ > 0 && !error_) {
      try {
        if (Slot* slot = next_slot()) {
          ++running_;
          drive(*slot, lock);
          --running_;
        } else if (running_ > 0) {
          if (!others_can_go_on()) return;  // those that run can do what is left
          changed_.wait(lock);
        } else {
          throw stuck();
        }
      } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        if (!error_) error_ = std::current_exception();
      }
    }
    changed_.notify_all();
  }

  /// A worker that can go on, or nullptr: one whose turn has come, else one with a new task.
  Slot* next_slot() {
    if (!ready_.empty()) {
      Slot* slot = ready_.front();
      ready_.pop_front();
      return slot;
    }
    const int64_t active = static_cast<int64_t>(slots_.size() - free_.size());
    if (active >= preferred_slots_ && running_ > 0) return nullptr;
    while (next_list_ < cursors_.size() && cursors_[next_list_].next == cursors_[next_list_].end)
      ++next_list_;
    if (next_list_ == cursors_.size()) return nullptr;
    if (free_.empty()) {
      slots_.push_back(std::make_unique<Slot>());
      Slot& slot = *slots_.back();
      slot.id = static_cast<int32_t>(slots_.size()) - 1;
      free_.push_back(&slot);
    }
    Slot* slot = free_.back();
    free_.pop_back();
    slot->list = static_cast<int32_t>(next_list_);
    if (!placement_.queue) ++next_list_;
    return slot;
  }

  /// Whether there may be work for one more thread before the end.
  bool others_can_go_on() const { return next_list_ < cursors_.size() || !waiting_.empty(); }

  /// Runs `slot` to the end of its task, or until it is parked. Enters and leaves with the lock.
  void drive(Slot& slot, std::unique_lock<std::mutex>& lock) {
    if (slot.parked) {
      slot.parked = false;
      lock.unlock();
      slot.worker->record(TimelineEvent::Kind::wait, slot.parked_since);
      add(slot, slot.turn, lock);
    } else {
      const PlacedTask& task = placement_.tasks[cursors_[slot.list].next++];
      lock.unlock();
      if (!slot.worker) {
        slot.worker = make_worker_();
        if (timeline_) slot.worker->record_into(&slot.events);
      }
      slot.worker->start(task);
    }
    for (;;) {
      const Turn turn = slot.worker->compute();
      lock.lock();
      if (error_) return;
      if (turn.sum < 0) return finish(slot);
      if (added_[turn.sum] != turn.addend) return park(slot, turn);
      lock.unlock();
      add(slot, turn, lock);
    }
  }

  /// Enters and leaves without the lock.
  void add(Slot& slot, Turn turn, std::unique_lock<std::mutex>& lock) {
    slot.worker->add();
    if (!turn.adds) return;
    lock.lock();
    complete(turn.sum);
    lock.unlock();
  }

  void park(Slot& slot, Turn turn) {
    slot.turn = turn;
    slot.parked = true;
    slot.parked_since = slot.worker->now();
    waiting_.emplace(turn.sum, &slot);
  }

  void complete(int64_t sum) {
    const int32_t due = ++added_[sum];
    const auto [first, last] = waiting_.equal_range(sum);
    for (auto it = first; it != last; ++it) {
      if (it->second->turn.addend != due) continue;
      make_ready(it->second);
      waiting_.erase(it);
      return;
    }
  }

  void finish(Slot& slot) {
    if (--unfinished_ == 0) changed_.notify_all();
    Cursor& cursor = cursors_[slot.list];
    if (!placement_.queue && cursor.next < cursor.end) return make_ready(&slot);
    free_.push_back(&slot);
    changed_.notify_one();
  }

  void make_ready(Slot* slot) {
    ready_.push_back(slot);
    changed_.notify_one();
  }

  Error stuck() const {
    Error::Details details;
    if (!waiting_.empty()) {
      const auto& [sum, slot] = *waiting_.begin();
      details.got = "sum " + std::to_string(sum) + " holds " + std::to_string(added_[sum]) +
                    " addends and a worker waits to add number " +
                    std::to_string(slot->turn.addend);
    }
    details.expected = "a plan that verify() accepts";
    return Error(ErrorCode::invalid_plan, "backend.execute", "no worker of the plan can go on",
                 std::move(details));
  }

  void collect(Clock::time_point begin) {
    const double origin =
        std::chrono::duration<double, std::micro>(begin.time_since_epoch()).count();
    timeline_->source = "measured cpu";
    timeline_->unit = "us";
    timeline_->workers = static_cast<int32_t>(slots_.size());
    timeline_->events.clear();
    for (const auto& slot : slots_) {
      for (TimelineEvent event : slot->events) {
        event.worker = slot->id;
        event.begin -= origin;
        event.end -= origin;
        timeline_->events.push_back(event);
      }
    }
  }

  struct Cursor {
    int64_t next, end;  // into the placement's tasks
  };

  const Placement& placement_;
  const std::function<std::unique_ptr<Worker>()>& make_worker_;
  Timeline* timeline_;
  int threads_;
  int64_t preferred_slots_;

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;
  std::deque<Slot*> ready_;
  std::unordered_multimap<int64_t, Slot*> waiting_;  // by sum
  std::vector<int32_t> added_;                       // per sum: addends that are in
  std::vector<Cursor> cursors_;                      // one, or one per worker of the placement
  size_t next_list_ = 0;
  int64_t unfinished_;
  int running_ = 0;
  std::exception_ptr error_;
};

}  // namespace

void Worker::record(TimelineEvent::Kind kind, Clock::time_point begin) {
  if (!recording()) return;
  const auto micros = [](Clock::time_point t) {
    return std::chrono::duration<double, std::micro>(t.time_since_epoch()).count();
  };
  TimelineEvent event = at_;
  event.kind = kind;
  event.begin = micros(begin);
  event.end = micros(Clock::now());
  events_->push_back(event);
}

int thread_count(const Plan& plan, const RunOptions& run) {
  const int64_t tasks = static_cast<int64_t>(plan.placement.tasks.size());
  if (run.threads < 0)
    throw Error(ErrorCode::invalid_argument, "run", "threads is out of range",
                {"threads", std::to_string(run.threads), "0, for all cores, or more", "0"});
  const int64_t asked = run.threads > 0 ? run.threads : core_count();
  return static_cast<int>(std::max<int64_t>(1, std::min(asked, tasks)));
}

int64_t preferred_workers(const Plan& plan, int threads) {
  const int64_t tasks = static_cast<int64_t>(plan.placement.tasks.size());
  return std::min(tasks, std::max<int64_t>(plan.residency, 2 * threads));
}

void execute(const Plan& plan, std::vector<int32_t> added,
             const std::function<std::unique_ptr<Worker>()>& make_worker, const RunOptions& run) {
  Executor(plan, std::move(added), make_worker, run).run();
}

}  // namespace verbatim
