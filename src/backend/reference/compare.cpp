#include "backend/reference/compare.h"

#include <algorithm>
#include <cmath>

#include "core/dropout.h"
#include "core/dtype.h"
#include "core/sha256.h"

namespace verbatim {
namespace {

// RowView as a tensor [batch, length, heads, 1] over the same memory.
TensorView as_tensor(const RowView& rows) {
  const int64_t heads = rows.shape[1], length = rows.shape[2];
  return {rows.data, Dtype::f32, {rows.shape[0], length, heads, 1}, {heads * length, 1, length, 1}};
}

// f(b, l, h) for every row, in row-major order.
template <class F>
void for_each_row(const std::array<int64_t, 4>& shape, F&& f) {
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t l = 0; l < shape[1]; ++l)
      for (int64_t h = 0; h < shape[2]; ++h) f(b, l, h);
}

// Largest norm of a row and largest element; rows with a NaN or infinity do not count.
struct Largest {
  double norm = 0, element = 0;
};
Largest largest(const TensorView& tensor) {
  Largest largest;
  dispatch_dtype(tensor.dtype, [&]<class T>(T) {
    for_each_row(tensor.shape, [&](int64_t b, int64_t l, int64_t h) {
      const T* row = tensor.row<T>(b, l, h);
      const double scale = tensor.scales ? tensor.scales[h] : 1;
      double squares = 0, element = 0;
      for (int64_t d = 0; d < tensor.shape[3]; ++d) {
        const double x = scale * to_f32(row[d]);
        squares += x * x;
        element = std::max(element, std::abs(x));
      }
      if (!std::isfinite(squares)) return;
      largest.norm = std::max(largest.norm, std::sqrt(squares));
      largest.element = std::max(largest.element, element);
    });
  });
  return largest;
}

double largest(const std::vector<double>& values) {
  double largest = 0;
  for (double x : values)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  return largest;
}

double norm_of_row(const std::vector<double>& values, size_t row, int64_t dim) {
  double squares = 0;
  for (int64_t d = 0; d < dim; ++d) squares += values[row * dim + d] * values[row * dim + d];
  return std::sqrt(squares);
}

Check check(const Problem& problem, const Mask& mask, const BackwardTensors& t,
            const Selection& selection, int threads) {
  const auto reference = [&](Arithmetic arithmetic) {
    return reference_attention(problem, mask, t.q, t.k, t.v, t.dout, arithmetic, selection,
                               threads);
  };
  const Reference exact = reference(Arithmetic::exact);
  const Reference same = reference(Arithmetic::same_dtype);
  const Floors floors = rounding_floors(problem, t.q, t.k, t.v, t.dout, exact);
  Check result;
  result.o = compare(t.o, selection.queries, exact.o, same.o, floors.o);
  result.lse = compare(t.lse, selection.queries, exact.lse, same.lse, floors.lse);
  if (t.dout.data != nullptr) {
    result.dq = compare(t.dq, selection.queries, exact.dq, same.dq, floors.dq);
    result.dk = compare(t.dk, selection.keys, exact.dk, same.dk, floors.dk);
    result.dv = compare(t.dv, selection.keys, exact.dv, same.dv, floors.dv);
  }
  return result;
}

}  // namespace

Floors rounding_floors(const Problem& problem, const TensorView& q, const TensorView& k,
                       const TensorView& v, const TensorView& dout, const Reference& exact) {
  const double u32 = 0x1p-24;
  const double u = problem.dtype == Dtype::f32   ? u32
                   : problem.dtype == Dtype::f16 ? 0x1p-11
                                                 : 0x1p-8;
  const double scale = std::abs(problem.softmax_scale());
  const double z = Dropout::make(problem.dropout, problem.seed).scale;
  const double root_v = std::sqrt(static_cast<double>(problem.head_dim_v));
  const Largest q_most = largest(q), k_most = largest(k), v_most = largest(v);
  const double x = scale * q_most.norm * k_most.norm;
  const double terms = std::max(std::sqrt(static_cast<double>(problem.head_dim)) / 8, 1.0);
  const double product = problem.dtype == Dtype::e4m3 ? 0x1p-13 : u32 * terms;
  const double s = product * x + u32 * (largest(exact.lse) + 3 * std::min(problem.softcap, x));
  const auto result = [&](const std::vector<double>& values, int64_t terms) {
    return (2 * u + u32 * std::sqrt(static_cast<double>(terms)) / 4) * largest(values);
  };
  const int64_t rows = problem.group() * problem.q_len;
  Floors floors;
  const double u8 = 0x1p-4;
  floors.o = result(exact.o, problem.kv_len) + s * z * v_most.element +
             u8 / 2 * largest(exact.product_norms);
  floors.lse = u32 * largest(exact.lse) + s;
  if (dout.data == nullptr) return floors;
  const Largest dout_most = largest(dout);
  const double e = z * dout_most.norm * v_most.norm * (s + 3 * u) / root_v;
  const double f = u32 * z * dout_most.norm * v_most.norm;
  const double dq = result(exact.dq, problem.kv_len);
  for (size_t i = 0; i < exact.row_norms.size(); ++i) {
    const double g = u * z * dout_most.norm * norm_of_row(exact.o, i, problem.head_dim_v) / root_v;
    floors.dq.push_back(dq + scale * (exact.row_norms[i] * e + f + g) * k_most.element);
  }
  const double dk = result(exact.dk, rows), dv = result(exact.dv, rows);
  for (const double w : exact.key_norms) {
    floors.dk.push_back(dk + w * scale * (e + f) * q_most.element);
    floors.dv.push_back(dv + w * s * z * dout_most.element);
  }
  return floors;
}

