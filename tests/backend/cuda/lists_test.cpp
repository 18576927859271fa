// Lists of blocks on a GPU: checked there as they are on the host.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "backend/cuda/check_lists.h"
#include "backend/cuda/gpu_case.h"
#include "backend/cuda/status.h"
#include "core/random.h"

namespace verbatim::test {
namespace {

using cuda::check;

/// Managed memory: both sides see it.
template <class T>
struct Shared {
  explicit Shared(size_t count) : count(count) {
    void* memory = nullptr;
    check(cudaMallocManaged(&memory, std::max<size_t>(count, 1) * sizeof(T)), "test");
    data = static_cast<T*>(memory);
  }
  ~Shared() { cudaFree(data); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T* data;
  size_t count;
};

/// The first wrong entry of a list, by definition.
std::pair<ListFault, int32_t> fault_of(const int32_t* list, int32_t room, int32_t blocks,
                                       int32_t first, int32_t last) {
  std::set<int32_t> seen;
  bool ended = false;
  for (int32_t at = 0; at < room; ++at) {
    const int32_t block = list[at];
    if (block == kNoBlock) {
      ended = true;
    } else if (ended) {
      return {ListFault::behind_end, at};
    } else if (block < 0 || block >= blocks) {
      return {ListFault::no_block, at};
    } else if (block < first || block >= last) {
      return {ListFault::hidden, at};
    } else if (!seen.insert(block).second) {
      return {ListFault::twice, at};
    }
  }
  return {ListFault::none, 0};
}

TEST(Lists, ADeviceFindsWhatTheHostFinds) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const cuda::Device& device = cuda::device(0);
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const auto between = [&](int64_t low, int64_t high) {
      return static_cast<int32_t>(random.between(low, high));
    };
    const int32_t batch = between(1, 3), kv_heads = between(1, 3), group = between(1, 3);
    const int32_t q_tiles = between(1, 40), blocks = between(1, 200), room = between(0, 100);
    const int32_t head_dim = 8 * between(1, 20);
    const int64_t lists = int64_t{batch} * kv_heads * q_tiles;
    Shared<int32_t> given(lists * room), checked(lists * room), seen(2 * q_tiles),
        edges(q_tiles + 1);
    edges.data[0] = 0;
    for (int32_t tile = 0; tile < q_tiles; ++tile) {
      edges.data[tile + 1] = edges.data[tile] + between(1, 5);
      seen.data[2 * tile] = between(0, blocks);
      seen.data[2 * tile + 1] = between(seen.data[2 * tile], blocks);
    }
    const bool planted = random.chance(0.7);
    for (int64_t list = 0; list < lists; ++list) {
      const int32_t tile = static_cast<int32_t>(list % q_tiles);
      std::vector<int32_t> right;
      for (int32_t b = seen.data[2 * tile]; b < seen.data[2 * tile + 1]; ++b) right.push_back(b);
      for (size_t i = 1; i < right.size(); ++i) std::swap(right[i], right[random.between(0, i)]);
      right.resize(std::min<size_t>(right.size(), between(0, room)));
      right.resize(room, kNoBlock);
      if (planted && room > 0 && random.chance(0.05))
        for (int32_t wrong = between(1, 3); wrong > 0; --wrong)
          right[between(0, room - 1)] =
              random.chance(0.5) ? between(-3, blocks + 1) : right[between(0, room - 1)];
      std::ranges::copy(right, given.data + list * room);
    }
    const int32_t q_len = edges.data[q_tiles], q_heads = kv_heads * group;
    const int64_t rows = int64_t{batch} * q_heads * q_len;
    Shared<uint16_t> o(rows * head_dim);
    Shared<float> lse(rows);
    std::fill_n(o.data, o.count, uint16_t{1});
    std::fill_n(lse.data, lse.count, 1.0f);
    cuda::SelectedParams params{};
    params.sizes = {batch, q_heads, kv_heads, q_len, 64 * blocks, head_dim, head_dim};
    params.o = {o.data, int64_t{q_len} * q_heads * head_dim, q_heads * head_dim, head_dim};
    params.lse = {lse.data, int64_t{q_heads} * q_len, 1, q_len};
    params.blocks = checked.data;
    params.q_edges = edges.data;
    params.q_tiles = q_tiles;
    params.room = room;
    cuda::check_lists(
        {given.data, checked.data, seen.data, lists, kv_heads, q_tiles, room, blocks, device.lists},
        {});
    cuda::refuse_lists(params, {});
    check(cudaDeviceSynchronize(), "test");

    std::set<std::string> said;
    for (int64_t list = 0; list < lists; ++list) {
      const auto tile = static_cast<int32_t>(list % q_tiles);
      const auto head = static_cast<int32_t>(list / q_tiles);
      const auto* entries = given.data + list * room;
      const auto [fault, at] =
          fault_of(entries, room, blocks, seen.data[2 * tile], seen.data[2 * tile + 1]);
      const bool wrong = fault != ListFault::none;
      if (wrong) {
        EXPECT_LT(checked.data[list * room], kNoBlock);
        const WrongEntry entry{fault,       head / kv_heads,     head % kv_heads,        tile, at,
                               entries[at], seen.data[2 * tile], seen.data[2 * tile + 1]};
        said.insert(details_of(entry, "blocks", blocks).got);
      } else {
        EXPECT_TRUE(std::equal(entries, entries + room, checked.data + list * room));
      }
      for (int32_t h = 0; h < group; ++h) {
        const int64_t q_head = head % kv_heads * group + h, b = head / kv_heads;
        for (int32_t row = edges.data[tile]; row < edges.data[tile + 1]; ++row) {
          EXPECT_EQ(std::isnan(lse.data[(b * q_heads + q_head) * q_len + row]), wrong);
          const uint16_t* of_row = o.data + ((b * q_len + row) * q_heads + q_head) * head_dim;
          EXPECT_EQ(std::count(of_row, of_row + head_dim, wrong ? 0x7fff : 1), head_dim);
        }
      }
    }
    const std::string error = error_of([&] { cuda::check_report(*device.lists); });
    EXPECT_EQ(error.empty(), said.empty()) << error;
    EXPECT_TRUE(said.empty() || std::ranges::any_of(said,
                                                    [&](const std::string& got) {
                                                      return error.find("got " + got) !=
                                                             std::string::npos;
                                                    }))
        << error;
    EXPECT_EQ(error_of([&] { cuda::check_report(*device.lists); }), "");
  }
}

}  // namespace
}  // namespace verbatim::test
