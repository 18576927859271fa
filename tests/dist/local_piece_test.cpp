// A piece in the coordinates of its memory makes the visits that it has in the whole plan, at the
// rows that the memory has.
#include "backend/local_piece.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>

#include "dist/dist_case.h"
#include "dist/local_pieces.h"
#include "plan/dropout_origins.h"

namespace verbatim::test {
namespace {

/// A visit as the problem knows it, and the rows of its tiles in memory.
struct Visited {
  Interval kept, streamed;
  int64_t kept_row, streamed_row, q_head;
  int32_t addend, addends, slice_begin, slice_count;
  std::array<int64_t, 3> origin;  // sequence, query, key
  bool operator==(const Visited&) const = default;
};

Interval tile_of(const std::vector<int64_t>& edges, int32_t tile) {
  return {edges[tile], edges[static_cast<size_t>(tile) + 1]};
}

std::array<int64_t, 3> origin_of(const DropoutOrigins& origins, int32_t head, int32_t q_tile) {
  const DropoutOrigin origin = origins.at(head, q_tile);
  return {origin.sequence, origin.q, origin.k};
}

/// Of all chains of an order, in sequence. `row(kv, tile)` and `origin(q_tile)`.
template <class Row, class Origin>
std::vector<Visited> visits_of(const HeadOrder& order, int64_t first_q_head, Row row,
                               Origin origin) {
  const bool backward = order.pass == Pass::backward;
  const TileMap& tiles = *order.tiles;
  std::vector<Visited> visits;
  for (const Chain& chain : order.chains) {
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      const Run& run = order.runs[r];
      for (int32_t i = 0; i < run.count; ++i) {
        const int32_t q_tile = backward ? run.tile(i) : chain.tile;
        visits.push_back({tile_of(backward ? tiles.kv_edges : tiles.q_edges, chain.tile),
                          tile_of(backward ? tiles.q_edges : tiles.kv_edges, run.tile(i)),
                          row(backward, chain.tile), row(!backward, run.tile(i)),
                          first_q_head + (backward ? run.q_head : chain.q_head), run.addend_of(i),
                          backward ? order.row_addends[q_tile] : 0, run.slice_begin,
                          run.slice_count, origin(q_tile)});
      }
    }
  }
  return visits;
}

/// Whether so many workers that take the tasks in sequence, each until its next addend is due, make
/// all visits.
bool ends(const LocalPiece& piece, int32_t workers) {
  std::vector<int32_t> next = piece.first_addends;
  const PlacedTasks& tasks = piece.plan.placement.tasks;
  const size_t rows = piece.heads.front().q_rows.size();
  struct Place {
    int32_t head, run, end, visit = 0;
  };
  std::deque<Place> active;
  size_t task = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (; std::ssize(active) < workers && task < tasks.size(); ++task) {
      const HeadOrder& order = piece.plan.order(tasks[task].head);
      const Chain& chain = order.chains[order.tasks[tasks[task].task].chain_begin];
      active.push_back({tasks[task].head, chain.run_begin, chain.run_end});
      moved = true;
    }
    for (Place& at : active) {
      const HeadOrder& order = piece.plan.order(at.head);
      for (; at.run < at.end; ++at.run, at.visit = 0) {
        const Run& run = order.runs[at.run];
        for (; at.visit < run.count; ++at.visit, moved = true) {
          int32_t& turn = next[static_cast<size_t>(at.head * order.group + run.q_head) * rows +
                               static_cast<size_t>(run.tile(at.visit))];
          if (turn != run.addend_of(at.visit)) break;
          ++turn;
        }
        if (at.visit < run.count) break;
      }
    }
    std::erase_if(active, [](const Place& at) { return at.run == at.end; });
  }
  return active.empty() && task == tasks.size();
}

/// What was met, so that no test passes by meeting nothing.
struct Met {
  int64_t visits = 0, gaps = 0, later_addends = 0, rotations = 0, joined = 0, idle = 0;
};

