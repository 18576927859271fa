#include "yardstick.h"

#include <omp.h>
#include <time.h>

#include <oneapi/dnnl/dnnl.h>
#include <algorithm>
#include <vector>

#include "verbatim/error.h"

namespace verbatim::bench {
namespace {

constexpr int kSize = 1536;

double seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

struct Yardstick::Impl {
  std::vector<float> a = std::vector<float>(kSize * kSize, 0.5f);
  std::vector<float> b = std::vector<float>(kSize * kSize, 0.25f);
  std::vector<float> c = std::vector<float>(kSize * kSize);
};

Yardstick::Yardstick(int threads) : impl_(new Impl) { omp_set_num_threads(threads); }
Yardstick::~Yardstick() { delete impl_; }

double Yardstick::flops() const { return 2.0 * kSize * kSize * kSize; }

void Yardstick::run() {
  const auto status = dnnl_sgemm('N', 'N', kSize, kSize, kSize, 1, impl_->a.data(), kSize,
                                 impl_->b.data(), kSize, 0, impl_->c.data(), kSize);
  if (status != dnnl_success) throw Error(ErrorCode::device, "bench.yardstick", "sgemm failed");
}

double core_peak() {
  constexpr int kAdds = 50'000'000;  // each waits for the one before: one per cycle
  double best = 1e9;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const double begin = seconds(CLOCK_THREAD_CPUTIME_ID);
    long x = 0;
    for (int i = 0; i < kAdds; ++i) asm volatile("add $1, %0" : "+r"(x));
    best = std::min(best, seconds(CLOCK_THREAD_CPUTIME_ID) - begin);
  }
  const int lanes = __builtin_cpu_supports("avx512f") ? 16 : 8;
  return kAdds / best * lanes * 2 * 2;
}

Cost now() { return {seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)}; }

}  // namespace verbatim::bench
