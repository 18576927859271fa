// Masks that blocks cut: the Hopper kernels run variants that leave out hidden halves of KV tiles;
// the forward others where little is seen, one for pairs of query heads.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "backend/cuda/gpu_case.h"
#include "core/random.h"
#include "plan/head_pairs.h"

namespace verbatim::test {
namespace {

/// What kernels choose their variant by: 1, plain.
double shown_by_blocks(const Plan& plan) {
  double sum = 0;
  for (const auto& order : plan.orders) sum += order->tiles->shown_by_blocks();
  return sum / static_cast<double>(plan.orders.size());
}
// The forward's: below, 64 rows are a CTA's, of one query head or of two.
constexpr double kFewShown = 0.56, kFewShownOfTwo = 0.75;

/// Blocks of any sizes, a share of which is seen, for two KV heads. Of some, windows leave less.
Mask random_blocks(Random& random) {
  const int64_t q_len = random.between(200, 3000), kv_len = random.between(200, 3000);
  const auto size = [&] { return random.chance(0.6) ? 64 : random.between(24, 100); };
  const Mask blocks = masks::uniform_block_sparse(q_len, kv_len, size(), size(),
                                                  static_cast<double>(random.between(5, 50)) / 100,
                                                  random.bits(), 2);
  if (random.chance(0.6)) return blocks;
  return blocks.intersect(
      masks::full_sliding_window(q_len, kv_len, random.between(0, std::max(q_len, kv_len))));
}

TEST(Halves, RandomBlocksAgreeWithTheReferenceAndRepeat) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  int forwards = 0, few = 0, pairs = 0, backwards = 0;
  for (uint64_t number = 0; number < 40; ++number) {
    Random random(number);
    const Mask mask = random_blocks(random);
    Problem p = problem_of(mask, std::array{64, 128, 80, 40}[random.between(0, 3)], 1);
    p.q_heads = 2 * random.between(1, 4);
    p.dtype = random.chance(0.5) ? Dtype::bf16 : Dtype::f16;
    GpuCase c(p, mask, number);
    const SharedPlan forward = c.plan(Pass::forward, "descending");
    const SharedPlan backward = c.plan(Pass::backward, random.chance(0.5) ? "descending" : "shift");
    forwards += shown_by_blocks(*forward) < 1;
    const bool in_pairs = p.head_dim > 64 && heads_in_pairs(*forward);
    pairs += in_pairs && shown_by_blocks(*forward) < kFewShownOfTwo;
    few += !in_pairs && shown_by_blocks(*forward) < kFewShown;
    backwards += shown_by_blocks(*backward) < 1;
    c.run(*gpu(), forward, backward);
    const auto first = c.bits();
    const Check check = c.check(Pass::backward, Selection::sample(p, mask, number));
    EXPECT_TRUE(check.within(2)) << "number " << number << ", ratio " << check.worst_ratio() << ", "
                                 << to_json(p);
    for (int repeat = 0; repeat < 20; ++repeat) {
      c.run(*gpu(), forward, backward);
      ASSERT_EQ(c.bits(), first) << "number " << number << ", repeat " << repeat;
    }
  }
  EXPECT_GE(forwards, 15);
  EXPECT_GE(few, 3);
  EXPECT_GE(pairs, 3);
  EXPECT_GE(backwards, 15);
}

/// Which key blocks the rows of blocks of each batch entry see, as a mask takes them.
struct Columns {
  std::vector<int64_t> row_begin;
  std::vector<int32_t> columns;
  void add_entry(const std::vector<std::vector<bool>>& rows) {
    row_begin.push_back(static_cast<int64_t>(columns.size()));
    for (const std::vector<bool>& seen : rows) {
      for (size_t i = 0; i < seen.size(); ++i)
        if (seen[i]) columns.push_back(static_cast<int32_t>(i));
      row_begin.push_back(static_cast<int64_t>(columns.size()));
    }
  }
};

/// Scores that grow over two powers of 2 to the 10th: rows take new bases at many visits.
void grow_keys(GuardedTensor& k, Random& random) {
  const TensorView view = k.view();
  for (int64_t b = 0; b < view.shape[0]; ++b)
    for (int64_t row = 0; row < view.shape[1]; ++row) {
      const auto factor = static_cast<float>(random.between(1, 12));
      for (int64_t h = 0; h < view.shape[2]; ++h)
        for (int64_t d = 0; d < view.shape[3]; ++d)
          k.set(b, row, h, d, factor * k.get(b, row, h, d));
    }
}

// Alone few of its visits are cut, and it runs on the plain kernel; beside entries of many such
// visits on a variant, which leaves out halves of these few. Where little is left of those beside
// it, the forward puts halves of two tiles into a visit.
TEST(Halves, AnEntryHasItsBitsBesideOneThatBlocksCut) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kBlock = 64, kBlocks = 33, kLength = kBlock * kBlocks - 5;
  for (const int64_t head_dim : {64, 128}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Random random(seed);
      const auto draw = [&](double share) {
        std::vector<bool> seen(kBlocks);
        for (int64_t i = 0; i < kBlocks; ++i) seen[i] = random.chance(share);
        return seen;
      };
      const double share = std::array{0.1, 0.3, 0.5, 0.8}[seed % 4];
      const int others = share < 0.5 ? 8 : 1;
      std::vector<std::vector<bool>> few_cut(kBlocks, std::vector<bool>(kBlocks, true));
      for (int64_t r = 0; r < kBlocks / 8; ++r) few_cut[r] = draw(seed < 4 ? 0.5 : 0.3);
      Columns few, all;
      few.add_entry(few_cut);
      all.add_entry(few_cut);
      for (int other = 0; other < others; ++other) {
        std::vector<std::vector<bool>> cut;
        for (int64_t r = 0; r < kBlocks; ++r) cut.push_back(draw(share));
        all.add_entry(cut);
      }

      const auto mask_of = [&](const Columns& lists, int64_t batch) {
        const masks::BlockLists blocks{batch, 1, lists.row_begin, lists.columns};
        return masks::uniform_block_sparse(kLength, kLength, kBlock, kBlock, blocks);
      };
      const Mask alone_mask = mask_of(few, 1), all_mask = mask_of(all, 1 + others);
      Problem p = problem_of(alone_mask, head_dim, 1);
      p.kv_heads = 1;
      p.q_heads = 2;
      GpuCase alone(p, alone_mask, seed);
      p.batch = 1 + others;
      GpuCase beside(p, all_mask, seed);
      if (seed >= 4) {
        grow_keys(beside.k.host, random);
        beside.k.upload();
      }
      for (auto [from, to] : {std::pair{&beside.q, &alone.q},
                              {&beside.k, &alone.k},
                              {&beside.v, &alone.v},
                              {&beside.dout, &alone.dout}}) {
        const TensorView source = from->host.view(), target = to->host.view();
        std::memcpy(target.data, source.data,
                    static_cast<size_t>(target.stride[0]) * sizeof(uint16_t));
        to->upload();
      }
      const auto run = [](GpuCase& c, bool cut) {
        const SharedPlan forward = c.plan(Pass::forward, "descending");
        const SharedPlan backward = c.plan(Pass::backward, "descending");
        EXPECT_EQ(shown_by_blocks(*forward) < 1, cut);
        EXPECT_EQ(shown_by_blocks(*backward) < 1, cut);
        c.run(*gpu(), forward, backward);
        return shown_by_blocks(*forward);
      };
      run(alone, false);
      EXPECT_EQ(run(beside, true) < kFewShown, share < 0.5);
      for (auto [small, large] : {std::pair{&alone.o, &beside.o},
                                  {&alone.lse, &beside.lse},
                                  {&alone.dq, &beside.dq},
                                  {&alone.dk, &beside.dk},
                                  {&alone.dv, &beside.dv}}) {
        const TensorView a = small->host.view(), b = large->host.view();
        EXPECT_EQ(std::memcmp(
                      a.data, b.data,
                      static_cast<size_t>(a.shape[1] * a.shape[2] * a.shape[3]) * size_of(a.dtype)),
                  0)
            << "head dim " << head_dim << ", seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace verbatim::test
