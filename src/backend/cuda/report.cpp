#include "backend/cuda/report.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "backend/cuda/status.h"
#include "verbatim/plan.h"

namespace verbatim::cuda {
namespace {

std::string place_of(const WaitReport& r) {
  const std::string head = fmt::format("batch {}, KV head {}", r.batch, r.kv_head);
  return r.q_head < 0 ? head : fmt::format("{}, query head {} of its group", head, r.q_head);
}

std::string message_of(const WaitReport& r) {
  if (r.q_head == WaitReport::tickets) {
    return fmt::format("behind KV tile {} ({}) {} tasks should have been taken, {} were", r.tile,
                       place_of(r), r.addend, r.seen);
  }
  const bool forward = r.pass == static_cast<int32_t>(Pass::forward);
  const char* sum = forward ? "O" : r.q_head == WaitReport::keys ? "dK and dV" : "dQ";
  const std::string due =
      r.addend == kSumDone ? "the place of an earlier sum" : fmt::format("addend {}", r.addend);
  return fmt::format("{} of tile {} ({}) was due for {}, and addend {} never came", sum, r.tile,
                     place_of(r), due, r.seen);
}

Error error_of(const WaitReport& r) {
  Error::Details details;  // where other kernels may have held what the plan needs
  if (r.residency > 1) {
    details = {"order", fmt::format("one that needs {} workers at once", r.residency),
               "as many multiprocessors that no other kernel holds", "descending, which needs one"};
  }
  const bool forward = r.pass == static_cast<int32_t>(Pass::forward);
  return Error(ErrorCode::device, forward ? "cuda.forward" : "cuda.backward",
               fmt::format("a wait expired: {}; detected here, it stems from an earlier launch, "
                           "whose results are NaN",
                           message_of(r)),
               std::move(details));
}

}  // namespace

WaitReport* make_report() {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, sizeof(WaitReport), cudaHostAllocPortable | cudaHostAllocMapped),
        "cuda.device");
  return new (memory) WaitReport{};
}

void check_report(WaitReport& report) {
  std::atomic_ref<int32_t> state(report.state);
  if (state.load(std::memory_order_acquire) != WaitReport::published) return;
  static std::mutex mutex;  // of two threads that see it one throws
  const std::lock_guard lock(mutex);
  if (state.load(std::memory_order_acquire) != WaitReport::published) return;
  const WaitReport copy = report;
  state.store(WaitReport::free, std::memory_order_release);
  throw error_of(copy);
}

}  // namespace verbatim::cuda
