// Collects head masks and keeps each one once.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "verbatim/mask.h"

namespace verbatim {

/// The two lists that a Mask is made of.
struct DistinctHeads {
  std::vector<HeadMask> variants;
  std::vector<int32_t> variant_of;

  /// Index in `variants` of a head mask equal to `head`, which joins them when it is new.
  int32_t id_of(HeadMask head) {
    const auto found = std::find(variants.begin(), variants.end(), head);
    if (found == variants.end()) {
      variants.push_back(std::move(head));
      return static_cast<int32_t>(variants.size()) - 1;
    }
    return static_cast<int32_t>(found - variants.begin());
  }
};

}  // namespace verbatim
