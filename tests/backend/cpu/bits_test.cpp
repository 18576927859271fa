// Equal bits: for every thread count, instruction set, order of execution, batch and packing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stop_token>
#include <thread>

#include "backend/cpu/cases.h"
#include "backend/cpu/plans.h"
#include "verbatim/schedule.h"

namespace verbatim::test {
namespace {

constexpr TileShape kTile{16, 32};
constexpr int64_t kDocs[] = {70, 1, 0, 129};
constexpr int64_t kLength = 200;

Problem problem_of(int64_t length, Dtype dtype = Dtype::f32) {
  return {.batch = 2,
          .q_heads = 4,
          .kv_heads = 2,
          .q_len = length,
          .kv_len = length,
          .head_dim = 32,
          .head_dim_v = 16,
          .dtype = dtype};
}

/// Calls f(forward, backward) for every order of each pass, walked and split, and two by hand.
template <class F>
void for_every_order(const Problem& p, const Mask& mask, F&& f) {
  const Plan forward = forward_plan(p, mask, kTile, 2);
  const Plan backward = backward_plan(p, mask, kTile, Order::split_group);
  f(forward, backward);
  f(forward, backward_plan(p, mask, kTile, Order::rotating));
  for (const OrderInfo& info : orders()) {
    for (const char* suffix : {"", "/split"}) {
      PlanOptions options;
      options.pass = info.pass;
      options.order = std::string(info.name) + suffix;
      options.level = info.level;
      options.tile = kTile;
      const Plan plan = make_plan(p, mask, options);
      const bool is_forward = info.pass == Pass::forward;
      f(is_forward ? plan : forward, is_forward ? backward : plan);
    }
  }
}

TEST(Bits, EqualForEveryThreadCount) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Problem p = problem_of(kLength, dtype);
    p.batch = 1;
    for (const Mask& mask : every_mask(p.kv_heads)) {
      Case c(p, mask);
      for_every_order(p, mask, [&](const Plan& forward, const Plan& backward) {
        c.run(forward, backward, 1);
        const std::vector<std::string> expected = c.hashes();
        for (const int threads : {2, 3, 8}) {
          c.run(forward, backward, threads);
          EXPECT_EQ(c.hashes(), expected)
              << threads << " threads, " << backward.orders[0]->name << ", " << c.describe();
        }
      });
    }
  }
}

TEST(Bits, EqualForEveryInstructionSet) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const double softcap : {0.0, 2.0}) {
      Problem p = problem_of(kLength, dtype);
      p.batch = p.kv_heads = 1;
      p.q_heads = 2;
      p.head_dim = 20;
      p.softcap = softcap;
      p.dropout = softcap / 10;
      for (const Mask& mask : every_mask(p.kv_heads)) {
        Case c(p, mask, 3, 5, 2);
        const Plan forward = forward_plan(p, mask, {24, 40}, 2);
        const Plan backward = backward_plan(p, mask, {24, 40}, Order::ascending);
        std::vector<std::string> expected;
        for (const cpu::KernelTable* kernels : cpu::available_kernels()) {
          c.run(forward, backward, 2, *kernels);
          if (expected.empty()) expected = c.hashes();
          EXPECT_EQ(c.hashes(), expected) << kernels->name << ", " << c.describe();
        }
      }
    }
  }
}

/// Threads that want the cores as well.
class Load {
 public:
  explicit Load(int threads) {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([](const std::stop_token& stop) {
        while (!stop.stop_requested()) std::this_thread::yield();
      });
  }

 private:
  std::vector<std::jthread> threads_;  // joined, after a request to stop, when they go
};

/// Of every mask in every order, beside a load: a thousand with 3.
int repeats() {
  const char* value = std::getenv("VERBATIM_CPU_REPEATS");
  return value == nullptr ? 3 : std::atoi(value);
}

