#include "backend/local_piece.h"

#include <algorithm>
#include <memory>

#include "backend/sums.h"
#include "plan/dropout_origins.h"
#include "plan/visits.h"

namespace verbatim {
namespace {

/// `run` with its tiles as `local` numbers them: where they are not evenly apart, in parts.
void append_local(std::vector<Run>& runs, const Run& run, const std::vector<int32_t>& local) {
  const auto tile = [&](int32_t i) { return local[run.tile(i)]; };
  for (int32_t begin = 0, end; begin < run.count; begin = end) {
    const int32_t step = begin + 1 < run.count ? tile(begin + 1) - tile(begin) : 1;
    for (end = begin + 1; end < run.count && tile(end) - tile(end - 1) == step;) ++end;
    const size_t first = runs.size();
    append_visits(runs, run, begin, end);
    for (Run& part : std::span(runs).subspan(first)) {
      part.first = local[part.first];
      part.step = step;
    }
  }
}

std::shared_ptr<const HeadOrder> local_order(const HeadOrder& order, const LocalTiles& q,
                                             const LocalTiles& kv,
                                             const std::vector<Carry>& carries, int32_t first_head,
                                             int32_t heads) {
  const bool backward = order.pass == Pass::backward;
  auto local = std::make_shared<HeadOrder>();
  local->pass = order.pass;
  local->name = order.name;
  local->group = heads;
  local->tasks = order.tasks;
  auto tiles = std::make_shared<TileMap>(*order.tiles);
  tiles->q_edges = q.edges;
  tiles->kv_edges = kv.edges;
  tiles->column_begin = tiles->row_begin = {};  // of visits the order knows all
  tiles->columns = tiles->rows = {};
  local->tiles = std::move(tiles);
  std::vector<Run> runs;
  for (Chain chain : order.chains) {
    const auto begin = static_cast<int32_t>(runs.size());
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      Run run = order.runs[r];
      run.q_head -= first_head;
      append_local(runs, run, backward ? q.of : kv.of);
    }
    chain.run_begin = begin;
    chain.run_end = static_cast<int32_t>(runs.size());
    chain.tile = (backward ? kv.of : q.of)[chain.tile];
    if (backward) {
      const Carry& carry = carries[local->chains.size()];
      chain.continues = carry.in >= 0;
      chain.addend = 0;
      chain.addends = carry.out < 0 ? 1 : 2;
    } else {
      chain.q_head -= first_head;
    }
    local->chains.push_back(chain);
  }
  local->runs = Runs(runs);
  if (!backward) return local;
  local->row_addends.assign(q.rows.size(), 0);
  for (size_t t = 0; t < q.of.size(); ++t)
    if (q.of[t] >= 0) local->row_addends[q.of[t]] = order.row_addends[t];
  return local;
}

/// Makes -1 what belongs to rows without a visit: of `first_addends`, and of the query tiles that
/// no query head has one of.
void hide_unvisited(const HeadOrder& backward, std::vector<int32_t>& first_addends,
                    std::vector<int64_t>& q_rows) {
  const size_t tiles = q_rows.size();
  std::vector<bool> row_visited(first_addends.size()), tile_visited(tiles);
  for (const Run& run : backward.runs.all())
    for (int32_t i = 0; i < run.count; ++i) {
      const auto tile = static_cast<size_t>(run.tile(i));
      row_visited[static_cast<size_t>(run.q_head) * tiles + tile] = tile_visited[tile] = true;
    }
  for (size_t row = 0; row < first_addends.size(); ++row)
    if (!row_visited[row]) first_addends[row] = -1;
  for (size_t tile = 0; tile < tiles; ++tile)
    if (!tile_visited[tile]) q_rows[tile] = -1;
}

}  // namespace

LocalTiles::LocalTiles(const std::vector<int64_t>& all, int64_t batch, const HeldRows& held) {
  for (size_t t = 0; t + 1 < all.size(); ++t) {
    const bool holds = held.holds(batch, {all[t], all[t + 1]});
    of.push_back(holds ? static_cast<int32_t>(rows.size()) : -1);
    if (!holds && !rows.empty() && rows.back() < 0) continue;  // the gap goes on
    edges.push_back(all[t]);
    rows.push_back(holds ? held.at(batch, all[t]) : -1);
  }
  edges.push_back(all.back());
}

void LocalTiles::number(int32_t first, int32_t count) {
  const size_t before = first;
  edges.insert(edges.begin(), before, edges.front());
  rows.insert(rows.begin(), before, -1);
  for (int32_t& tile : of)
    if (tile >= 0) tile += first;
  rows.resize(count, -1);
  edges.resize(count + 1, edges.back());
}

int32_t local_q_tiles(const Plan& whole, const HeldRows& q_rows, int64_t batch) {
  int32_t tiles = 0;
  const int64_t heads = whole.problem.kv_heads;
  for (int64_t b = 0; b < batch; ++b) {
    size_t most = 0;
    const HeadOrder* last = nullptr;
    for (int64_t head = b * heads; head < (b + 1) * heads; ++head) {
      const HeadOrder& order = whole.order(static_cast<int32_t>(head));
      if (&order == last) continue;
      last = &order;
      most = std::max(most, LocalTiles(order.tiles->q_edges, b, q_rows).rows.size());
    }
    tiles += static_cast<int32_t>(most);
  }
  return tiles;
}

