// Random masks beside the predicate of docs/masks.md, written without slices.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "verbatim/mask.h"

namespace verbatim::test {

using Rng = std::mt19937_64;

/// Uniform in [least, most].
int64_t uniform(Rng& rng, int64_t least, int64_t most);

/// A mask of one variant, what it should hold, and how to make it again.
struct MaskCase {
  std::string text;
  Mask mask;
  std::function<bool(int64_t q, int64_t k)> visible;
};

/// A static pattern (or "cu_seqlens", "windows") with random parameters and lengths up to
/// `longest`: lengths 0 and 1, zero-length documents and parameters beyond the length included.
MaskCase random_case(const std::string& pattern, Rng& rng, int64_t longest);

/// The static patterns, "cu_seqlens" and "windows".
const std::vector<std::string>& static_patterns();

/// A random pattern, sometimes intersected with a second one on their common plane.
HeadMask random_head_mask(Rng& rng, int64_t longest, std::string& text);

}  // namespace verbatim::test