TEST(Bits, EqualOverRepeatsUnderLoad) {
  Problem p = problem_of(kLength, Dtype::bf16);
  p.batch = 1;
  const Load load(2);
  for (const Mask& mask : every_mask(p.kv_heads)) {
    Case c(p, mask);
    for_every_order(p, mask, [&](const Plan& forward, const Plan& backward) {
      c.run(forward, backward, 1);
      const std::vector<std::string> expected = c.hashes();
      for (int repeat = 0; repeat < repeats(); ++repeat) {
        c.run(forward, backward, 2 + repeat % 4);
        ASSERT_EQ(c.hashes(), expected)
            << "repeat " << repeat << ", " << backward.orders[0]->name << ", " << c.describe();
      }
    });
  }
}

TEST(Bits, EqualWhenChainsAreCutForFewWorkers) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Problem p = problem_of(kLength, dtype);
    for (const Mask& mask : {masks::full(kLength, kLength), masks::full_document(kDocs)}) {
      Case c(p, mask);
      PlanOptions options;
      options.order = "shift";
      options.placement = "queue";  // auto would cut what rotates through a group
      options.tile = kTile;
      const Plan forward = forward_plan(p, mask, kTile, 2), whole = make_plan(p, mask, options);
      c.run(forward, whole, 2);
      const std::vector<std::string> expected = c.hashes();
      options.residents = 2;
      const Plan cut = make_plan(p, mask, options);
      ASSERT_GT(cut.orders[0]->chains.size(), whole.orders[0]->chains.size());
      for (const int threads : {1, 2, 5}) {
        c.run(forward, cut, threads);
        EXPECT_EQ(c.hashes(), expected) << threads << " threads, " << c.describe();
      }
    }
  }
}

// Where chains share a tile, pieces pass on theirs apart from its sum.
TEST(Bits, EqualWhenPartsOfGroupsAreCutForFewWorkers) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Problem p = problem_of(kLength, dtype);
    p.q_heads = 4 * p.kv_heads;
    for (const Mask& mask : {masks::uniform_block_sparse(kLength, kLength, 24, 16, 0.4, 3, 1),
                             masks::full(kLength, kLength)}) {
      for (const char* order : {"matched/split", "matched/split:2", "shift/split"}) {
        Case c(p, mask);
        PlanOptions options;
        options.order = order;
        options.tile = kTile;
        const Plan forward = forward_plan(p, mask, kTile, 2), whole = make_plan(p, mask, options);
        c.run(forward, whole, 2);
        const std::vector<std::string> expected = c.hashes();
        options.workers = 2;
        const Plan cut = make_plan(p, mask, options);
        ASSERT_TRUE(std::ranges::any_of(cut.orders[0]->chains, &Chain::apart));
        for (const int threads : {1, 2, 5}) {
          c.run(forward, cut, threads);
          EXPECT_EQ(c.hashes(), expected)
              << order << ", " << threads << " threads, " << c.describe();
        }
      }
    }
  }
}

// One document rotates, the other is in parts: only chains that wait are cut.
TEST(Bits, EqualWhenDocumentsOfSeveralOrdersAreCutForFewWorkers) {
  constexpr TileShape kLarge{64, 128};
  const std::vector<int64_t> documents{12 * kLarge.kv, 8 * kLarge.kv}, prefixes{documents[0], 0};
  const Mask mask = masks::prefix_lm_document(documents, prefixes);
  Problem p = problem_of(mask.q_len(), Dtype::bf16);
  p.q_heads = 32;
  p.kv_heads = p.batch = 1;
  Case c(p, mask);
  PlanOptions options;
  options.placement = "queue";
  options.tile = kLarge;
  const Plan forward = forward_plan(p, mask, kLarge, 2), whole = make_plan(p, mask, options);
  ASSERT_GT(whole.residency, 2);
  c.run(forward, whole, 2);
  const std::vector<std::string> expected = c.hashes();
  options.residents = 2;
  const Plan cut = make_plan(p, mask, options);
  ASSERT_EQ(cut.residency, 1);
  EXPECT_EQ(cut.fingerprint(), whole.fingerprint());
  const auto count = [&](auto&& wanted) {
    return std::ranges::count_if(cut.orders[0]->chains, wanted);
  };
  EXPECT_GT(count([](const Chain& x) { return x.continues; }), 0) << "pieces";
  EXPECT_GT(count([](const Chain& x) { return x.addend > 0 && !x.continues; }), 0) << "parts";
  for (const int threads : {1, 2, 5}) {
    c.run(forward, cut, threads);
    EXPECT_EQ(c.hashes(), expected) << threads << " threads";
  }
}