LocalPiece::LocalPiece(const Plan& whole, const Piece& piece, const PieceMemory& memory,
                       int64_t q_heads) {
  const Problem& problem = whole.problem;
  const int32_t first = piece.heads.front().head, last = piece.heads.back().head;
  const int64_t kv_head = first % problem.kv_heads, count = last - first + 1;
  const int64_t group_begin = kv_head * problem.group();
  q_head = std::max(group_begin, memory.first_q_head);
  const int64_t end =
      std::min(group_begin + count * problem.group(), memory.first_q_head + q_heads);
  q_head_at = q_head - memory.first_q_head;
  kv_head_at = kv_head - memory.first_kv_head;

  plan.pass = whole.pass;
  plan.problem = problem;
  plan.problem.batch = 1;
  plan.problem.kv_heads = count;
  plan.problem.q_heads = end - q_head;
  plan.problem.q_len = memory.q_rows.size();
  plan.problem.kv_len = memory.kv_rows.size();
  plan.arithmetic = whole.arithmetic;
  plan.placement.name = "queue";
  plan.placement.workers = std::max(whole.placement.workers, 1);
  const DropoutOrigins origins(whole);
  const int32_t tiles_before = local_q_tiles(whole, memory.q_rows, first / problem.kv_heads);
  const int32_t all_tiles = local_q_tiles(whole, memory.q_rows, problem.batch);
  auto own = piece.heads.begin();
  for (int32_t head = first; head <= last; ++head) {
    plan.order_of_head.push_back(head - first);
    first_sequence.push_back(origins.first_sequence[head]);
    if (head == own->head) {
      add_head(whole, *own++, memory, tiles_before, all_tiles);
    } else {
      add_idle_head();
    }
  }
  shown_by_blocks /= static_cast<double>(piece.heads.size());
  std::vector<PlacedTask> tasks;
  for (const PlacedTask& task : piece.tasks) tasks.push_back({task.head - first, task.task});
  plan.residency = residency_of(plan.orders, tasks);
  plan.placement.tasks = std::move(tasks);
}

void LocalPiece::add_head(const Plan& whole, const HeadPiece& own, const PieceMemory& memory,
                          int32_t tiles_before, int32_t all_tiles) {
  const Problem& problem = whole.problem;
  const int64_t batch = own.head / problem.kv_heads, kv_head = own.head % problem.kv_heads;
  const TileMap& tiles = *own.order->tiles;
  shown_by_blocks += tiles.shown_by_blocks();
  LocalTiles q(tiles.q_edges, batch, memory.q_rows);
  const LocalTiles kv(tiles.kv_edges, batch, memory.kv_rows);
  q.number(tiles_before, all_tiles);
  const auto group = static_cast<int32_t>(plan.problem.group());
  const int64_t skipped = std::max<int64_t>(0, q_head - kv_head * problem.group());
  auto order = local_order(*own.order, q, kv, own.carries, static_cast<int32_t>(skipped), group);
  LocalHead& head = heads.emplace_back(q.rows, kv.rows, own.carries);
  if (whole.pass == Pass::backward) {
    std::vector<int32_t> before = addends_before(*order);
    hide_unvisited(*order, before, head.q_rows);
    first_addends.insert(first_addends.end(), before.begin(), before.end());
  }
  plan.orders.push_back(std::move(order));
}

/// With the tiles of the head before, none of which is held.
void LocalPiece::add_idle_head() {
  auto order = std::make_shared<HeadOrder>();
  const HeadOrder& before = *plan.orders.back();
  order->pass = before.pass;
  order->name = before.name;
  order->tiles = before.tiles;
  order->group = before.group;
  order->row_addends.resize(before.row_addends.size());
  LocalHead& head = heads.emplace_back(heads.back());
  std::ranges::fill(head.q_rows, -1);
  std::ranges::fill(head.kv_rows, -1);
  head.carries.clear();
  if (plan.pass == Pass::backward)
    first_addends.resize(
        first_addends.size() + head.q_rows.size() * static_cast<size_t>(order->group), -1);
  plan.orders.push_back(std::move(order));
}

TensorView LocalPiece::q_side(TensorView tensor) const {
  tensor.data = row_address(tensor, 0, 0, q_head_at);
  tensor.shape[2] = plan.problem.q_heads;
  return tensor;
}

TensorView LocalPiece::kv_side(TensorView tensor) const {
  tensor.data = row_address(tensor, 0, 0, kv_head_at);
  tensor.shape[2] = plan.problem.kv_heads;
  return tensor;
}

RowView LocalPiece::q_side(RowView rows) const {
  return {rows.row(0, q_head_at), {1, plan.problem.q_heads, rows.shape[2]}};
}

}  // namespace verbatim
