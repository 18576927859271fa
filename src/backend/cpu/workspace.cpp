#include "backend/cpu/workspace.h"

#include <algorithm>
#include <new>

#include "backend/cpu/kernels.h"

namespace verbatim::cpu {
namespace {

constexpr std::align_val_t kLine{64};

int64_t longest(const std::vector<int64_t>& edges) {
  int64_t length = 0;
  for (size_t i = 1; i < edges.size(); ++i) length = std::max(length, edges[i] - edges[i - 1]);
  return length;
}

}  // namespace

void Arena::Free::operator()(float* p) const { ::operator delete[](p, kLine); }

Arena::Arena(int64_t floats) : data_(new (kLine) float[floats]()) {}

float* Arena::take(int64_t floats) {
  const int64_t begin = used_;
  used_ += round_up(floats, kLanes);
  return data_ ? data_.get() + begin : nullptr;
}

TileLimits::TileLimits(const Plan& plan)
    : head_dim(plan.problem.head_dim), head_dim_v(plan.problem.head_dim_v) {
  for (const auto& order : plan.orders) {
    q = std::max(q, longest(order->tiles->q_edges));
    kv = std::max(kv, longest(order->tiles->kv_edges));
  }
}

int64_t SumLayout::state_floats(int64_t rows, int64_t head_dim_v) {
  return round_up(rows, kRowGroup) * leading_dim(head_dim_v) + 2 * round_up(rows, kLanes);
}

SumLayout::SumLayout(const Plan& plan, bool piece) : SumNumbers(plan), plan_(plan) {
  const bool backward = plan.pass == Pass::backward;
  const bool in_output = backward && plan.problem.dtype == Dtype::f32;
  const int64_t dims = plan.problem.head_dim + plan.problem.head_dim_v;
  for (const auto& order : plan.orders) {
    const TileMap& tiles = *order->tiles;
    OrderPlaces places;
    places.row.assign(tiles.q_tiles(), 0);
    places.kv.assign(tiles.kv_tiles(), 0);
    places.apart.assign(tiles.kv_tiles(), 0);
    std::vector<bool> shared(backward ? tiles.kv_tiles() : tiles.q_tiles()), apart(shared.size());
    for (const Chain& chain : order->chains) {
      if (chain.addends > 1) shared[chain.tile] = true;
      if (chain.apart) apart[chain.tile] = true;
    }
    for (int32_t t = 0; t < tiles.q_tiles(); ++t) {
      const int64_t rows = tiles.q_edges[t + 1] - tiles.q_edges[t];
      places.row[t] = places.row_floats;
      if (backward && !in_output && !piece && order->row_addends[t] > 1)
        places.row_floats += rows * plan.problem.head_dim;
      if (!backward && shared[t]) places.row_floats += state_floats(rows, plan.problem.head_dim_v);
    }
    for (int32_t t = 0; t < tiles.kv_tiles(); ++t) {
      const int64_t floats = (tiles.kv_edges[t + 1] - tiles.kv_edges[t]) * dims;
      places.kv[t] = places.kv_floats;
      if (backward && !in_output && shared[t]) places.kv_floats += floats;
      places.apart[t] = places.kv_floats;
      if (backward && apart[t]) places.kv_floats += floats;
    }
    places_.push_back(std::move(places));
  }
  for (const int32_t o : plan.order_of_head) {
    const HeadOrder& order = *plan.orders[o];
    first_float_.push_back(floats_);
    floats_ += order.group * places_[o].row_floats + places_[o].kv_floats;
  }
}

int64_t SumLayout::row_place(int32_t head, int32_t q_head, int32_t q_tile) const {
  const OrderPlaces& places = places_[plan_.order_of_head[head]];
  return first_float_[head] + q_head * places.row_floats + places.row[q_tile];
}

int64_t SumLayout::kv_place(int32_t head, int32_t kv_tile, bool apart) const {
  const OrderPlaces& places = places_[plan_.order_of_head[head]];
  return first_float_[head] + plan_.order(head).group * places.row_floats +
         (apart ? places.apart : places.kv)[kv_tile];
}

}  // namespace verbatim::cpu