/// One head of a piece in memory of these rows, whose part of `local` has number `head`.
void expect_local(const Plan& whole, const HeldRows& q_rows, const HeldRows& kv_rows,
                  const HeadPiece& piece, const LocalPiece& local, int32_t head, Met& met) {
  const int64_t batch = piece.head / whole.problem.kv_heads;
  const HeadOrder& order = local.plan.order(head);
  const LocalHead& rows = local.heads[head];
  const TileMap& tiles = *piece.order->tiles;
  const DropoutOrigins origins(whole);
  const auto expected = visits_of(
      *piece.order, piece.head % whole.problem.kv_heads * whole.problem.group(),
      [&](bool kv, int32_t tile) {
        return kv ? kv_rows.at(batch, tiles.kv_edges[tile]) : q_rows.at(batch, tiles.q_edges[tile]);
      },
      [&](int32_t q_tile) { return origin_of(origins, piece.head, q_tile); });
  DropoutOrigins there(local.plan);
  there.first_sequence = local.first_sequence;
  const auto got = visits_of(
      order, local.q_head + head * local.plan.problem.group(),
      [&](bool kv, int32_t tile) { return (kv ? rows.kv_rows : rows.q_rows)[tile]; },
      [&](int32_t q_tile) { return origin_of(there, head, q_tile); });
  EXPECT_TRUE(got == expected);
  met.visits += std::ssize(got);
  met.gaps += std::ranges::count(rows.kv_rows, -1);
  ASSERT_EQ(order.chains.size(), piece.order->chains.size());
  if (whole.pass == Pass::forward) return;
  EXPECT_EQ(rows.carries, piece.carries);
  const size_t q_tiles = rows.q_rows.size();
  std::vector<bool> visited(static_cast<size_t>(order.group) * q_tiles);
  for (const Run& run : order.runs.all())
    for (int32_t i = 0; i < run.count; ++i)
      visited[static_cast<size_t>(run.q_head) * q_tiles + static_cast<size_t>(run.tile(i))] = true;
  for (size_t row = 0; row < visited.size(); ++row)
    EXPECT_EQ(local.first_addends[static_cast<size_t>(head) * visited.size() + row] >= 0,
              visited[row]);
  for (size_t c = 0; c < order.chains.size(); ++c)
    EXPECT_EQ(order.chains[c].continues, piece.carries[c].in >= 0);
}

void expect_local(const Plan& whole, const RankPlan& own, const Piece& piece, Met& met,
                  int32_t number = 0) {
  const Room& room = own.rooms[static_cast<size_t>(number)];
  const PieceMemory memory{room.q, own.kv, room.heads.begin, own.kv_heads.begin};
  const LocalPiece local(whole, piece, memory, room.heads.end - room.heads.begin);
  const int32_t first = piece.heads.front().head;
  std::vector<bool> has_work(local.plan.order_of_head.size());
  for (const HeadPiece& head : piece.heads) {
    has_work[head.head - first] = true;
    expect_local(whole, room.q, own.kv, head, local, head.head - first, met);
  }
  met.joined += std::ssize(piece.heads) > 1;
  for (size_t head = 0; head < has_work.size(); ++head) {
    if (has_work[head]) continue;
    ++met.idle;
    EXPECT_TRUE(local.plan.order(static_cast<int32_t>(head)).tasks.empty());
    EXPECT_TRUE(std::ranges::all_of(local.heads[head].q_rows, [](int64_t row) { return row < 0; }));
  }
  if (whole.pass == Pass::forward) return;
  EXPECT_TRUE(ends(local, local.plan.residency)) << local.plan.residency;
  met.later_addends += std::ranges::count_if(local.first_addends, [](int32_t a) { return a > 0; });
  met.rotations += local.plan.residency > 1 && !ends(local, 1);
}

Met expect_all_local(const DistCase& c, const DistOptions& options) {
  SCOPED_TRACE(to_text(options) + " " + c.tensors.describe());
  const DistCase::Dealt dealt = c.deal(options);
  Met met;
  for (const DistPlan* plan : {&dealt.forward, &dealt.backward})
    for (const RankPlan& rank : plan->ranks)
      for (const Step& step : rank.steps)
        if (const auto* compute = std::get_if<Compute>(&step))
          expect_local(plan->whole, rank, compute->piece(plan->whole), met, compute->room);
  EXPECT_GT(met.visits, 0);
  return met;
}

Problem problem_of(const Mask& mask, int64_t batch) {
  return {.batch = batch,
          .q_heads = 12,
          .kv_heads = 4,
          .q_len = mask.q_len(),
          .kv_len = mask.kv_len(),
          .head_dim = 16,
          .head_dim_v = 16,
          .dtype = Dtype::bf16};
}

TEST(LocalPiece, MakesTheSameVisitsAtTheRowsOfItsMemory) {
  const std::vector<int64_t> documents{70, 16, 0, 130, 84};
  const std::vector<int64_t> valid{190, 33};
  Met all;
  for (const Mask& mask : {masks::causal(200, 200), masks::causal_document(documents),
                           masks::causal_sliding_window(300, 300, 40), masks::causal(137, 251),
                           masks::full(200, 200).with_key_lengths(valid)})
    for (const int64_t batch : {1, 2}) {
      if (batch == 1 && mask.batch() == 2) continue;
      const DistCase c(problem_of(mask, batch), mask, kTile);
      for (const std::string& strategy : strategy_names())
        for (const int32_t world : {2, 6}) {
          const Met met = expect_all_local(c, {.world = world, .strategy = strategy});
          all.gaps += met.gaps;
          all.later_addends += met.later_addends;
          all.joined += met.joined;
          all.idle += met.idle;
        }
    }
  // Heads follow each other round so many ranks: in some launch one between others is idle.
  const DistCase c(test::problem_of(2048, 3, 3), masks::causal(2048, 2048), kTile, "descending");
  all.idle += expect_all_local(c, {.world = 8, .strategy = "ring", .shard = "zigzag"}).idle;
  EXPECT_GT(all.gaps, 0);
  EXPECT_GT(all.later_addends, 0);
  EXPECT_GT(all.joined, 0);
  EXPECT_GT(all.idle, 0);
}