/// Copies rows [from, from + length) of (b, h) onto the rows of another tensor.
void copy_rows(const TensorView& source, int64_t b, int64_t h, int64_t from, const TensorView& to,
               int64_t to_b, int64_t to_h) {
  for (int64_t l = 0; l < to.shape[1]; ++l)
    std::memcpy(to.row<float>(to_b, l, to_h), source.row<float>(b, from + l, h),
                source.shape[3] * sizeof(float));
}

/// Whether one head of `part` holds the bits of rows from .. of a head of `whole`.
void expect_same_rows(const TensorView& whole, int64_t b, int64_t h, int64_t from,
                      const TensorView& part, int64_t part_b, int64_t part_h, const char* name) {
  for (int64_t l = 0; l < part.shape[1]; ++l)
    ASSERT_EQ(0, std::memcmp(whole.row<float>(b, from + l, h), part.row<float>(part_b, l, part_h),
                             part.shape[3] * sizeof(float)))
        << name << " row " << l;
}

void run_both(Case& c, Order order) {
  c.run(forward_plan(c.problem, c.mask, kTile, 1), backward_plan(c.problem, c.mask, kTile, order));
}

/// Both passes by the names of their orders.
void run_both(Case& c, const std::string& forward, const std::string& backward) {
  PlanOptions options;
  options.tile = kTile;
  options.order = backward;
  const Plan second = make_plan(c.problem, c.mask, options);
  options.pass = Pass::forward;
  options.order = forward;
  c.run(make_plan(c.problem, c.mask, options), second);
}

/// Backward orders that keep the level invariant, walked and split, and auto.
std::vector<std::string> invariant_orders() {
  std::vector<std::string> names{"auto"};
  for (const OrderInfo& info : orders())
    if (info.pass == Pass::backward && info.level == Level::invariant)
      names.insert(names.end(), {info.name, std::string(info.name) + "/split"});
  return names;
}

/// Gives a KV head of `to` and its group of two the inputs of one of `from`.
void copy_head(const Case& from, int64_t b, int64_t kv_head, const Case& to, int64_t to_b,
               int64_t to_kv_head) {
  for (int64_t i = 0; i < 2; ++i) {
    copy_rows(from.q.view(), b, 2 * kv_head + i, 0, to.q.view(), to_b, 2 * to_kv_head + i);
    copy_rows(from.dout.view(), b, 2 * kv_head + i, 0, to.dout.view(), to_b, 2 * to_kv_head + i);
  }
  copy_rows(from.k.view(), b, kv_head, 0, to.k.view(), to_b, to_kv_head);
  copy_rows(from.v.view(), b, kv_head, 0, to.v.view(), to_b, to_kv_head);
}

/// Whether a KV head of `part` and its group have the results of one of `whole`.
void expect_same_head(const Case& whole, int64_t b, int64_t kv_head, const Case& part,
                      int64_t part_b, int64_t part_kv_head) {
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t h = 2 * kv_head + i, part_h = 2 * part_kv_head + i;
    expect_same_rows(whole.o.view(), b, h, 0, part.o.view(), part_b, part_h, "o");
    expect_same_rows(whole.dq.view(), b, h, 0, part.dq.view(), part_b, part_h, "dq");
  }
  expect_same_rows(whole.dk.view(), b, kv_head, 0, part.dk.view(), part_b, part_kv_head, "dk");
  expect_same_rows(whole.dv.view(), b, kv_head, 0, part.dv.view(), part_b, part_kv_head, "dv");
}

