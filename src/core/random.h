// Random numbers that are a function of (seed, position): every element of an input has its value
// whatever the strides, threads or machine.
#pragma once

#include <cstdint>

#include "verbatim/tensor.h"

namespace verbatim {

/// A bijection that scatters 64 bits: the output function of SplitMix64 (Steele, Lea, Flood: "Fast
/// splittable pseudorandom number generators", OOPSLA 2014).
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/// SplitMix64's next number in state `x`.
constexpr uint64_t splitmix64(uint64_t x) { return mix64(x + 0x9e3779b97f4a7c15u); }

/// Number `index` of the stream `seed`: SplitMix64 entered at any place.
constexpr uint64_t random_bits(uint64_t seed, uint64_t index) {
  return splitmix64(mix64(seed) + index * 0x9e3779b97f4a7c15u);
}

/// Uniform in (0, 1), never an end.
constexpr double uniform_at(uint64_t seed, uint64_t index) {
  return (static_cast<double>(random_bits(seed, index) >> 12) + 0.5) * 0x1p-52;
}

/// N(0, 1) by the inverse of its distribution function. Only + - * / and sqrt on doubles: the same
/// bits on every machine.
double normal_at(uint64_t seed, uint64_t index);

/// Sets element [b, l, h, d] to a number of stream `seed` at its row-major index in the shape.
void fill_normal(const TensorView& tensor, uint64_t seed, double stddev = 1);
void fill_uniform(const TensorView& tensor, uint64_t seed, double low, double high);

/// The stream `seed` from its start, for choices in tests and tools.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint64_t bits() { return random_bits(seed_, index_++); }
  /// Uniform in [low, high], both included.
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  /// True with probability `p`.
  bool chance(double p) { return uniform_at(seed_, index_++) < p; }

 private:
  uint64_t seed_, index_ = 0;
};

}  // namespace verbatim
