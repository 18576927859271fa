#include "verbatim/packed_runs.h"

#include <gtest/gtest.h>

#include <climits>
#include <random>
#include <vector>

namespace verbatim {
namespace {

using Record = verbatim::Run;  // not testing::Test::Run

constexpr int64_t kWord = 8, kWide = kWord + sizeof(Record);

bool fits(const Record& run) {
  const bool same = RunWord::unpack(RunWord::pack(run)) == run;
  EXPECT_EQ(RunWord::fits(run), same);
  return same;
}

const Record kCut{.first = 5, .count = 2, .addend = 6, .slice_begin = 7, .slice_count = 3};
const Record kFull{.first = 5, .count = 2, .addend = 6, .addend_step = 4};

struct Field {
  int32_t Record::*member;
  int32_t least, most;  // that fit
};

void expect_limits(const Record& run, const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    SCOPED_TRACE(field.most);
    const auto with = [&](int64_t value) {
      Record changed = run;
      changed.*field.member = static_cast<int32_t>(value);
      return changed;
    };
    EXPECT_TRUE(fits(with(field.least)));
    EXPECT_TRUE(fits(with(field.most)));
    EXPECT_FALSE(fits(with(int64_t{field.least} - 1)));
    EXPECT_FALSE(fits(with(int64_t{field.most} + 1)));
    EXPECT_FALSE(fits(with(INT_MIN)));
    EXPECT_FALSE(fits(with(INT_MAX)));
    for (const int32_t value : {field.least - 1, field.least, field.most, field.most + 1, INT_MIN})
      EXPECT_EQ(PackedRuns(std::vector{with(value)})[0], with(value));
  }
}

TEST(RunWord, HoldsEachFieldUpToItsLimit) {
  expect_limits(kCut, {{&Record::q_head, 0, 0},
                       {&Record::first, 0, (1 << 18) - 1},
                       {&Record::count, 1, 4},
                       {&Record::addend, 0, (1 << 18) - 1},
                       {&Record::addend_step, 0, 0},
                       {&Record::slice_begin, 0, (1 << 21) - 1},
                       {&Record::addend_every, 1, 1}});
  expect_limits(kFull, {{&Record::q_head, 0, 0},
                        {&Record::first, 0, (1 << 18) - 1},
                        {&Record::count, 1, 128},
                        {&Record::addend, 0, (1 << 18) - 1},
                        {&Record::addend_step, -1024, 1023},
                        {&Record::slice_begin, 0, 0},
                        {&Record::addend_every, 1, 32}});
  for (Record run : {kCut, kFull}) {
    for (const int32_t step : {INT_MIN, -2, -1, 0, 1, 2, INT_MAX}) {
      run.step = step;
      EXPECT_EQ(fits(run), step == 1 || step == -1) << step;
      EXPECT_EQ(PackedRuns(std::vector{run})[0], run);
    }
  }
  for (const int32_t slices : {INT_MIN, -1, 0, 1, 7, 8, INT_MAX}) {
    Record run = kCut;
    run.slice_count = slices;
    EXPECT_EQ(fits(run), 1 <= slices && slices <= 7) << slices;
    EXPECT_EQ(PackedRuns(std::vector{run})[0], run);
  }
}

TEST(RunWord, HasEveryBitOfItsFields) {
  Record widest{.first = (1 << 18) - 1,
                .count = 4,
                .step = -1,
                .addend = (1 << 18) - 1,
                .slice_begin = (1 << 21) - 1,
                .slice_count = 7};
  EXPECT_TRUE(fits(widest));
  EXPECT_EQ(RunWord::pack(widest), RunWord::kWide - 1);
  widest.slice_begin = widest.slice_count = 0;
  widest.count = 128, widest.addend_step = 1023, widest.addend_every = 32;
  EXPECT_TRUE(fits(widest));
  EXPECT_LT(RunWord::pack(widest), RunWord::kWide);
}

TEST(PackedRuns, ReadAsTheyWereWritten) {
  std::mt19937_64 rng(5);
  // A value near a limit of some field, or any.
  const auto value = [&]() -> int32_t {
    if (rng() % 8 == 0) return static_cast<int32_t>(rng());
    const int32_t limit = rng() % 4 == 0 ? 0 : int32_t{1} << rng() % 23;
    return (rng() % 8 == 0 ? -1 : 1) * limit + static_cast<int32_t>(rng() % 3) - 1;
  };
  int64_t narrow = 0, wide = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Record> plain(rng() % 50);
    int64_t bytes = 0;
    for (Record& run : plain) {
      run = {.first = value(), .count = value(), .addend = value()};
      if (rng() % 2) run.step = value();
      if (rng() % 2) run.slice_begin = value(), run.slice_count = value();
      if (rng() % 2) run.addend_step = value(), run.addend_every = value();
      if (rng() % 4 == 0) run.q_head = value();
      if (rng() % 2)
        run = {.first = static_cast<int32_t>(rng() % 100),
               .count = 1 + static_cast<int32_t>(rng() % 3)};
      ++(fits(run) ? narrow : wide);
      bytes += fits(run) ? kWord : kWide;
    }
    const PackedRuns packed(plain);
    ASSERT_EQ(packed.size(), plain.size());
    ASSERT_EQ(packed.bytes(), bytes);
    ASSERT_TRUE(std::ranges::equal(packed.all(), plain));
    const size_t first = rng() % (plain.size() + 1), count = rng() % (plain.size() - first + 1);
    const RunView part = packed.part(first, count);
    ASSERT_EQ(part.size(), count);
    ASSERT_EQ(part.empty(), count == 0);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(part[i], plain[first + i]);
    if (count == 0) continue;
    ASSERT_EQ(part.front(), plain[first]);
    ASSERT_EQ(part.back(), plain[first + count - 1]);
  }
  EXPECT_GT(narrow, 1000);
  EXPECT_GT(wide, 1000);
}

TEST(RunView, ComparesPlacesAndContents) {
  const Record wide{.first = 1, .count = 1, .step = 3};
  const PackedRuns runs(std::vector{wide, kCut, wide, kCut});  // the wide ones at other places
  EXPECT_EQ(runs.part(0, 2), runs.part(2, 2));
  EXPECT_FALSE(runs.part(0, 2).is(runs.part(2, 2)));
  EXPECT_TRUE(runs.part(1, 2).is(runs.part(1, 2)));
  EXPECT_FALSE(runs.part(0, 1) == runs.part(0, 2));
  EXPECT_FALSE(runs.part(0, 1) == runs.part(1, 1));
}

}  // namespace
}  // namespace verbatim
