#include "backend/tl/state.h"

#include <algorithm>

namespace verbatim::tl {
namespace {

Interval rows_of(const Tensor& tensor, const Visit& visit) {
  return tensor.queries ? visit.queries : visit.keys;
}

int64_t head_of(const Tensor& tensor, const Visit& visit) {
  return tensor.queries ? visit.q_head : visit.kv_head;
}

}  // namespace

const TensorView& Tensors::named(std::string_view name) const {
  if (name == "Q") return q;
  if (name == "K") return k;
  if (name == "V") return v;
  if (name == "O") return o;
  if (name == "dO") return dout;
  if (name == "dQ") return dq;
  return name == "dK" ? dk : dv;
}

ProgramState::ProgramState(const Kernel& kernel, const Problem& problem, const Tensors& tensors)
    : kernel_(kernel), problem_(problem), tensors_(tensors), tiles_(kernel.variables.size()) {
  for (size_t v = 0; v < tiles_.size(); ++v) {
    const Variable& variable = kernel_.variables[v];
    tiles_[v] = {.rows = variable.rows, .cols = variable.cols};
    tiles_[v].data.resize(variable.rows * variable.cols);
  }
  pairs_.cols = kernel_.tile.kv;
  pairs_.visible.resize(kernel_.tile.q * kernel_.tile.kv);
}

int64_t ProgramState::bytes(const Kernel& kernel) {
  int64_t bytes = kernel.tile.q * kernel.tile.kv;  // visible pairs
  for (const Variable& v : kernel.variables) bytes += v.rows * v.cols * int64_t{sizeof(float)};
  return bytes;
}

void ProgramState::find_pairs(const TileMap& map, int32_t slice_begin, int32_t slice_count,
                              const Visit& visit) {
  const Interval &queries = visit.queries, &keys = visit.keys;
  std::ranges::fill(pairs_.visible, 0);
  const auto show = [&](int64_t r, int64_t begin, int64_t end) {
    uint8_t* row = pairs_.visible.data() + r * pairs_.cols;
    if (begin < end) std::fill(row + begin, row + end, 1);
  };
  for (int64_t r = 0; r < queries.end - queries.begin; ++r) {
    if (slice_count == 0) show(r, 0, keys.end - keys.begin);
    for (int32_t s = 0; s < slice_count; ++s) {
      const Slice& slice = map.slices()[map.slice_ids[slice_begin + s]];
      const int64_t q = queries.begin + r;
      if (q < slice.q_begin || q >= slice.q_end) continue;
      show(r, std::max({slice.k_begin, q + slice.lo, keys.begin}) - keys.begin,
           std::min({slice.k_end, q + slice.hi + 1, keys.end}) - keys.begin);
    }
  }
}

void ProgramState::show_alike(int64_t rows) {
  for (int64_t r = 1; r < rows; ++r)
    std::copy_n(pairs_.visible.begin(), pairs_.cols, pairs_.visible.begin() + r * pairs_.cols);
}

void ProgramState::execute(const Step& step, const Visit& visit) {
  switch (step.kind) {
    case Step::Kind::load:
      return read(step, visit);
    case Step::Kind::store:
      return write(step, visit);
    case Step::Kind::move:
      tiles_[step.out] = tiles_[step.a];
      if (kernel_.variables[step.out].memory == Memory::shared && tiles_[step.out].cols > 1)
        round_to(kernel_.dtype, tiles_[step.out]);
      return;
    case Step::Kind::reshape:
      return round_to(kernel_.dtype, tiles_[step.a]);
    case Step::Kind::compute:
      return compute(step);
    default:
      return;  // copies have arrived when they return
  }
}

void ProgramState::compute(const Step& step) {
  Tile& out = tiles_[step.out];
  switch (step.operation) {
    case Operation::gemm:
      return multiply({tiles_[step.a], step.a_transposed, tiles_[step.b], step.b_transposed},
                      step.accumulate, out, scratch_);
    case Operation::fill:
      std::ranges::fill(out.data, scalar_of(step));
      out.pairs = nullptr;
      return;
    case Operation::mask:
      return hide(pairs_, out);
    case Operation::softmax:
      if (step.c < 0) return probabilities(tiles_[step.a], tiles_[step.b], out);
      sums_.clear();
      for (const int v : step.rescaled) sums_.push_back(&tiles_[v]);
      return softmax(tiles_[step.a], tiles_[step.b], tiles_[step.c], sums_, out);
    case Operation::logsumexp:
      return logsumexp(tiles_[step.a], tiles_[step.b], out);
    default:
      if (step.b >= 0) return combine(step.operation, tiles_[step.a], tiles_[step.b], out);
      return combine(step.operation, tiles_[step.a], scalar_of(step), out);
  }
}

float ProgramState::scalar_of(const Step& step) const {
  return static_cast<float>(step.by_scale ? problem_.softmax_scale() : *step.number);
}

void ProgramState::read(const Step& step, const Visit& visit) {
  const Tensor& tensor = *step.tensor;
  Tile& tile = tiles_[step.out];
  const Interval rows = rows_of(tensor, visit);
  const int64_t h = head_of(tensor, visit), count = rows.end - rows.begin;
  if (tensor.columns) return load(tensors_.named(tensor.name), visit.b, h, rows.begin, count, tile);
  std::ranges::fill(tile.data, 0.0f);
  if (std::string_view(tensor.name) == "L") {
    std::copy_n(tensors_.lse.row(visit.b, h) + rows.begin, count, tile.data.begin());
  } else {
    read_delta(h, visit, tile);
  }
}

/// D = rowsum(dO * O).
void ProgramState::read_delta(int64_t h, const Visit& visit, Tile& tile) {
  const Interval rows = visit.queries;
  const int64_t dim = problem_.head_dim_v;
  for (Tile* each : {&dout_, &o_}) {
    *each = {.rows = tile.rows, .cols = dim};
    each->data.resize(tile.rows * dim);
  }
  load(tensors_.dout, visit.b, h, rows.begin, rows.end - rows.begin, dout_);
  load(tensors_.o, visit.b, h, rows.begin, rows.end - rows.begin, o_);
  for (int64_t r = 0; r < tile.rows; ++r) {
    float sum = 0;
    for (int64_t c = 0; c < dim; ++c) sum += dout_.row(r)[c] * o_.row(r)[c];
    tile.data[r] = sum;
  }
}

void ProgramState::finish(const Step& step, const Visit& visit) {
  Tile& sum = tiles_[step.a];
  if (step.by_scale || step.number) combine(Operation::multiply, sum, scalar_of(step), sum);
  write(step, visit);
}

void ProgramState::write(const Step& step, const Visit& visit) {
  const Tensor& tensor = *step.tensor;
  const Tile& tile = tiles_[step.a];
  const Interval rows = rows_of(tensor, visit);
  const int64_t h = head_of(tensor, visit), count = rows.end - rows.begin;
  if (tensor.columns)
    return store(tile, count, tensors_.named(tensor.name), visit.b, h, rows.begin);
  std::copy_n(tile.data.begin(), count, tensors_.lse.row(visit.b, h) + rows.begin);
}

}  // namespace verbatim::tl