TEST(Bits, EqualAloneAndInAPermutedBatch) {
  const Problem batch = problem_of(150);
  Problem single = batch;
  single.batch = single.kv_heads = 1;
  single.q_heads = 2;
  const Mask mask = masks::causal(150, 150);
  for (const std::string& order : invariant_orders()) {
    SCOPED_TRACE(order);
    Case all(batch, mask), permuted(batch, mask);
    for (const int64_t b : {0, 1})
      for (const int64_t h : {0, 1}) copy_head(all, b, h, permuted, 1 - b, 1 - h);
    run_both(all, "auto", order);
    run_both(permuted, "auto", order);
    for (const int64_t b : {0, 1}) {
      for (const int64_t h : {0, 1}) {
        Case one(single, mask);
        copy_head(all, b, h, one, 0, 0);
        run_both(one, "auto", order);
        expect_same_head(all, b, h, permuted, 1 - b, 1 - h);
        expect_same_head(all, b, h, one, 0, 0);
      }
    }
  }
}

TEST(Bits, EqualForADocumentAloneAndPacked) {
  Problem packed = problem_of(kLength);
  packed.batch = 1;
  for (const std::string& order : invariant_orders()) {
    const std::string forward = order == "auto" ? order : "descending/split";
    Case all(packed, masks::causal_document(kDocs));
    run_both(all, forward, order);
    int64_t begin = 0;
    for (const int64_t length : kDocs) {
      Problem alone = packed;
      alone.q_len = alone.kv_len = length;
      Case one(alone, masks::causal(length, length));
      for (int64_t h = 0; h < packed.q_heads; ++h) {
        copy_rows(all.q.view(), 0, h, begin, one.q.view(), 0, h);
        copy_rows(all.dout.view(), 0, h, begin, one.dout.view(), 0, h);
      }
      for (int64_t h = 0; h < packed.kv_heads; ++h) {
        copy_rows(all.k.view(), 0, h, begin, one.k.view(), 0, h);
        copy_rows(all.v.view(), 0, h, begin, one.v.view(), 0, h);
      }
      run_both(one, forward, order);
      SCOPED_TRACE(order);
      for (int64_t h = 0; h < packed.q_heads; ++h) {
        expect_same_rows(all.o.view(), 0, h, begin, one.o.view(), 0, h, "o");
        expect_same_rows(all.dq.view(), 0, h, begin, one.dq.view(), 0, h, "dq");
      }
      for (int64_t h = 0; h < packed.kv_heads; ++h) {
        expect_same_rows(all.dk.view(), 0, h, begin, one.dk.view(), 0, h, "dk");
        expect_same_rows(all.dv.view(), 0, h, begin, one.dv.view(), 0, h, "dv");
      }
      begin += length;
    }
  }
}

/// Document i of a packed problem against the same document in slot i of a batch.
TEST(Bits, DropoutIsEqualAloneAndPacked) {
  Problem packed = problem_of(2 * kLength);
  packed.batch = 1;
  packed.dropout = 0.3;
  packed.seed = 11;
  const int64_t prefix[] = {13};
  const std::vector<int64_t> docs = {70, 1, 0, 129, 61, 139};
  for (const auto& mask : {masks::causal_document(docs), masks::prefix_lm_document(docs, prefix)}) {
    Case all(packed, mask);
    run_both(all, Order::descending);
    EXPECT_TRUE(all.check().within(2)) << all.describe();
    int64_t begin = 0;
    for (size_t d = 0; d < docs.size(); begin += docs[d++]) {
      const auto slot = static_cast<int64_t>(d);
      const HeadMask alone = mask.head(0, 0).crop(begin, begin + docs[d], begin, begin + docs[d]);
      Problem batch = packed;
      batch.batch = slot + 1;
      batch.q_len = batch.kv_len = docs[d];
      Case one(batch, Mask("document", "{}", alone));
      for (int64_t h = 0; h < packed.q_heads; ++h) {
        copy_rows(all.q.view(), 0, h, begin, one.q.view(), slot, h);
        copy_rows(all.dout.view(), 0, h, begin, one.dout.view(), slot, h);
      }
      for (int64_t h = 0; h < packed.kv_heads; ++h) {
        copy_rows(all.k.view(), 0, h, begin, one.k.view(), slot, h);
        copy_rows(all.v.view(), 0, h, begin, one.v.view(), slot, h);
      }
      run_both(one, Order::descending);
      for (int64_t h = 0; h < packed.q_heads; ++h) {
        expect_same_rows(all.o.view(), 0, h, begin, one.o.view(), slot, h, "o");
        expect_same_rows(all.dq.view(), 0, h, begin, one.dq.view(), slot, h, "dq");
      }
      for (int64_t h = 0; h < packed.kv_heads; ++h) {
        expect_same_rows(all.dk.view(), 0, h, begin, one.dk.view(), slot, h, "dk");
        expect_same_rows(all.dv.view(), 0, h, begin, one.dv.view(), slot, h, "dv");
      }
    }
  }
}

