#include "draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/random.h"

namespace verbatim::regret {
namespace {

/// Log-uniform in [low, high].
int64_t scale_between(Random& random, int64_t low, int64_t high) {
  const double u = static_cast<double>(random.between(0, 1 << 20)) / (1 << 20);
  return static_cast<int64_t>(
      std::llround(static_cast<double>(low) *
                   std::pow(static_cast<double>(high) / static_cast<double>(low), u)));
}

/// Lengths that sum to `length`.
std::vector<int64_t> documents(Random& random, int64_t length) {
  std::vector<int64_t> lengths;
  const int64_t longest = scale_between(random, std::min<int64_t>(length, 200), length);
  for (int64_t left = length; left > 0; left -= lengths.back())
    lengths.push_back(std::min(left, scale_between(random, 20, longest)));
  return lengths;
}

/// Edges of blocks of `low` to `high` positions.
std::vector<int64_t> edges(Random& random, int64_t length, int64_t low, int64_t high) {
  std::vector<int64_t> found{0};
  while (found.back() < length)
    found.push_back(std::min(length, found.back() + random.between(low, high)));
  return found;
}

Mask mask_of(Random& random, int64_t pattern, int64_t n, int64_t kv_heads) {
  const auto docs = [&] { return documents(random, n); };
  const auto part = [&](int64_t low) { return scale_between(random, std::min(low, n), n); };
  const double density = 0.1 * static_cast<double>(random.between(1, 8));
  switch (pattern) {
    case 0:
      return masks::full(n, n);
    case 1:
      return masks::causal(n, n);
    case 2:
      return masks::full_sliding_window(n, n, part(64));
    case 3:
      return masks::causal_sliding_window(n, n, part(64));
    case 4:
      return masks::full_document(docs());
    case 5:
      return masks::causal_document(docs());
    case 6:
      return masks::share_question(docs());
    case 7:
      return masks::causal_blockwise(docs());
    case 8:
      return masks::global_sliding(n, std::max<int64_t>(part(32) / 3, 1),
                                   std::max<int64_t>(part(64) / 3, 1));
    case 9:
      return masks::prefix_lm_causal(n, part(16));
    case 10: {
      const auto lengths = docs();
      std::vector<int64_t> prefixes;
      for (const int64_t length : lengths) prefixes.push_back(random.between(0, length));
      return masks::prefix_lm_document(lengths, prefixes);
    }
    case 11:
      return masks::block_causal_document(docs(), scale_between(random, 64, 2048));
    case 12:
      return masks::uniform_block_sparse(n, n, 128, 128, density, random.bits(), kv_heads);
    default:
      return masks::variable_block_sparse(edges(random, n, 64, 192), edges(random, n, 64, 192),
                                          density, random.bits(), kv_heads);
  }
}

}  // namespace

Drawn draw(uint64_t seed, int64_t index, const Range& range) {
  Random random(random_bits(seed, static_cast<uint64_t>(index)));
  while (true) {
    Problem p;
    p.q_len = p.kv_len = scale_between(random, 300, 20000);
    p.kv_heads = random.between(1, range.kv_heads);
    p.q_heads = p.kv_heads * random.between(1, range.group);
    p.head_dim = p.head_dim_v = random.chance(0.5) ? 64 : 128;
    p.dtype = Dtype::bf16;
    Mask mask = mask_of(random, index % 14, p.q_len, p.kv_heads);
    const double flops = 10.0 * static_cast<double>(p.head_dim) *
                         static_cast<double>(mask.area(p.batch, p.q_heads, p.kv_heads));
    if (flops > range.flops || flops < range.flops / 1000) continue;
    auto name = fmt::format("{} {} {} {}:{} hd{}", index, mask.name(), p.q_len, p.q_heads,
                            p.kv_heads, p.head_dim);
    return {std::move(name), p, std::move(mask)};
  }
}

}  // namespace verbatim::regret
