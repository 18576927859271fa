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

Error error_of(const ListReport& r) {
  return Error(ErrorCode::invalid_argument, "selected",
               fmt::format("{}; found on the device in an earlier call, whose O and LSE are NaN "
                           "for the queries of that list",
                           message_of(r.entry.fault)),
               details_of(r.entry, "blocks", r.blocks));
}

template <class Report>
Report* make() {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, sizeof(Report), cudaHostAllocPortable | cudaHostAllocMapped),
        "cuda.device");
  return new (memory) Report{};
}

template <class Report>
void look_at(Report& report) {
  std::atomic_ref<int32_t> state(report.state);
  if (state.load(std::memory_order_acquire) != WaitReport::published) return;
  static std::mutex mutex;  // of two threads that see it one throws
  const std::lock_guard lock(mutex);
  if (state.load(std::memory_order_acquire) != WaitReport::published) return;
  const Report copy = report;
  state.store(WaitReport::free, std::memory_order_release);
  throw error_of(copy);
}

}  // namespace

WaitReport* make_wait_report() { return make<WaitReport>(); }
ListReport* make_list_report() { return make<ListReport>(); }

void check_report(WaitReport& report) { look_at(report); }
void check_report(ListReport& report) { look_at(report); }

}  // namespace verbatim::cuda
