// All constants that fix bits. Kernels check theirs against these when they are compiled. Whoever
// changes one raises kContractVersion, or the number of an arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "verbatim/contract.h"

namespace verbatim::contract {

/// The tile shape of a pass, by the head dims of Q and K and of V.
constexpr TileShape tile(Pass pass, int64_t head_dim, int64_t head_dim_v) {
  const int64_t wider = std::max(head_dim, head_dim_v);
  if (pass == Pass::forward) {
    if (wider <= 64) return {192, 128};
    if (wider <= 128) return {128, 128};
    return head_dim <= 192 && head_dim_v <= 128 ? TileShape{128, 64} : TileShape{64, 64};
  }
  if (wider <= 64) return {128, 128};
  return head_dim <= 192 && head_dim_v <= 128 ? TileShape{64, 128} : TileShape{64, 64};
}
constexpr TileShape tile(Pass pass, const Problem& problem) {
  return tile(pass, problem.head_dim, problem.head_dim_v);
}

/// KV tiles that rotate or turn together in the chunked orders.
inline constexpr int32_t kChunk = 8;
/// KV tiles that one chain of a "/split" forward order visits at most.
inline constexpr int32_t kSplit = 32;
/// Tasks that orders take to run at once.
inline constexpr int32_t kWave = 128;

inline constexpr const char* kCpu = "cpu.2";
inline constexpr const char* kSm80 = "sm80.2";
inline constexpr const char* kSm90 = "sm90.2";
/// Of programs in TL: in the interpreter, and translated, before a hash of what makes the bits.
inline constexpr const char* kInterpretedTl = "tl.2:";
inline constexpr const char* kTranslatedTl = "tl.1:";

/// The sm90 backward scales LSE by 1 / scale, which must fit into its statistics.
inline constexpr double kLeastSm90Scale = 1e-6;

}  // namespace verbatim::contract
