// Ranks on the GPUs of a host: arenas of device memory that other processes open, copied from by
// copy engines. Counters lie in the host's memory; streams wait for them and hold nothing.
#include "backend/peers.h"

#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/driver.h"
#include "backend/cuda/in_flight.h"
#include "backend/cuda/runtime.h"

namespace verbatim::cuda {
namespace {

constexpr const char* kOperation = "peers.gpu";

struct Handle {
  uint64_t process;  // that made it
  std::byte* data;   // there
  int32_t device;    // there
  cudaIpcMemHandle_t others;
};
static_assert(sizeof(Handle) <= sizeof(ArenaHandle));

/// A number of this process: its own handles are none of another one's.
uint64_t own_process() {
  static const uint64_t number = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return number;
}

/// Throws Error(unsupported) where this machine, not a call, is at fault.
void check_offered(cudaError_t status, const char* what, const char* nearest) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Error(
      ErrorCode::unsupported, kOperation, what,
      {"transport", cudaGetErrorString(status), "GPUs of one host that every rank sees", nearest});
}

/// Whether it does in a second.
template <class Over>
bool ends(const Over& over) {
  using Clock = std::chrono::steady_clock;
  for (const auto begin = Clock::now(); !over();) {
    if (Clock::now() - begin > std::chrono::seconds(1)) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

constexpr const char* kOtherWay = "the transport of a process group";

class CudaPeerDevice final : public PeerDevice {
 public:
  explicit CudaPeerDevice(int index) : device_(device(index)) {}
  ~CudaPeerDevice() override;

  std::string address() const override;
  void check_reach(const std::string& address) const override;
  void attach(std::span<Counter> counters) override;
  std::byte* make_arena(int64_t bytes, ArenaHandle& handle) override;
  const std::byte* open_arena(const ArenaHandle& handle, int64_t bytes) override;
  bool close_opened() override;
  void keep_made() override { made_.clear(); }
  void follow(void* stream) override;
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void signal(Counter& counter, uint32_t number) override;
  void await(const Counter& counter, uint32_t number) override;
  void pull(const Pull& pull) override;
  void join() override;
  void expect(const Pull& pull) override;
  void join(int32_t from, uint32_t number) override;

 private:
  /// Of pulls from one rank.
  struct Lane {
    cudaStream_t stream = nullptr;
    bool busy = false;  // since the last join
  };
  CUdeviceptr at(const Counter& counter) const {
    return counters_at_ + (reinterpret_cast<const std::byte*>(&counter) - counters_);
  }
  Lane& lane_from(int32_t rank);
  void enqueue(Lane& lane, const Pull& pull);
  bool lanes_are_idle() const;

  const Device& device_;
  std::byte* counters_ = nullptr;
  CUdeviceptr counters_at_ = 0;  // on the device
  std::vector<void*> made_, opened_;
  std::map<int32_t, Lane> lanes_;
  cudaStream_t stream_ = nullptr;  // the caller's
  std::unique_ptr<End> last_;      // of what was signalled: the next stream comes behind it
  std::unique_ptr<End> begin_;     // of pulls since the last join
  std::map<std::pair<int32_t, uint32_t>, End> expected_;  // their ends, by rank and number
};

CudaPeerDevice::~CudaPeerDevice() {
  // Memory is given back when no work uses it. Where that does not end, the process keeps it.
  if (!close_opened() || !ends([this] { return !last_ || last_->reached(); })) return;
  try {
    const DeviceGuard guard(device_.index);
    for (const auto& [from, lane] : lanes_) cudaStreamDestroy(lane.stream);
    for (void* arena : made_) cudaFree(arena);
    if (counters_) cudaHostUnregister(counters_);
    (void)cudaGetLastError();
  } catch (const Error&) {  // at the end of a process there may be no device any more
  }
}

bool CudaPeerDevice::close_opened() {
  if (!ends([this] { return lanes_are_idle(); })) return false;
  try {
    const DeviceGuard guard(device_.index);
    for (void* arena : opened_) cudaIpcCloseMemHandle(arena);
    (void)cudaGetLastError();
  } catch (const Error&) {
  }
  opened_.clear();
  return true;
}

bool CudaPeerDevice::lanes_are_idle() const {
  for (const auto& [from, lane] : lanes_) {
    if (cudaStreamQuery(lane.stream) != cudaErrorNotReady) continue;
    (void)cudaGetLastError();  // which the next launch would take for its own
    return false;
  }
  return true;
}

std::string CudaPeerDevice::address() const {
  char text[32];
  check(cudaDeviceGetPCIBusId(text, sizeof text, device_.index), kOperation);
  return text;
}

void CudaPeerDevice::check_reach(const std::string& address) const {
  int other = 0;
  check_offered(cudaDeviceGetByPCIBusId(&other, address.c_str()),
                "this process does not see the device of another rank", kOtherWay);
  if (other == device_.index) return;
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, device_.index, other), kOperation);
  if (can == 0)
    throw Error(ErrorCode::unsupported, kOperation,
                "a GPU cannot read the memory of another rank's",
                {"device", this->address() + " and " + address,
                 "GPUs with peer access (nvidia-smi topo -p2p r)", kOtherWay});
}

void CudaPeerDevice::attach(std::span<Counter> counters) {
  const PrimaryContext context(device_.index);
  check_offered(cudaHostRegister(counters.data(), counters.size_bytes(),
                                 cudaHostRegisterPortable | cudaHostRegisterMapped),
                "the GPU cannot use shared memory of the host", kOtherWay);
  counters_ = reinterpret_cast<std::byte*>(counters.data());
  void* there = nullptr;
  check(cudaHostGetDevicePointer(&there, counters_, 0), kOperation);
  counters_at_ = reinterpret_cast<CUdeviceptr>(there);
  // The first counter is of a rank and itself: it stays 0.
  wait_for_value(device_.uploads, at(counters[0]), 0);
  check(cudaStreamSynchronize(device_.uploads), kOperation);
}

std::byte* CudaPeerDevice::make_arena(int64_t bytes, ArenaHandle& handle) {
  const PrimaryContext context(device_.index);
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), kOperation);
  made_.push_back(data);
  Handle own{own_process(), static_cast<std::byte*>(data), device_.index, {}};
  check_offered(cudaIpcGetMemHandle(&own.others, data),
                "the GPU's memory cannot be opened by other processes", kOtherWay);
  std::memcpy(handle.data(), &own, sizeof own);
  return own.data;
}

