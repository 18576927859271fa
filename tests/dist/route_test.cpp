#include "dist/route.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

const Owners kOne{.rows = {{{0, 0}}}, .tiles = {{0, 0}}};  // room 0 has all

/// One query tile, visited by a chain of such pieces.
std::shared_ptr<const HeadOrder> order_of(std::vector<Chain> pieces) {
  const Mask mask = masks::full(16, 16);
  auto order = std::make_shared<HeadOrder>();
  order->pass = Pass::backward;
  order->tiles = std::make_shared<const TileMap>(mask.variants()[0], TileShape{16, 16});
  order->row_addends = {1};
  order->runs = {{.first = 0, .count = 1, .addend = 0}};
  for (int32_t c = 0; c < static_cast<int32_t>(pieces.size()); ++c) {
    Chain& piece = pieces[static_cast<size_t>(c)];
    piece.addend = c;
    piece.addends = static_cast<int32_t>(pieces.size());
    piece.continues = c > 0;
    order->tasks.push_back({c, c + 1});
  }
  order->chains = std::move(pieces);
  return order;
}

TEST(Route, AChainEndsOnceWhicheverOfItsPiecesHaveNoVisits) {
  const Chain whole{.run_begin = 0, .run_end = 1};
  const Chain before{.run_begin = 0, .run_end = 0}, behind{.run_begin = 1, .run_end = 1};
  for (const std::vector<Chain>& pieces : std::vector<std::vector<Chain>>{
           {whole}, {whole, behind}, {before, whole}, {before, before, whole, behind}}) {
    const Routes routes = find_routes(WholeOrder(order_of(pieces)), kOne, 1);
    ASSERT_EQ(routes.fellows.size(), 1u);
    EXPECT_EQ(routes.fellows[0].count, 1);
    EXPECT_EQ(routes.lists.size(), 1u);
  }
}

TEST(Route, WalksThatDoNotEndAChainAreRefused) {
  WholeOrder whole(order_of({{.run_begin = 0, .run_end = 1}}));
  HeadOrder two;
  two.chains = {{.run_begin = 0, .run_end = 1}, {.run_begin = 1, .run_end = 1}};
  whole.chains = WholeChains(two, false);
  EXPECT_THROW(find_routes(whole, kOne, 1), Error);
}

}  // namespace
}  // namespace verbatim::dist
