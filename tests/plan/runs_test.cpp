#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "verbatim/runs.h"

namespace verbatim {
namespace {

using Rng = std::mt19937_64;

int32_t uniform(Rng& rng, int32_t low, int32_t high) {
  return std::uniform_int_distribution(low, high)(rng);
}

verbatim::Run random_run(Rng& rng) {
  return {.q_head = uniform(rng, 0, 3), .first = uniform(rng, 0, 99), .count = uniform(rng, 1, 9)};
}

/// Runs, and the same as a plain list.
struct Both {
  Runs runs;
  std::vector<verbatim::Run> plain;

  static Both random(Rng& rng) {
    Both both;
    if (uniform(rng, 0, 1) == 0) {  // each by itself
      for (int32_t n = uniform(rng, 0, 6); n > 0; --n) both.plain.push_back(random_run(rng));
      both.runs = Runs(both.plain);
      return both;
    }
    if (uniform(rng, 0, 1) == 0) return chains(rng);
    std::vector<verbatim::Run> kept(uniform(rng, 0, 6));
    for (verbatim::Run& run : kept) {
      run = random_run(rng);
      run.q_head = 0;
    }
    both.runs = Runs::of_repeats(PackedRuns(kept));
    for (int32_t n = uniform(rng, 0, 4); n > 0; --n) {
      const auto size = static_cast<int32_t>(kept.size());
      const int32_t first = uniform(rng, 0, size), last = uniform(rng, first, size);
      const int32_t q_head = uniform(rng, 0, 5), heads = uniform(rng, 1, 4);
      both.runs.repeat(static_cast<size_t>(first), static_cast<size_t>(last), q_head, heads);
      for (int32_t h = q_head; h < q_head + heads; ++h) {
        for (int32_t r = first; r < last; ++r) {
          both.plain.push_back(kept[r]);
          both.plain.back().q_head = h;
        }
      }
    }
    return both;
  }

  /// Some that mostly repeat the one before with later addends.
  static Both chains(Rng& rng) {
    Both both;
    std::vector<verbatim::Run> chain(uniform(rng, 1, 3)), kept;
    for (verbatim::Run& run : chain) run = random_run(rng), run.q_head = 0;
    const int32_t count = uniform(rng, 1, 5), q_head = uniform(rng, 0, 2);
    const int32_t heads = uniform(rng, 1, 3);
    for (int32_t c = 0; c < count; ++c) {
      for (verbatim::Run& run : chain) run.addend += uniform(rng, 0, 9) == 0 ? 2 : 1;
      kept.insert(kept.end(), chain.begin(), chain.end());
      for (int32_t h = q_head; h < q_head + heads; ++h) {
        both.plain.insert(both.plain.end(), chain.begin(), chain.end());
        for (auto run = both.plain.end() - std::ssize(chain); run != both.plain.end(); ++run)
          run->q_head = h;
      }
    }
    both.runs = Runs::of_repeats(PackedRuns(kept));
    for (size_t c = 0; c < kept.size(); c += chain.size())
      both.runs.repeat(c, c + chain.size(), q_head, heads);
    return both;
  }

  void append(const Both& other, int32_t tile) {
    runs.append(other.runs, tile);
    for (verbatim::Run run : other.plain) {
      run.first += tile;
      plain.push_back(run);
    }
  }
};

void expect_equal(const Both& both) {
  ASSERT_EQ(both.runs.size(), both.plain.size());
  ASSERT_EQ(both.runs.all(), both.plain);
  ASSERT_EQ(both.runs, Runs(both.plain));
  for (size_t i = 0; i < both.plain.size(); ++i) ASSERT_EQ(both.runs[i], both.plain[i]);
  for (size_t begin = 0; begin <= both.plain.size(); ++begin) {
    for (size_t end = begin; end <= both.plain.size(); ++end) {
      std::vector<verbatim::Run> found;
      both.runs.for_each_part(begin, end, [&](int32_t q_head, RunView part) {
        ASSERT_FALSE(part.empty());
        for (verbatim::Run run : part) {
          run.q_head = q_head;
          found.push_back(run);
        }
      });
      ASSERT_EQ(found, std::vector(both.plain.begin() + static_cast<ptrdiff_t>(begin),
                                   both.plain.begin() + static_cast<ptrdiff_t>(end)));
    }
  }
}

/// From wherever the call before left off, which is a hint and no more.
TEST(Runs, AreReadByRepeatsInAnySequence) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const Both both = Both::random(rng);
    size_t near = 0;
    for (int n = 0; n < 50; ++n) {
      const int32_t begin = uniform(rng, 0, static_cast<int32_t>(both.plain.size()));
      const int32_t end = uniform(rng, begin, static_cast<int32_t>(both.plain.size()));
      std::vector<verbatim::Run> found;
      both.runs.for_each_repeat(begin, end, near, [&](int32_t q_head, int32_t heads, RunView part) {
        for (int32_t h = q_head; h < q_head + heads; ++h) {
          for (verbatim::Run run : part) {
            run.q_head = h;
            found.push_back(run);
          }
        }
      });
      ASSERT_EQ(found, std::vector(both.plain.begin() + begin, both.plain.begin() + end));
    }
  }
}

