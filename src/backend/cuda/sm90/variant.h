// What an instance of a Hopper kernel can do beyond the common path.
#pragma once

namespace verbatim::cuda::sm90 {

/// Each makes its instance slower, so the common path has none.
enum class Variant {
  plain,
  extras,  // softcap and dropout
  halves,  // leaves out what the half of a visit's keys would make that no query sees
  blocks   // the same, by CTAs of 64 query rows: where little is seen (forward)
};

}  // namespace verbatim::cuda::sm90
