#include "core/random.h"

#include <bit>
#include <cmath>

#include "core/dtype.h"

namespace verbatim {
namespace {

// log(x) for normal x > 0 by the series of 2 atanh((m - 1) / (m + 1)): relative error below 1e-9.
// Not log_fixed() of backend/sums.h, whose series is longer: every sample is of these bits.
double fixed_log(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0xfffffffffffff) | uint64_t{1023} << 52);
  if (mantissa > 1.4142135623730951) mantissa *= 0.5, ++exponent;
  const double s = (mantissa - 1) / (mantissa + 1), s2 = s * s;
  const double series = 1 + s2 * (1.0 / 3 + s2 * (1.0 / 5 + s2 * (1.0 / 7 + s2 * (1.0 / 9))));
  return exponent * 0.6931471805599453 + 2 * s * series;
}

template <class At>
void fill(const TensorView& tensor, At at) {
  dispatch_dtype(tensor.dtype, [&]<class T>(T) {
    uint64_t index = 0;
    for (int64_t b = 0; b < tensor.shape[0]; ++b)
      for (int64_t l = 0; l < tensor.shape[1]; ++l)
        for (int64_t h = 0; h < tensor.shape[2]; ++h) {
          T* row = tensor.row<T>(b, l, h);
          for (int64_t d = 0; d < tensor.shape[3]; ++d)
            row[d] = from_f32<T>(static_cast<float>(at(index++)));
        }
  });
}

}  // namespace

// Giles, "Approximating the erfinv function", GPU Computing Gems 2011, single-precision fit.
double normal_at(uint64_t seed, uint64_t index) {
  const double u = uniform_at(seed, index);
  double w = -fixed_log(4 * u * (1 - u));
  double p;
  if (w < 5) {
    w -= 2.5;
    p = 2.81022636e-08;
    for (double c : {3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                     -0.00417768164, 0.246640727, 1.50140941})
      p = p * w + c;
  } else {
    w = std::sqrt(w) - 3;
    p = -0.000200214257;
    for (double c : {0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                     0.00943887047, 1.00167406, 2.83297682})
      p = p * w + c;
  }
  return 1.4142135623730951 * p * (2 * u - 1);
}

void fill_normal(const TensorView& tensor, uint64_t seed, double stddev) {
  fill(tensor, [&](uint64_t index) { return stddev * normal_at(seed, index); });
}

void fill_uniform(const TensorView& tensor, uint64_t seed, double low, double high) {
  fill(tensor, [&](uint64_t index) { return low + (high - low) * uniform_at(seed, index); });
}

}  // namespace verbatim
