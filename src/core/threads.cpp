#include "core/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace verbatim {
namespace {

/// One call of in_parallel().
struct Job {
  const std::function<void()>* work;
  int wanted;                   // threads that may still come
  int core;                     // of who calls, when it began
  std::atomic<int> inside = 0;  // threads that have come and not left
  std::condition_variable left{};
};

class Pool {
 public:
  /// Never destroyed: its threads sleep in it when the process ends.
  static Pool& instance() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { pool() = new Pool; });
    (void)registered;
    return *pool();
  }

  void run(int helpers, const std::function<void()>& work) {
    Job job{&work, helpers, sched_getcpu()};
    std::unique_lock lock(mutex_);
    for (; threads_ < busy_ + helpers; ++threads_) std::thread([this] { serve(); }).detach();
    busy_ += helpers;
    const auto place = jobs_.insert(jobs_.end(), &job);
    ++calls_;
    lock.unlock();
    for (int i = 0; i < helpers; ++i) called_.notify_one();
    work();
    lock.lock();
    jobs_.erase(place);
    busy_ -= helpers;
    linger(lock, [&] { return job.inside == 0; });
    job.left.wait(lock, [&] { return job.inside == 0; });
  }

 private:
  static Pool*& pool() {
    static Pool* pool = new Pool;
    return pool;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = nullptr;
      called_.wait(lock, [&] { return (job = next()) != nullptr; });
      --job->wanted;
      ++job->inside;
      lock.unlock();
      leave(job->core);
      (*job->work)();
      lock.lock();
      if (--job->inside == 0) job->left.notify_one();
      linger(lock, [this, seen = calls_.load()] { return calls_ != seen; });
    }
  }

  /// Moves this thread to another of its cores, when it is on that one. Where other processes are
  /// busy, the system leaves both threads of a call on one core for many calls.
  static void leave(int core) {
    cpu_set_t mine;
    if (sched_getcpu() != core || sched_getaffinity(0, sizeof(mine), &mine) != 0) return;
    cpu_set_t others = mine;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) == 0) return;
    sched_setaffinity(0, sizeof(others), &others);
    sched_setaffinity(0, sizeof(mine), &mine);
  }

  /// Waits for `done` without sleeping: waking up takes half as long as a small call.
  template <class Done>
  static void linger(std::unique_lock<std::mutex>& lock, const Done& done) {
    using Clock = std::chrono::steady_clock;
    lock.unlock();
    const Clock::time_point end = Clock::now() + std::chrono::microseconds(200);
    while (!done() && Clock::now() < end) std::this_thread::yield();
    lock.lock();
  }

  Job* next() const {
    for (Job* job : jobs_)
      if (job->wanted > 0) return job;
    return nullptr;
  }

  std::mutex mutex_;  // guards everything below
  std::condition_variable called_;
  std::list<Job*> jobs_;  // in the sequence of their calls
  std::atomic<int64_t> calls_ = 0;
  int threads_ = 0;
  int busy_ = 0;  // threads that the jobs ask for
};

}  // namespace

void in_parallel(int threads, const std::function<void()>& work) {
  if (threads > 1) {
    Pool::instance().run(threads - 1, work);
  } else {
    work();
  }
}

void for_each_in_parallel(int threads, int64_t count, const std::function<void(int64_t)>& work) {
  std::atomic<int64_t> next = 0;
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(count));
  in_parallel(static_cast<int>(std::min<int64_t>(threads, count)), [&] {
    for (int64_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : thrown)
    if (error) std::rethrow_exception(error);
}

int core_count() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return CPU_COUNT(&cores);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace verbatim