const std::byte* CudaPeerDevice::open_arena(const ArenaHandle& handle, int64_t) {
  const PrimaryContext context(device_.index);
  Handle other;
  std::memcpy(&other, handle.data(), sizeof other);
  if (other.process == own_process()) {  // ranks that are threads
    if (other.device != device_.index) {
      const cudaError_t status = cudaDeviceEnablePeerAccess(other.device, 0);
      if (status == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
      } else {
        check(status, kOperation);
      }
    }
    return other.data;
  }
  void* data = nullptr;
  check_offered(cudaIpcOpenMemHandle(&data, other.others, cudaIpcMemLazyEnablePeerAccess),
                "memory of another rank's GPU cannot be opened", kOtherWay);
  opened_.push_back(data);
  return static_cast<std::byte*>(data);
}

void CudaPeerDevice::follow(void* stream) {
  const DeviceGuard guard(device_.index);
  stream_ = static_cast<cudaStream_t>(stream);
  if (graph_of(stream_))
    throw Error(ErrorCode::unsupported, kOperation,
                "a graph would wait for the same messages again",
                {"stream", "one that is captured", "one that is not", kOtherWay});
  if (last_) last_->hold_back(stream_);
}

void CudaPeerDevice::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  const DeviceGuard guard(device_.index);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), kOperation);
}

void CudaPeerDevice::signal(Counter& counter, uint32_t number) {
  const DeviceGuard guard(device_.index);
  write_value(stream_, at(counter), number);
  last_ = std::make_unique<End>(device_, stream_);
}

void CudaPeerDevice::await(const Counter& counter, uint32_t number) {
  const DeviceGuard guard(device_.index);
  wait_for_value(stream_, at(counter), number);
}

CudaPeerDevice::Lane& CudaPeerDevice::lane_from(int32_t rank) {
  Lane& lane = lanes_[rank];
  if (!lane.stream) {
    const PrimaryContext own(device_.index);
    check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), kOperation);
  }
  return lane;
}

void CudaPeerDevice::pull(const Pull& pull) {
  const DeviceGuard guard(device_.index);
  Lane& lane = lane_from(pull.from);
  if (!begin_) begin_ = std::make_unique<End>(device_, stream_);
  if (!std::exchange(lane.busy, true)) begin_->hold_back(lane.stream);
  enqueue(lane, pull);
}

void CudaPeerDevice::expect(const Pull& pull) {
  const DeviceGuard guard(device_.index);
  Lane& lane = lane_from(pull.from);
  End(device_, stream_).hold_back(lane.stream);
  const bool busy = std::exchange(lane.busy, true);  // join() waits for what fails halfway
  enqueue(lane, pull);
  lane.busy = busy;
  expected_.try_emplace({pull.from, pull.number}, device_, lane.stream);
}

void CudaPeerDevice::join(int32_t from, uint32_t number) {
  const DeviceGuard guard(device_.index);
  if (const auto end = expected_.extract({from, number})) end.mapped().hold_back(stream_);
}

void CudaPeerDevice::enqueue(Lane& lane, const Pull& pull) {
  wait_for_value(lane.stream, at(*pull.ready), pull.number);
  if (pull.bytes > 0)
    check(cudaMemcpyAsync(pull.to, pull.at, pull.bytes, cudaMemcpyDeviceToDevice, lane.stream),
          kOperation);
  write_value(lane.stream, at(*pull.taken), pull.number);
}

void CudaPeerDevice::join() {
  const DeviceGuard guard(device_.index);
  for (auto& [from, lane] : lanes_)
    if (std::exchange(lane.busy, false)) End(device_, lane.stream).hold_back(stream_);
  begin_.reset();
}

}  // namespace
}  // namespace verbatim::cuda

namespace verbatim {

std::unique_ptr<PeerDevice> make_cuda_peer_device(int index) {
  return std::make_unique<cuda::CudaPeerDevice>(index);
}

}  // namespace verbatim
