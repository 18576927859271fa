// The table of kernels keeps what the contract says of their arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "backend/cuda/registry.h"
#include "contract/contract.h"
#include "core/random.h"
#include "verbatim/schedule.h"

namespace verbatim::test {
namespace {

TEST(Kernels, TakeWhatTheirArithmeticPromises) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    Problem p;
    p.batch = random.between(1, 4);
    p.q_len = random.between(0, 3000);
    p.kv_len = random.between(0, 3000);
    p.head_dim = 8 * random.between(1, 32);
    if (random.chance(0.5)) p.head_dim = random.chance(0.5) ? 64 : 128;
    p.head_dim_v = random.chance(0.8) ? p.head_dim : 8 * random.between(1, 32);
    if (random.chance(0.2)) p.head_dim = 192, p.head_dim_v = 128;
    p.dtype = random.chance(0.5) ? Dtype::bf16 : Dtype::f16;
    p.scale = std::array{0.0, 1e-9, -0.5, 0.1}[random.between(0, 3)];
    if (random.chance(0.5)) p.scale.reset();
    if (random.chance(0.3)) p.softcap = 20;
    if (random.chance(0.3)) p.dropout = 0.1;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const TileShape tile = random.chance(0.8) ? default_tile(p, pass) : TileShape{64, 64};
      for (const char* order : {"auto", "descending/split"}) {
        const std::string id = arithmetic_of("sm90", pass, p, tile, order);
        const auto kernel = std::ranges::find_if(cuda::kernels(), [&](const cuda::Kernel& k) {
          return k.pass == pass && k.arithmetic == id;
        });
        ASSERT_NE(kernel, cuda::kernels().end()) << id;
        EXPECT_EQ(kernel->lacks(p, tile), "") << id << " " << order << " " << to_json(p);
      }
    }
  }
}

}  // namespace
}  // namespace verbatim::test
