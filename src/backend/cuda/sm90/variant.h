// What an instance of a Hopper kernel can do beyond the common path.
#pragma once

namespace verbatim::cuda::sm90 {

/// Each makes its instance slower, so the common path has none.
enum class Variant {
  plain,
  extras,    // softcap and dropout
  halves,    // leaves out what the half of a visit's keys would make that no query sees
  blocks,    // the same, by CTAs of 64 query rows: where little is seen (forward)
  two_heads  // as blocks, by CTAs of 64 rows of two query heads of a group
};

constexpr bool is_by_blocks(Variant variant) {
  return variant == Variant::blocks || variant == Variant::two_heads;
}

}  // namespace verbatim::cuda::sm90
