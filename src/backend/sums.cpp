#include "backend/sums.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace verbatim {
namespace {

/// 1 / k!, of the series of exp.
constexpr std::array<double, 13> kExpTerms = [] {
  std::array<double, 13> terms{1};
  for (size_t k = 1; k < terms.size(); ++k) terms[k] = terms[k - 1] / static_cast<double>(k);
  return terms;
}();

}  // namespace

SumNumbers::SumNumbers(const Plan& plan) : plan_(plan) {
  for (const int32_t o : plan.order_of_head) {
    const HeadOrder& order = *plan.orders[o];
    first_.push_back(sums_);
    sums_ += int64_t{order.group} * order.tiles->q_tiles() + order.tiles->kv_tiles();
  }
}

int64_t SumNumbers::row_sum(int32_t head, int32_t q_head, int32_t q_tile) const {
  return first_[head] + int64_t{q_head} * plan_.order(head).tiles->q_tiles() + q_tile;
}

int64_t SumNumbers::kv_sum(int32_t head, int32_t kv_tile) const {
  const HeadOrder& order = plan_.order(head);
  return first_[head] + int64_t{order.group} * order.tiles->q_tiles() + kv_tile;
}

void clear_unvisited_rows(const Plan& plan, const TensorView& dq) {
  const size_t bytes = dq.shape[3] * size_of(dq.dtype);
  for (int32_t head = 0; head < static_cast<int32_t>(plan.order_of_head.size()); ++head) {
    const HeadOrder& order = plan.order(head);
    const int64_t b = head / plan.problem.kv_heads, kv_head = head % plan.problem.kv_heads;
    for (int32_t t = 0; t < order.tiles->q_tiles(); ++t) {
      if (order.row_addends[t] > 0) continue;
      for (int64_t h = kv_head * order.group; h < (kv_head + 1) * order.group; ++h)
        for (int64_t q = order.tiles->q_edges[t]; q < order.tiles->q_edges[t + 1]; ++q)
          std::memset(row_address(dq, b, q, h), 0, bytes);
    }
  }
}

double exp_fixed(double x) {
  if (std::isnan(x)) return x;
  if (x < -700) return 0;
  if (x > 700) return std::numeric_limits<double>::infinity();
  const double n = std::floor(x * 1.4426950408889634 + 0.5);
  const double r = (x - n * 0.693145751953125) - n * 1.4286068203094173e-06;  // |r| <= log(2) / 2
  double series = kExpTerms.back();
  for (size_t k = kExpTerms.size() - 1; k-- > 0;) series = series * r + kExpTerms[k];
  const auto exponent = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52;
  return series * std::bit_cast<double>(exponent);
}

/// log m = 2 artanh s with s = (m - 1) / (m + 1), |s| <= 0.172. Not fixed_log() of core/random.cpp,
/// on whose shorter series the bits of all samples rest, as those of LSE do on this one.
double log_fixed(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffff) | 0x3ff0000000000000);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1), z = s * s;
  double series = 1.0 / 13;
  for (int odd = 11; odd >= 1; odd -= 2) series = series * z + 1.0 / odd;
  return static_cast<double>(exponent) * 0.6931471805599453 + 2 * s * series;
}

}  // namespace verbatim
