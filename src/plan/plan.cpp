#include "verbatim/plan.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "contract/contract.h"
#include "plan/whole_chains.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr std::array<std::string_view, 4> kLevels{"not_guaranteed", "run_to_run", "gpu_to_gpu",
                                                  "invariant"};

constexpr uint64_t kPrime = 0x100000001b3u;  // of FNV-1a

/// kPrimes[n]: what n bytes of 0 do to a hash, besides its start.
constexpr std::array<uint64_t, 9> kPrimes = [] {
  std::array<uint64_t, 9> powers{1};
  for (size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * kPrime;
  return powers;
}();

/// What given words do to any hash: all but its low byte is multiplied, whatever the words are, so
/// the rest of what they do is known by that byte.
class KnownWords {
 public:
  constexpr KnownWords(std::initializer_list<int64_t> words) {
    for (size_t i = 0; i < words.size(); ++i) power_ *= kPrimes[8];
    for (uint64_t low = 0; low < by_low_byte_.size(); ++low) {
      uint64_t hash = low;
      for (const int64_t word : words)
        for (int byte = 0; byte < 8; ++byte)
          hash = (hash ^ (static_cast<uint64_t>(word) >> 8 * byte & 0xff)) * kPrime;
      by_low_byte_[low] = hash - low * power_;
    }
  }
  constexpr uint64_t after(uint64_t hash) const {
    return hash * power_ + by_low_byte_[hash & 0xff];
  }

 private:
  uint64_t power_ = 1;
  std::array<uint64_t, 256> by_low_byte_{};
};

constexpr KnownWords kMinusOne{-1}, kNoBand{Slice::kNoLow, Slice::kNoHigh};

// FNV-1a over 64-bit words: stable across platforms, and collisions only mislabel a report.
class Hash {
 public:
  void add(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    const auto byte = [&](int i) { return bits >> 8 * i & 0xff; };
    if (bits < 1 << 8) {
      value_ = (value_ ^ bits) * kPrimes[8];
    } else if (bits < 1 << 24) {
      value_ = (((value_ ^ byte(0)) * kPrime ^ byte(1)) * kPrime ^ byte(2)) * kPrimes[6];
    } else if (value == -1) {
      value_ = kMinusOne.after(value_);
    } else {
      for (int i = 0; i < 8; ++i) value_ = (value_ ^ byte(i)) * kPrime;
    }
  }
  void add(const KnownWords& words) { value_ = words.after(value_); }
  void add(std::string_view text) {
    add(static_cast<int64_t>(text.size()));
    for (const char c : text) value_ = (value_ ^ static_cast<uint8_t>(c)) * kPrime;
  }
  void add(std::span<const int64_t> values) {
    add(static_cast<int64_t>(values.size()));
    for (const int64_t value : values) add(value);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

void add_tiles(Hash& hash, const TileMap& tiles) {
  hash.add(tiles.q_edges);
  hash.add(tiles.kv_edges);
  hash.add(static_cast<int64_t>(tiles.slices().size()));
  for (const Slice& s : tiles.slices()) {
    hash.add(6);  // numbers
    for (const int64_t edge : {s.q_begin, s.q_end, s.k_begin, s.k_end}) hash.add(edge);
    if (s.lo == Slice::kNoLow && s.hi == Slice::kNoHigh) {
      hash.add(kNoBand);
    } else {
      for (const int64_t edge : {s.lo, s.hi}) hash.add(edge);
    }
  }
}

// What dropout counts from; of a single sequence without padding it follows from the slices.
void add_origins(Hash& hash, const TileMap& tiles) {
  if (tiles.sequences.size() == 1 && tiles.q_padding == 0 && tiles.k_padding == 0) return;
  for (const Sequence& s : tiles.sequences)
    hash.add(std::array<int64_t, 3>{s.q_begin, s.core.begin, s.k.begin});
}

// Tasks only fix the time; the slices of a run follow from mask and tiles.
void add_order(Hash& hash, const HeadOrder& order) {
  add_tiles(hash, *order.tiles);
  hash.add(order.group);
  const WholeChains chains(order);
  for (size_t c = 0; c < chains.size(); ++c) {
    const Chain& chain = chains[c];
    hash.add(std::array<int64_t, 4>{chain.tile, chain.q_head, chain.addend, chain.addends});
    order.for_each_part(chain, [&](int32_t q_head, RunView runs) {
      for (const Run& run : runs)
        hash.add(std::array<int64_t, 7>{q_head, run.first, run.count, run.step, run.addend,
                                        run.addend_step, run.addend_every});
    });
  }
}

}  // namespace

std::string_view to_string(Level level) { return kLevels[static_cast<size_t>(level)]; }

Level level_from_string(std::string_view name) {
  for (size_t k = 0; k < kLevels.size(); ++k)
    if (name == kLevels[k]) return static_cast<Level>(k);
  throw Error(ErrorCode::invalid_argument, "plan", "no such level",
              {"level", std::string(name), "not_guaranteed, run_to_run, gpu_to_gpu or invariant",
               "invariant"});
}

int64_t HeadOrder::visits() const {
  return visits({.run_begin = 0, .run_end = static_cast<int32_t>(runs.size())});
}

int64_t HeadOrder::visits(const Chain& chain) const {
  int64_t visits = 0, of_part = 0;
  RunView counted;
  for_each_part(chain, [&](int32_t, RunView part) {
    if (!part.is(counted)) {
      of_part = 0;
      for (const Run& run : part) of_part += run.count;
      counted = part;
    }
    visits += of_part;
  });
  return visits;
}

int64_t HeadOrder::bytes() const {
  return runs.bytes() +
         static_cast<int64_t>(chains.size() * sizeof(Chain) + tasks.size() * sizeof(Task) +
                              row_addends.size() * sizeof(int32_t));
}

int64_t Plan::bytes() const {
  auto bytes = static_cast<int64_t>(order_of_head.size() * sizeof(int32_t) +
                                    placement.worker_begin.size() * sizeof(int32_t) +
                                    placement.tasks.size() * sizeof(PlacedTask));
  for (const auto& order : orders) bytes += order->bytes();
  return bytes;
}

int64_t Plan::tile_bytes() const {
  int64_t bytes = 0;
  for (const auto& order : orders) bytes += order->tiles->bytes();
  return bytes;
}

std::string Plan::fingerprint() const {
  Hash hash;
  hash.add(kContractVersion);
  hash.add(arithmetic);
  hash.add(static_cast<int64_t>(pass));
  hash.add(std::array<int64_t, 3>{problem.head_dim, problem.head_dim_v,
                                  static_cast<int64_t>(problem.dtype)});
  for (const auto& order : orders) {
    add_order(hash, *order);
    if (problem.dropout > 0) add_origins(hash, *order->tiles);
  }
  return fmt::format("{:016x}", hash.value());
}

TileShape tile_of(const Plan& plan) {
  return plan.orders.empty() ? contract::tile(plan.pass, plan.problem)
                             : plan.orders.front()->tiles->shape;
}

}  // namespace verbatim
