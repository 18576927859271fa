// What is to be computed, apart from the mask: sizes, types and the scalars of the softmax.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "verbatim/tensor.h"

namespace verbatim {

enum class Pass { forward, backward };
/// "forward" or "backward".
std::string_view to_string(Pass pass);

/// One attention problem (Vaswani et al. 2017, equation 1). For batch b, query head h and its KV
/// head h / group():
///   S = softcap(scale * Q K^T),  P = softmax(S over visible keys),  O = dropout(P) V,
///   LSE = log of the sum of exp(S) over visible keys.
struct Problem {
  int64_t batch = 1;
  int64_t q_heads = 1;
  int64_t kv_heads = 1;  // divides q_heads: MHA, GQA and MQA are one case
  int64_t q_len = 0;     // packed sequences: the sum of the lengths, batch 1
  int64_t kv_len = 0;
  int64_t head_dim = 64;          // of Q and K, 1..256
  int64_t head_dim_v = 64;        // of V and O, 1..256
  Dtype dtype = Dtype::f32;       // of Q, K, V, O and their gradients; sums are f32. e4m3: of Q, K
                                  // and V, for a forward
  std::optional<double> scale{};  // of the scores; without: 1 / sqrt(head_dim)
  double softcap = 0;             // 0: none; else S = softcap * tanh(scale * QK^T / softcap)
  double dropout = 0;             // probability that an element of P is dropped, in [0, 1)
  uint64_t seed = 0;              // key of the dropout generator (docs/determinism.md)

  int64_t group() const { return q_heads / kv_heads; }
  /// The dtype of O and of gradients: bf16 where the inputs are e4m3.
  Dtype o_dtype() const { return dtype == Dtype::e4m3 ? Dtype::bf16 : dtype; }
  bool has_backward() const { return dtype != Dtype::e4m3; }
  /// `scale`, or its default.
  double softmax_scale() const;
  /// Throws Error naming the first field that is out of range or does not divide.
  void validate() const;
  bool operator==(const Problem&) const = default;
};

/// A JSON object with the names above; `scale` is softmax_scale().
std::string to_json(const Problem& problem);
/// Every member but `scale` is required. Throws Error naming the one that is missing, unknown, of
/// another type or refused by validate().
Problem problem_from_json(const std::string& text);

}  // namespace verbatim
