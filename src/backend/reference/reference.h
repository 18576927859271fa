// Attention by its formula: naive, untiled, row by row. What everything else is checked against.
#pragma once

#include <vector>

#include "backend/reference/selection.h"
#include "verbatim/mask.h"
#include "verbatim/problem.h"
#include "verbatim/tensor.h"

namespace verbatim {

enum class Arithmetic {
  exact,       // every step in double
  same_dtype,  // sums in f32; S, P, dP, dS and results rounded to the problem's dtype, as PyTorch's
               // unfused attention rounds them: the yardstick of FlashAttention's error ratio. LSE,
               // which is f32 by contract, is taken from the S that is not rounded. Where the
               // inputs are e4m3, S and O are rounded to bf16, and P to e4m3, the largest of a
               // row being kE4m3One.
};

/// Results of the selected rows, in the order of the selection.
struct Reference {
  std::vector<double> o;          // [queries, head_dim_v]
  std::vector<double> lse;        // [queries]
  std::vector<double> dq;         // [queries, head_dim]
  std::vector<double> dk;         // [keys, head_dim]
  std::vector<double> dv;         // [keys, head_dim_v]
  std::vector<double> row_norms;  // [queries] of the row of P
  std::vector<double> key_norms;  // [keys] of the column of P
  /// [queries], of e4m3: the largest norm of what an element of O sums, P V, without the largest P.
  std::vector<double> product_norms;
};

/// For batch b, query head h, its KV head g and every visible (i, j):
///   S_ij = scale * Q_i . K_j            (softcap c: S_ij = c * tanh(scale * Q_i . K_j / c))
///   LSE_i = log sum_j exp(S_ij)         P_ij = exp(S_ij - LSE_i)
///   Z_ij = dropout factor, 0 or 65536 / (65536 - threshold)   (core/dropout.h)
///   O_i = sum_j Z_ij P_ij V_j           dV_j = sum_i Z_ij P_ij dO_i
///   dP_ij = Z_ij dO_i . V_j             dS_ij = P_ij * (dP_ij - sum_j P_ij dP_ij)
///   dQ_i = scale * sum_j dS'_ij K_j     dK_j = scale * sum_i dS'_ij Q_i
/// with dS' = dS * (1 - tanh^2) under a softcap, else dS; sums over i run over the query heads of
/// the group too. A row without a key has O = 0, LSE = -inf, dQ = 0. NaN and infinities follow the
/// formula and so reach exactly the rows that attend to them (and keys attended by such a row).
/// q, k, v, dout: shapes as in BackwardTensors, any strides. Without dout.data only O and LSE are
/// made. Time and memory: the visible positions of the rows that the selection needs; one row of
/// scores per thread. `threads` (0: all cores) works on KV heads and changes no bit.
Reference reference_attention(const Problem& problem, const Mask& mask, const TensorView& q,
                              const TensorView& k, const TensorView& v, const TensorView& dout,
                              Arithmetic arithmetic, const Selection& selection, int threads = 0);

}  // namespace verbatim