/// The second entry of a padded batch against the same entry of a batch without padding: padding
/// takes no number and no position.
TEST(Bits, DropoutIsEqualAloneAndPadded) {
  constexpr int64_t kLive = 129;
  const int64_t lengths[] = {kLength, kLive}, keys[] = {kLive};
  const HeadMask left_keys{kLength, kLength, {{0, kLength, kLength - kLive, kLength}}, {}, {}};
  struct {
    Mask padded, alone;
    int64_t begin;
  } const cases[] = {
      {masks::causal(kLength, kLength).with_lengths(lengths, lengths), masks::causal(kLive, kLive),
       0},
      {masks::causal(kLength, kLength).with_lengths(lengths, lengths, Side::left),
       masks::causal(kLive, kLive), kLength - kLive},
      {masks::full(kLength, kLength).with_key_lengths(keys), masks::full(kLive, kLive), 0},
      {Mask("left", "{}", left_keys), masks::full(kLive, kLive), kLength - kLive}};
  for (const auto& [mask, alone_mask, begin] : cases) {
    Problem padded = problem_of(kLength);
    padded.dropout = 0.3;
    padded.seed = 11;
    Problem alone = padded;
    alone.q_len = alone.kv_len = kLive;
    const Mask broadcast =
        mask.batch() == 2 ? mask : Mask("both", "{}", mask.variants(), {0, 0}, 2, 1);
    Case all(padded, broadcast), one(alone, alone_mask);
    for (int64_t h = 0; h < padded.q_heads; ++h) {
      copy_rows(all.q.view(), 1, h, begin, one.q.view(), 1, h);
      copy_rows(all.dout.view(), 1, h, begin, one.dout.view(), 1, h);
      // Rows beside those of the keys see them, but have no gradient.
      for (int64_t l = 0; l < kLength; ++l)
        if (l < begin || l >= begin + kLive)
          for (int64_t d = 0; d < padded.head_dim_v; ++d) all.dout.set(1, l, h, d, 0);
    }
    for (int64_t h = 0; h < padded.kv_heads; ++h) {
      copy_rows(all.k.view(), 1, h, begin, one.k.view(), 1, h);
      copy_rows(all.v.view(), 1, h, begin, one.v.view(), 1, h);
    }
    run_both(all, "auto", "auto");
    run_both(one, "auto", "auto");
    EXPECT_TRUE(all.check().within(2)) << all.describe();
    SCOPED_TRACE(all.describe());
    for (int64_t h = 0; h < padded.q_heads; ++h) {
      expect_same_rows(all.o.view(), 1, h, begin, one.o.view(), 1, h, "o");
      expect_same_rows(all.dq.view(), 1, h, begin, one.dq.view(), 1, h, "dq");
    }
    for (int64_t h = 0; h < padded.kv_heads; ++h) {
      expect_same_rows(all.dk.view(), 1, h, begin, one.dk.view(), 1, h, "dk");
      expect_same_rows(all.dv.view(), 1, h, begin, one.dv.view(), 1, h, "dv");
    }
  }
}

TEST(Bits, DropoutDoesNotDependOnTiles) {
  Problem p = problem_of(90);
  p.dropout = 0.5;
  p.seed = 5;
  Case c(p, masks::full(90, 90));
  for (const TileShape tile : {TileShape{90, 90}, TileShape{13, 21}}) {
    c.run(forward_plan(p, c.mask, tile), backward_plan(p, c.mask, tile, Order::ascending));
    EXPECT_TRUE(c.check().within(2)) << tile.q << " x " << tile.kv;
  }
}

}  // namespace
}  // namespace verbatim::test
