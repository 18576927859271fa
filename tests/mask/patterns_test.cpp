#include <gtest/gtest.h>

#include "random_mask.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using test::Rng;

void expect_equal(const HeadMask& head, const std::function<bool(int64_t, int64_t)>& visible) {
  int64_t area = 0;
  for (int64_t q = 0; q < head.q_len; ++q) {
    std::vector<Interval> row;
    for (int64_t k = 0; k < head.kv_len; ++k) {
      int slices = 0;
      for (const Slice& s : head.slices) slices += s.contains(q, k);
      ASSERT_EQ(slices, visible(q, k)) << "q " << q << " k " << k;
      if (slices == 0) continue;
      ++area;
      if (!row.empty() && row.back().end == k) {
        ++row.back().end;
      } else {
        row.push_back({k, k + 1});
      }
    }
    ASSERT_EQ(head.row(q), row) << "q " << q;
  }
  ASSERT_EQ(head.area(), area);
}

class Patterns : public testing::TestWithParam<std::string> {};

TEST_P(Patterns, EqualTheirPredicate) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    const test::MaskCase c = test::random_case(GetParam(), rng, 80);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + c.text);
    ASSERT_EQ(c.mask.name(), GetParam());
    expect_equal(c.mask.head(0, 0), c.visible);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Patterns, testing::ValuesIn(test::static_patterns()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace verbatim
