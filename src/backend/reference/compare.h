// How far a result is from the reference, and whether two results are the same bits.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/reference/reference.h"
#include "verbatim/run.h"

namespace verbatim {

/// The ratio of an error where none is allowed: JSON has no infinity.
inline constexpr double kMostRatio = 1e9;

/// One output against the reference, by the rule of FlashAttention's tests (flash-attention
/// tests/test_flash_attn.py: "the maximum error is at most twice that of a PyTorch computation in
/// the same dtype"):
///   ratio = max |got - exact| / max(max |same_dtype - exact|, floor).
/// The floor keeps small problems and rows of few keys honest, whose same-dtype error may be 0 by
/// luck; see Floors. Where it is another for each row, so is the ratio, and the largest counts. A
/// floor that is no number, of a row with NaN, counts as 0.
struct Comparison {
  double ratio = 0;                  // kMostRatio at most
  double error = 0;                  // max |got - exact|
  double baseline_error = 0;         // max |same_dtype - exact|
  double floor = 0;                  // of the row with the largest ratio
  std::array<int64_t, 4> worst{};    // [b, l, h, d] of the largest ratio, or first mismatch
  double got = 0, expected = 0;      // there
  int64_t nonfinite_mismatches = 0;  // NaN or infinity where the other is not the same
  int64_t elements = 0;              // compared

  bool within(double limit) const { return nonfinite_mismatches == 0 && ratio <= limit; }
};

/// Errors that any computation with f32 sums and results in the problem's dtype may make, as large
/// as they typically are: what the same-dtype computation lacks when few elements or a row of one
/// key (whose dS is exactly 0 there) let its roundings cancel by luck. An output's largest error
/// meets the largest elements of what P or dS is multiplied with. With u the half ulp of the dtype,
/// u32 that of f32, |X| the largest row norm, max|X| the largest element, z the dropout scale, p
/// and w the norms of the row and the column of P, |O_i| of the row of O, x = scale |Q||K|:
///   s = u32 (c x + max|LSE|)           error of S - LSE, LSE being stored in f32; S sums dim terms
///                                      of any sign: c = sqrt(dim) / 8, at least 1; e4m3: 2^-13 x,
///                                      tensor cores keep 13 bits behind a sum's largest addend
///       + 3 u32 min(softcap, x)        a softcap rounds S three times more
///   a = z |dO||V| / sqrt(dim_v)        size of dP
///   e = (s + 3 u) a      error of dS / P, another for each element; and alike for a row:
///   f = u32 z |dO||V|    from f32 sums
///   g = u z |dO||O_i| / sqrt(dim_v)    from O in delta
///   r(X) = (2 u + u32 sqrt(n) / 4) max|X|  storing X, and summing n terms of one sign
///   O   r(O)  + s z max|V|           LSE  u32 max|LSE| + s
///       + u8 n / 2                   e4m3: u8 = 2^-4, n = max of Reference::product_norms; u is of
///       bf16
///   dV  r(dV) + w s z max|dO|
///   dQ  r(dQ) + scale (p e + f + g) max|K|
///   dK  r(dK) + w scale (e + f) max|Q|
struct Floors {
  double o = 0, lse = 0;
  std::vector<double> dq, dk, dv;  // of each row
};
Floors rounding_floors(const Problem& problem, const TensorView& q, const TensorView& k,
                       const TensorView& v, const TensorView& dout, const Reference& exact);

/// `rows[i]` of `got` against row i of `exact` and of `same_dtype`, [rows, dim] both, with the
/// floor of each row, or one of all.
Comparison compare(const TensorView& got, std::span<const RowIndex> rows,
                   std::span<const double> exact, std::span<const double> same_dtype,
                   std::span<const double> floors);
Comparison compare(const TensorView& got, std::span<const RowIndex> rows,
                   std::span<const double> exact, std::span<const double> same_dtype, double floor);
Comparison compare(const RowView& got, std::span<const RowIndex> rows,
                   std::span<const double> exact, std::span<const double> same_dtype, double floor);

/// All outputs of a pass, computed and compared on the rows of `selection`.
struct Check {
  Comparison o, lse;
  std::optional<Comparison> dq, dk, dv;  // of a backward pass

  double worst_ratio() const;
  bool within(double limit) const;
};
Check check_forward(const Problem& problem, const Mask& mask, const ForwardTensors& tensors,
                    const Selection& selection, int threads = 0);
/// Compares tensors.o and tensors.lse too.
Check check_backward(const Problem& problem, const Mask& mask, const BackwardTensors& tensors,
                     const Selection& selection, int threads = 0);

/// SHA-256 of the elements in row-major order, little-endian: strides do not matter.
std::string sha256_of(const TensorView& tensor);
std::string sha256_of(const RowView& rows);

}  // namespace verbatim
