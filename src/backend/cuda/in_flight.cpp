#include "backend/cuda/in_flight.h"

#include <array>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/cuda/driver.h"

namespace verbatim::cuda {
namespace {

struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<cudaEvent_t>> free;  // by device

  static Pool& instance() {
    static Pool* pool = new Pool;  // never destroyed: the driver may be gone before us
    return *pool;
  }

  cudaEvent_t take(int device) {
    {
      const std::lock_guard lock(mutex);
      auto& events = free[device];
      if (!events.empty()) {
        const cudaEvent_t event = events.back();
        events.pop_back();
        return event;
      }
    }
    const PrimaryContext own(device);
    const RelaxedCapture relaxed;
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cuda.event");
    return event;
  }

  void give(int device, cudaEvent_t event) {
    const std::lock_guard lock(mutex);
    free[device].push_back(event);
  }
};

}  // namespace

End::End(const Device& device, cudaStream_t stream)
    : device_(device.index), event_(Pool::instance().take(device.index)) {
  const cudaError_t status = cudaEventRecord(event_, stream);
  if (status == cudaSuccess) return;
  Pool::instance().give(device_, event_);
  check(status, "cuda.event");
}

End::~End() { Pool::instance().give(device_, event_); }

bool End::reached() const {
  if (cudaEventQuery(event_) != cudaErrorNotReady) return true;
  (void)cudaGetLastError();  // which the next launch would take for its own
  return false;
}

void End::hold_back(cudaStream_t stream) const {
  check(cudaStreamWaitEvent(stream, event_), "cuda.event");
}

struct Turnstile::Lane {
  std::mutex mutex;
  std::array<std::shared_ptr<const End>, 2> last;  // the launch before, and the one before it
  bool alone = false;                              // the launch before

  static Lane& of(int device) {
    static std::mutex mutex;
    static auto* lanes = new std::map<int, Lane>;  // as Pool
    const std::lock_guard lock(mutex);
    return (*lanes)[device];
  }
};

Turnstile::Turnstile(const Device& device, cudaStream_t stream, bool alone)
    : lane_(Lane::of(device.index)), alone_(alone) {
  std::unique_lock lock(lane_.mutex);
  if (lane_.last[1]) lane_.last[1]->hold_back(stream);
  if (lane_.last[0] && (alone || lane_.alone)) lane_.last[0]->hold_back(stream);
  lock.release();  // the destructor unlocks
}

Turnstile::~Turnstile() { lane_.mutex.unlock(); }

void Turnstile::passed(std::shared_ptr<const End> end) {
  lane_.last[1] = std::exchange(lane_.last[0], std::move(end));
  lane_.alone = alone_;
}

}  // namespace verbatim::cuda