TEST(LocalPiece, StepsOverTilesThatAreNotHeld) {
  const Mask mask = masks::full(16, 160);
  const DistCase c(problem_of(mask, 1), mask, kTile);
  auto order = std::make_shared<HeadOrder>(c.forward.order(0));
  order->runs = {{.first = 0, .count = 3, .step = 3}, {.first = 9, .count = 4, .step = -3}};
  order->chains = {{.tile = 0, .run_begin = 0, .run_end = 2}};
  order->tasks = {{0, 1}};
  RankPlan own;
  own.rooms = {{HeldRows(std::vector<RowRange>{{0, {0, 16}}}), {0, 3}}};
  own.kv =
      HeldRows(std::vector<RowRange>{{0, {0, 16}}, {0, {48, 80}}, {0, {96, 112}}, {0, {144, 160}}});
  own.kv_heads = {0, 1};
  Met met;
  expect_local(c.forward, own, {{{.head = 0, .order = order, .carries = {}}}, {{0, 0}}}, met);
  EXPECT_EQ(met.visits, 7);
}

TEST(LocalPiece, NamesTheWorkersThatARotationNeeds) {
  const Mask mask = masks::full(300, 300);
  const DistCase c(problem_of(mask, 1), mask, kTile, "shift");
  EXPECT_GT(expect_all_local(c, {.world = 2, .strategy = "ulysses"}).rotations, 0);
}

TEST(LocalPiece, NeedsNoMoreWorkersThanThePlanWhoseSequenceItHas) {
  int several = 0;  // launches that interleave heads
  for (const auto& [order, placement] :
       {std::pair{"shift", "head_swizzled:2:4"}, std::pair{"shift", "queue"},
        std::pair{"descending/split:2", "staggered:3"}, std::pair{"descending", "longest_first"}}) {
    SCOPED_TRACE(fmt::format("{} {}", order, placement));
    const Mask mask = order[0] == 's' ? masks::full(200, 200) : masks::causal(200, 200);
    // Without groups no chain that rotates is cut for few workers.
    DistCase c(test::problem_of(200, 8, 8), mask, kTile, order);
    std::vector<std::shared_ptr<const HeadOrder>> heads;
    for (const int32_t each : c.backward.order_of_head) heads.push_back(c.backward.orders[each]);
    c.backward.placement = make_placement(placement, heads, 8);
    const int32_t most = verify(c.backward);
    for (const char* strategy : {"ulysses", "ring", "balanced"}) {
      const DistPlan plan = c.deal({.world = 4, .strategy = strategy}).backward;
      for (const LocalPiece& local : local_pieces(plan)) {
        EXPECT_LE(local.plan.residency, most);
        EXPECT_TRUE(ends(local, local.plan.residency));
        const PlacedTasks& tasks = local.plan.placement.tasks;
        several += !std::ranges::is_sorted(tasks, {}, &PlacedTask::head);
      }
    }
  }
  EXPECT_GT(several, 0);
}

// Launches without groups, and of one or two heads of groups, have a sequence of their own.
TEST(LocalPiece, NeedsOneWorkerWhereThePlanDoes) {
  int64_t launches = 0;
  for (const Mask& mask : every_mask(8))
    for (const auto& [q_heads, order] :
         {std::pair{8, "ascending"}, std::pair{8, "descending"}, std::pair{8, "right_to_left"},
          std::pair{8, "matched"}, std::pair{8, "descending/split"},
          std::pair{8, "descending/rows:48"}, std::pair{8, "right_to_left/rows:48"},
          std::pair{32, "descending"}, std::pair{32, "descending/split"},
          std::pair{32, "descending/even:2"}, std::pair{32, "right_to_left/split:2"},
          std::pair{32, "right_to_left/rows:48"}}) {
      SCOPED_TRACE(fmt::format("{} {} {}", mask.name(), q_heads, order));
      const Problem problem = test::problem_of(200, q_heads, 8);
      PlanOptions options;
      options.tile = kTile;
      options.pass = Pass::forward;
      const Plan forward = make_plan(problem, mask, options);
      options.pass = Pass::backward;
      options.order = order;
      const Plan backward = make_plan(problem, mask, options);
      if (backward.residency > 1) continue;
      for (const char* strategy : {"ulysses", "ring", "balanced"}) {
        const DistOptions dealt{.world = 4, .strategy = strategy};
        const DistPlan plan =
            make_dist_plan(backward, make_sharding(forward, backward, mask, dealt), dealt);
        for (const LocalPiece& local : local_pieces(plan)) {
          EXPECT_EQ(local.plan.residency, 1) << strategy;
          ++launches;
        }
      }
    }
  EXPECT_GT(launches, 0);
}

}  // namespace
}  // namespace verbatim::test
