// What fixes bits besides a plan's orders: the version of the contract, and what kernels do to a
// sum inside a tile (docs/determinism.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "verbatim/mask.h"
#include "verbatim/problem.h"

namespace verbatim {

/// Counts the changes of default bits: of tile shapes, of constants, or of the orders that `auto`
/// stands for. Part of every fingerprint. Not in the header: no kernel is compiled anew for it.
extern const int32_t kContractVersion;

/// How kernels add up inside a tile. Those of one arithmetic give the same bits for the same plan
/// on every device of one compute capability. Part of every fingerprint.
struct ArithmeticInfo {
  const char* id;      // "sm90.2": a family of kernels and the number of its present arithmetic
  const char* family;  // "cpu", "sm80" or "sm90", as options name it
  const char* summary;
};
std::span<const ArithmeticInfo> arithmetics();

/// The id of the arithmetic that runs a pass under the order `order` (a name) in tiles of `tile`,
/// where kernels up to `family` may be taken: those of "sm90" have conditions, and what does not
/// meet them runs on "sm80". A function of what every head and document of a problem has in
/// common, so that no neighbour chooses another's kernel. The id of a TL program stands for itself.
/// Throws Error when there is no such family.
std::string arithmetic_of(std::string_view family, Pass pass, const Problem& problem,
                          TileShape tile, std::string_view order);

}  // namespace verbatim
