#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "backend/cuda/runtime.h"
#include "backend/cuda/status.h"
#include "bench/cuda/hand_off.h"
#include "bench/cuda/kernels.h"
#include "bench/cuda/matmul.h"
#include "bench/device.h"

namespace verbatim::bench {
namespace {

void check(cudaError_t status) { cuda::check(status, "bench"); }

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(cuda::device(index).index) {
    check(cudaSetDevice(index_));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  Facts facts() const override {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index_));
    int driver = 0, clock_khz = 0;
    check(cudaDriverGetVersion(&driver));
    check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, index_));
    return {.name = properties.name,
            .workers = properties.multiProcessorCount,
            .l2_bytes = properties.l2CacheSize,
            .max_clock_mhz = clock_khz / 1e3,
            .driver = fmt::format("CUDA {}.{}", driver / 1000, driver % 1000 / 10)};
  }

  std::shared_ptr<void> allocate(int64_t bytes) const override {
    const int64_t size = std::max<int64_t>((bytes + 15) / 16 * 16, 16);
    void* memory = nullptr;
    check(cudaMalloc(&memory, size));
    std::shared_ptr<void> owner(memory, [](void* p) { cudaFree(p); });
    poison(memory, size);
    return owner;
  }

  void poison(void* memory, int64_t bytes) const override {
    check(cudaMemset(memory, 0xFF, bytes));
  }

  void fill_normal(const TensorView& dense, uint64_t seed) const override {
    const auto& shape = dense.shape;
    bench::fill_normal(dense.data, dense.dtype, shape[0] * shape[1] * shape[2] * shape[3], seed);
  }

  void copy(void* to, const void* from, int64_t bytes) const override {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  }

  int64_t count_differences(const void* a, const void* b, int64_t bytes) const override {
    unsigned long long count = 0;
    const auto total = allocate(sizeof(count));
    check(cudaMemset(total.get(), 0, sizeof(count)));
    bench::count_differences(a, b, (bytes + 3) / 4, static_cast<unsigned long long*>(total.get()));
    copy(&count, total.get(), sizeof(count));
    return static_cast<int64_t>(count);
  }

  double time(const std::function<void()>& call) const override {
    check(cudaEventRecord(begin_));
    call();
    check(cudaEventRecord(end_));
    check(cudaEventSynchronize(end_));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_));
    return ms;
  }

  double clock_mhz() const override {
    long long read[2];  // cycles, nanoseconds
    const auto memory = allocate(sizeof(read));
    read_clock(static_cast<long long*>(memory.get()));
    copy(read, memory.get(), sizeof(read));
    return 1e3 * static_cast<double>(read[0]) / static_cast<double>(read[1]);
  }

  std::optional<Yardstick> matmul() const override {
    const std::shared_ptr<Matmul> library = Matmul::open();
    if (!library) return std::nullopt;
    constexpr int64_t kSize = 8192;
    const auto matrix = [&](uint64_t seed) {
      const auto memory = allocate(2 * kSize * kSize);
      bench::fill_normal(memory.get(), Dtype::bf16, kSize * kSize, seed);
      return memory;
    };
    return Yardstick{2.0 * kSize * kSize * kSize,
                     [library, a = matrix(7), b = matrix(8), c = allocate(2 * kSize * kSize)] {
                       library->run(a.get(), b.get(), c.get(), kSize);
                     }};
  }

  std::optional<Yardstick> large_copy() const override {
    constexpr int64_t kBytes = int64_t{1} << 30;
    return Yardstick{2.0 * kBytes, [from = allocate(kBytes), to = allocate(kBytes)] {
                       check(cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyDefault));
                     }};
  }

  std::optional<HandOff> hand_off(int64_t tile_bytes) const override {
    if (cuda::device(index_).arch / 10 != 9) return std::nullopt;
    const int32_t blocks = cuda::device(index_).multiprocessors / 2 * 2;
    const auto times = allocate(blocks * int64_t{sizeof(long long)});
    const auto median = [&] {  // over the CTAs, of the last launch
      std::vector<long long> host(blocks);
      copy(host.data(), times.get(), blocks * int64_t{sizeof(long long)});
      std::ranges::nth_element(host, host.begin() + blocks / 2);
      return static_cast<double>(host[blocks / 2]);
    };
    auto* const cycles = static_cast<long long*>(times.get());
    constexpr int32_t kCount = 400;

    constexpr int64_t kLarge = int64_t{1} << 30, kSmall = int64_t{16} << 20;
    const auto memory = allocate(kLarge);
    check(cudaMemset(memory.get(), 0, kLarge));
    const auto reduce = [&](int64_t footprint) {
      check(reduce_tiles(static_cast<float*>(memory.get()), footprint / tile_bytes,
                         static_cast<int32_t>(tile_bytes), kCount, blocks, cycles));
      return median() / kCount;
    };
    reduce(kSmall);  // brings the rows into L2
    const double inside = reduce(kSmall), outside = reduce(kLarge);
    int64_t fits = kSmall;
    for (int64_t next = fits; next < kLarge; next += next / 8) {
      reduce(next);
      if (reduce(next) > (inside + outside) / 2) break;
      fits = next;
    }

    const auto flags = allocate(blocks * 128);
    check(cudaMemset(flags.get(), 0, static_cast<size_t>(blocks) * 128));
    check(pass_flags(static_cast<int32_t*>(flags.get()), kCount, blocks, cycles));
    return HandOff{.reduce = inside,
                   .signal = median() / (2 * kCount),
                   .l2_bytes = static_cast<double>(fits),
                   .bandwidth = 2.0 * static_cast<double>(tile_bytes * blocks) / outside};
  }

 private:
  int index_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int index) { return std::make_unique<CudaDevice>(index); }

}  // namespace verbatim::bench
