#include "plan/alike.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "plan/check_order.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

std::vector<Run> runs_of(const HeadOrder& order, const Chain& chain) {
  const std::vector<Run> all = order.runs.all();
  return {all.begin() + chain.run_begin, all.begin() + chain.run_end};
}

void expect_alike(const HeadOrder& order) {
  const std::vector<AlikeChains> all = alike_chains(order);
  std::vector<int32_t> chains, issued;
  for (const Task& task : order.tasks)
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) issued.push_back(c);
  for (const auto& [first, count] : all) {
    for (int32_t i = 0; i < count; ++i) {
      const Chain& chain = order.chains[first + i];
      chains.push_back(first + i);
      std::vector<Run> runs = runs_of(order, order.chains[first]);
      for (Run& run : runs) run.addend += i;
      ASSERT_EQ(runs_of(order, chain), runs);
      if (i > 0) {
        const int32_t step = order.chains[first + 1].tile - order.chains[first].tile;
        ASSERT_EQ(std::abs(step), 1);
        ASSERT_EQ(chain.tile, order.chains[first].tile + i * step);
      }
    }
  }
  ASSERT_EQ(chains, issued);
  std::vector<int32_t> sequence(order.tasks.size());
  std::iota(sequence.begin(), sequence.end(), 0);
  ASSERT_EQ(counts_up({order, 0}, all), counts_up({order, 0}, sequence));
}

TEST(Alike, ChainsOfEveryOrder) {
  for (const OrderInfo& info : orders()) {
    if (info.pass == Pass::forward) continue;
    for (const char* suffix : {"", "/rows:64", "/split/rows:64"}) {
      SCOPED_TRACE(std::string(info.name) + suffix);
      for (const Mask& mask : {masks::causal(256, 256), masks::full(256, 256),
                               masks::causal_sliding_window(256, 256, 100)}) {
        const auto tiles = std::make_shared<const TileMap>(mask.variants()[0], TileShape{16, 8});
        std::shared_ptr<const HeadOrder> order;
        try {
          order = make_order(Pass::backward, std::string(info.name) + suffix, tiles, 3);
        } catch (const Error&) {
          continue;  // an order without such chunks, or not for this mask
        }
        expect_alike(*order);
      }
    }
  }
}

TEST(Alike, ChunksOfAFullMaskAreOne) {
  const Mask mask = masks::full(256, 256);
  const auto tiles = std::make_shared<const TileMap>(mask.variants()[0], TileShape{16, 16});
  const auto order = make_order(Pass::backward, "descending/rows:64", tiles, 2);
  EXPECT_EQ(alike_chains(*order).size(), 4u);
}

}  // namespace
}  // namespace verbatim
