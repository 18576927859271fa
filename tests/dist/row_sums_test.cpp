#include "dist/row_sums.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace verbatim::test {
namespace {

using Rng = std::mt19937_64;

int32_t uniform(Rng& rng, int32_t low, int32_t high) {
  return std::uniform_int_distribution(low, high)(rng);
}

constexpr int32_t kGroup = 5, kTiles = 60;

verbatim::Run random_run(Rng& rng) {
  verbatim::Run run{.count = uniform(rng, 1, 12),
                    .step = uniform(rng, 0, 3) == 0 ? uniform(rng, 2, 4) : 1,
                    .addend = uniform(rng, 0, 9),
                    .addend_step = uniform(rng, -1, 1),
                    .addend_every = uniform(rng, 1, 4)};
  run.first = uniform(rng, 0, kTiles - 1 - (run.count - 1) * run.step);
  if (uniform(rng, 0, 1) == 0) return run;
  run.first += (run.count - 1) * run.step;
  run.step = -run.step;
  return run;
}

// Runs are added up by their ends; here visit by visit.
TEST(RowSums, AreThoseOfTheVisits) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    dist::RowSums sums;
    std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int64_t>> expected;
    for (int32_t n = uniform(rng, 0, 20); n > 0; --n) {
      const verbatim::Run run = random_run(rng);
      const int32_t begin = uniform(rng, 0, run.count), end = uniform(rng, begin, run.count);
      const int32_t q_head = uniform(rng, 0, kGroup - 1), heads = uniform(rng, 1, kGroup - q_head);
      const int32_t chains = uniform(rng, 1, 3);  // each with addends that are one more
      sums.add(run, q_head, heads, begin, end, chains);
      for (int32_t h = q_head; h < q_head + heads; ++h) {
        for (int32_t i = begin; i < end; ++i) {
          auto& [count, numbers] = expected[{h, run.tile(i)}];
          count += chains;
          for (int32_t c = 0; c < chains; ++c) numbers += run.addend_of(i) + c;
        }
      }
    }
    const auto rows = sums.take(kGroup);
    ASSERT_EQ(rows.size(), expected.size());
    auto row = rows.begin();
    for (const auto& [place, of_row] : expected) {
      ASSERT_EQ(std::pair(row->q_head, row->q_tile), place);
      ASSERT_EQ(std::pair(row->count, row->numbers), of_row);
      ++row;
    }
  }
}

}  // namespace
}  // namespace verbatim::test