Comparison compare(const TensorView& got, std::span<const RowIndex> rows,
                   std::span<const double> exact, std::span<const double> same_dtype,
                   std::span<const double> floors) {
  Comparison result;
  const int64_t dim = got.shape[3];
  result.elements = std::ssize(rows) * dim;
  const auto finite_error = [](double x, double expected) {
    return std::isfinite(x) && std::isfinite(expected) ? std::abs(x - expected) : 0;
  };
  for (size_t i = 0; i < exact.size(); ++i)
    result.baseline_error = std::max(result.baseline_error, finite_error(same_dtype[i], exact[i]));
  dispatch_dtype(got.dtype, [&]<class T>(T) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const T* row = got.row<T>(rows[i].b, rows[i].l, rows[i].h);
      const double given = floors[floors.size() == 1 ? 0 : i];
      const double floor = std::isfinite(given) ? given : 0;
      const double allowed = std::max(result.baseline_error, floor);
      for (int64_t d = 0; d < dim; ++d) {
        const double x = to_f32(row[d]), expected = exact[i * dim + d];
        const bool same = x == expected || (std::isnan(x) && std::isnan(expected));
        const bool mismatch = !same && !(std::isfinite(x) && std::isfinite(expected));
        const double error = finite_error(x, expected);
        // Equal bits are no error even where the floor is 0.
        const double ratio = error == 0    ? 0
                             : allowed > 0 ? std::min(error / allowed, kMostRatio)
                                           : kMostRatio;
        const bool first = i == 0 && d == 0;
        if (result.nonfinite_mismatches == 0 && (first || mismatch || ratio > result.ratio)) {
          result.worst = {rows[i].b, rows[i].l, rows[i].h, d};
          result.got = x;
          result.expected = expected;
          result.floor = floor;
        }
        result.ratio = std::max(result.ratio, ratio);
        result.error = std::max(result.error, error);
        result.nonfinite_mismatches += mismatch;
      }
    }
  });
  return result;
}

Comparison compare(const TensorView& got, std::span<const RowIndex> rows,
                   std::span<const double> exact, std::span<const double> same_dtype,
                   double floor) {
  return compare(got, rows, exact, same_dtype, std::span(&floor, 1));
}

Comparison compare(const RowView& got, std::span<const RowIndex> rows,
                   std::span<const double> exact, std::span<const double> same_dtype,
                   double floor) {
  return compare(as_tensor(got), rows, exact, same_dtype, floor);
}

double Check::worst_ratio() const {
  double worst = std::max(o.ratio, lse.ratio);
  for (const auto* gradient : {&dq, &dk, &dv})
    if (*gradient) worst = std::max(worst, (*gradient)->ratio);
  return worst;
}

bool Check::within(double limit) const {
  bool ok = o.within(limit) && lse.within(limit);
  for (const auto* gradient : {&dq, &dk, &dv})
    ok = ok && (!*gradient || (*gradient)->within(limit));
  return ok;
}

Check check_forward(const Problem& problem, const Mask& mask, const ForwardTensors& t,
                    const Selection& selection, int threads) {
  return check(problem, mask,
               {.q = t.q,
                .k = t.k,
                .v = t.v,
                .o = t.o,
                .dout = {},
                .lse = t.lse,
                .dq = {},
                .dk = {},
                .dv = {}},
               selection, threads);
}

Check check_backward(const Problem& problem, const Mask& mask, const BackwardTensors& tensors,
                     const Selection& selection, int threads) {
  return check(problem, mask, tensors, selection, threads);
}

std::string sha256_of(const TensorView& tensor) {
  Sha256 hash;
  dispatch_dtype(tensor.dtype, [&]<class T>(T) {
    for_each_row(tensor.shape, [&](int64_t b, int64_t l, int64_t h) {
      hash.update(std::as_bytes(std::span<const T>(tensor.row<T>(b, l, h), tensor.shape[3])));
    });
  });
  return hash.hex();
}

std::string sha256_of(const RowView& rows) {
  const size_t count = rows.shape[0] * rows.shape[1] * rows.shape[2];
  return sha256(std::as_bytes(std::span<const float>(rows.data, count)));
}

}  // namespace verbatim
