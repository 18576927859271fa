// Copies of rows on a GPU, as ranks pack and unpack messages.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cuda/executor.h"
#include "backend/cuda/gpu_case.h"
#include "backend/cuda/status.h"
#include "core/random.h"

namespace verbatim::test {
namespace {

TEST(Copies, ManyRowsAtOnceAreThoseCopiedOneByOne) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    // Cut into stretches of rows, each with a place of its own on both sides.
    std::vector<RowCopy> copies;
    int64_t size = 0;
    const int64_t count = random.between(1, 200);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t unit = random.chance(0.8) ? 16 : 4;
      const int64_t bytes = unit * random.between(0, 300), rows = random.between(0, 40);
      const auto side = [&] {
        const int64_t apart = bytes + unit * (random.chance(0.5) ? 0 : random.between(0, 20));
        const ByteRows made{reinterpret_cast<std::byte*>(size), bytes, rows, apart};
        size += rows * apart + unit * random.between(0, 3);
        return made;
      };
      const ByteRows to = side(), from = side();
      copies.push_back({to, from});
    }
    std::vector<std::byte> host(static_cast<size_t>(size));
    for (std::byte& byte : host) byte = static_cast<std::byte>(random.between(0, 255));
    void* memory = nullptr;
    cuda::check(cudaMalloc(&memory, host.size() + 1), "test");
    auto* device = static_cast<std::byte*>(memory);
    cuda::check(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice), "test");
    for (RowCopy& copy : copies) {
      const int64_t to = reinterpret_cast<int64_t>(copy.to.at),
                    from = reinterpret_cast<int64_t>(copy.from.at);
      for (int64_t r = 0; r < copy.to.rows; ++r)
        std::memcpy(&host[to + r * copy.to.apart], &host[from + r * copy.from.apart],
                    copy.to.bytes);
      copy.to.at = device + to;
      copy.from.at = device + from;
    }
    gpu()->copy(copies, {});
    gpu()->synchronize({});
    std::vector<std::byte> got(host.size());
    cuda::check(cudaMemcpy(got.data(), device, got.size(), cudaMemcpyDeviceToHost), "test");
    cudaFree(device);
    EXPECT_EQ(std::memcmp(got.data(), host.data(), host.size()), 0);
  }
}

}  // namespace
}  // namespace verbatim::test
