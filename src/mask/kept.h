// Masks that JSON names without describing them: those whose blocks came as arrays.
#pragma once

#include <optional>
#include <string>

#include "verbatim/mask.h"

namespace verbatim::masks {

/// A kept mask by the SHA-256 in its parameters ("blocks"). Masks are kept while they have an
/// owner, and the 64 last used without one. All of this is safe to call from several threads.
std::optional<Mask> find_kept(const std::string& digest);
/// Keeps `mask`, without an owner.
void keep(const std::string& digest, const Mask& mask);
/// Adds an owner to a mask, kept or not.
void own(const std::string& digest, const Mask& mask);
/// Takes one away; Error when there is none.
void disown(const std::string& digest);

}  // namespace verbatim::masks