TEST(Runs, AreTheListOfTheirRepeats) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    Both both = Both::random(rng);
    for (int32_t n = uniform(rng, 0, 2); n > 0; --n)
      both.append(Both::random(rng), uniform(rng, 0, 50));
    expect_equal(both);
    const verbatim::Run next = random_run(rng);
    both.runs.push_back(next);
    both.plain.push_back(next);
    expect_equal(both);
    if (HasFatalFailure()) return;
  }
}

TEST(Runs, KeepWhatIsRepeatedOnce) {
  const PackedRuns kept(std::vector<verbatim::Run>(1000, {.count = 1}));
  Runs runs = Runs::of_repeats(kept);
  runs.repeat(0, 1000, 0, 64);
  EXPECT_EQ(runs.size(), 64000u);
  EXPECT_LT(runs.bytes(), int64_t{1000} * 9);
  EXPECT_EQ(runs[63999].q_head, 63);
}

TEST(Runs, OfChainsThatAreNextTakeLittleMemory) {
  std::vector<verbatim::Run> kept(1000, {.count = 1});
  for (int32_t c = 0; c < 1000; ++c) kept[static_cast<size_t>(c)].addend = c;
  Runs runs = Runs::of_repeats(PackedRuns(kept));
  for (size_t c = 0; c < 1000; ++c) runs.repeat(c, c + 1, 0, 8);
  EXPECT_LT(runs.bytes(), int64_t{1000} * 9);
  EXPECT_EQ(runs[7999], (verbatim::Run{.q_head = 7, .count = 1, .addend = 999}));
  size_t near = 0;
  for (size_t c = 8; c < 8000; c += 8) {
    EXPECT_TRUE(runs.are_next(c - 8, c, c, c + 8, near));
    EXPECT_FALSE(runs.are_next(c - 8, c, c, c + 7, near));
    EXPECT_FALSE(runs.are_next(c - 7, c, c, c + 7, near));
  }
}

TEST(Runs, AreNextWhereTheyReadSo) {
  int found = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const Both both = Both::chains(rng);
    const size_t size = both.plain.size();
    for (size_t begin = 0; begin < size; ++begin) {
      for (size_t middle = begin + 1; 2 * middle - begin <= size; ++middle) {
        size_t near = 0;
        if (!both.runs.are_next(begin, middle, middle, 2 * middle - begin, near)) continue;
        ++found;
        for (size_t i = begin; i < middle; ++i) {
          verbatim::Run next = both.plain[i];
          ++next.addend;
          ASSERT_EQ(both.plain[i + (middle - begin)], next);
        }
      }
    }
  }
  EXPECT_GT(found, 300);
}

TEST(Runs, GoOnWhereTheyEnded) {
  const PackedRuns kept(std::vector<verbatim::Run>(1000, {.count = 1}));
  Runs chains = Runs::of_repeats(kept);  // of one query head
  for (size_t r = 0; r < 1000; r += 2) chains.repeat(r, r + 2, 0, 1);
  Runs heads = Runs::of_repeats(kept);  // of a group, one by one
  for (int32_t h = 0; h < 64; ++h) heads.repeat(0, 1000, h, 1);
  Runs pushed;
  for (int r = 0; r < 1000; ++r) pushed.push_back({.count = 1});
  for (const Runs& runs : {chains, heads, pushed}) EXPECT_LT(runs.bytes(), int64_t{1000} * 9);
  EXPECT_EQ(chains, pushed);
  EXPECT_EQ(heads.size(), 64000u);
  EXPECT_EQ(heads[63999].q_head, 63);
}

}  // namespace
}  // namespace verbatim
