// Blocks that an index tensor names: random lists against double precision over a mask that is made
// of their definition pair by pair, compositions against their parts, and what is refused.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "backend/cpu/cases.h"
#include "mask/random_mask.h"
#include "tl/programs.h"
#include "verbatim/selected.h"
#include "verbatim/verbatim.h"

namespace verbatim::test {
namespace {

constexpr int32_t kNone = -1;

/// Lists for a problem whose documents, one behind the other, are its queries and its last keys;
/// blocks and tiles start anew at each.
struct Drawn {
  Problem problem;
  std::vector<int64_t> documents;  // one: its queries may be fewer than its keys
  TileShape tile;
  std::string target;
  int64_t room = 0;
  std::vector<int32_t> entries{};
  bool by_query = false;  // a list for each query: tile.q is 1

  bool packed() const { return documents.size() > 1; }
  Mask mask() const {
    return packed() ? masks::causal_document(documents)
                    : masks::causal(problem.q_len, problem.kv_len);
  }
  std::string program() const {
    const tl::ReasonOptions options{
        problem, {by_query ? 64 : tile.q, tile.kv}, target, Level::invariant};
    std::string text = sketch("selected");
    if (by_query) text = replaced(text, "sel = index", "sel = query_index");
    return tl::reason(packed() ? replaced(text, "with causal", "with causal_document") : text,
                      "selected", options);
  }
  SelectedBlocks blocks() const {
    return {entries.data(), {problem.batch, problem.kv_heads, tiles(problem.q_len, tile.q), room}};
  }
  SelectedAttention attention() const { return SelectedAttention(problem, mask(), program()); }

  /// The document of a position, where it starts, and the tiles of `size` before it.
  struct Place {
    int64_t document, begin, tiles;
  };
  Place place(int64_t position, int64_t size) const {
    Place p{0, 0, 0};
    while (packed() && position >= p.begin + documents[p.document]) {
      p.tiles += (documents[p.document] + size - 1) / size;
      p.begin += documents[p.document++];
    }
    return p;
  }
  /// Tiles of `size` in a length.
  int64_t tiles(int64_t length, int64_t size) const {
    if (length == 0) return 0;
    return tile_of(length - 1, size) + 1;
  }
  int64_t tile_of(int64_t position, int64_t size) const {
    const Place p = place(position, size);
    return p.tiles + (position - p.begin) / size;
  }
  bool sees(int64_t b, int64_t h, int64_t q, int64_t k) const {
    if (k > q + problem.kv_len - problem.q_len) return false;
    if (packed() && place(q, 1).document != place(k, 1).document) return false;
    const int64_t row = (b * problem.kv_heads + h) * tiles(problem.q_len, tile.q);
    const auto list = entries.begin() + (row + tile_of(q, tile.q)) * room;
    return std::find(list, list + room, tile_of(k, tile.kv)) != list + room;
  }
  /// What every head sees, pair by pair.
  Mask definition() const {
    const auto [q_len, kv_len] = std::pair(problem.q_len, problem.kv_len);
    std::vector<HeadMask> heads;
    for (int64_t b = 0; b < problem.batch; ++b)
      for (int64_t h = 0; h < problem.kv_heads; ++h) {
        std::vector<uint8_t> dense(q_len * kv_len);
        for (int64_t q = 0; q < q_len; ++q)
          for (int64_t k = 0; k < kv_len; ++k) dense[q * kv_len + k] = sees(b, h, q, k);
        heads.push_back(masks::from_dense(dense, q_len, kv_len).head(0, 0));
      }
    std::vector<int32_t> of_head(heads.size());
    std::iota(of_head.begin(), of_head.end(), 0);
    return Mask("definition", "{}", std::move(heads), std::move(of_head), problem.batch,
                problem.kv_heads);
  }
  std::string text() const {
    return fmt::format("{} documents {} tiles {}x{} target {} room {}", to_json(problem),
                       fmt::join(documents, ","), tile.q, tile.kv, target, room);
  }
};

/// Some of the blocks that the queries of each tile see, in any sequence; often none.
void draw_lists(Rng& rng, Drawn& d) {
  const Problem& p = d.problem;
  const int64_t rows = d.tiles(p.q_len, d.tile.q);
  std::vector<std::vector<int32_t>> lists;
  for (int64_t i = 0; i < p.batch * p.kv_heads * rows; ++i) {
    int64_t last_query = p.q_len - 1;
    while (d.tile_of(last_query, d.tile.q) != i % rows) --last_query;
    const int64_t last_key = last_query + p.kv_len - p.q_len;
    const int64_t last = d.tile_of(last_key, d.tile.kv);
    std::vector<int32_t> visible;
    for (int64_t block = d.place(last_key, d.tile.kv).tiles; block <= last; ++block)
      visible.push_back(static_cast<int32_t>(block));
    std::shuffle(visible.begin(), visible.end(), rng);
    visible.resize(uniform(rng, 0, std::ssize(visible)));
    d.room = std::max(d.room, std::ssize(visible));
    lists.push_back(std::move(visible));
  }
  d.room += uniform(rng, 0, 2);
  for (std::vector<int32_t>& list : lists) {
    list.resize(d.room, kNone);
    d.entries.insert(d.entries.end(), list.begin(), list.end());
  }
}

Drawn draw(uint64_t seed, bool by_query = false) {
  Rng rng(seed);
  Drawn d{};
  d.by_query = by_query;
  Problem& p = d.problem;
  p.batch = uniform(rng, 1, by_query ? 2 : 3);
  p.kv_heads = uniform(rng, 1, by_query ? 2 : 3);
  p.q_heads = p.kv_heads * (by_query ? int64_t{1} << uniform(rng, 0, 4) : uniform(rng, 1, 3));
  const std::array<std::pair<int64_t, int64_t>, 4> dims{
      {{64, 64}, {128, 128}, {192, 128}, {64, 32}}};
  std::tie(p.head_dim, p.head_dim_v) = dims[uniform(rng, 0, 3)];
  if (uniform(rng, 0, 3) == 0) p.scale = static_cast<double>(uniform(rng, -100, 100)) / 100;
  const tl::Target& target = tl::targets()[uniform(rng, 0, std::ssize(tl::targets()) - 1)];
  d.target = target.name;
  p.dtype = target.takes(Dtype::e4m3) && !by_query && uniform(rng, 0, 1) ? Dtype::e4m3
            : target.takes(Dtype::bf16) && uniform(rng, 0, 1)            ? Dtype::bf16
                                                                         : Dtype::f16;
  const bool small = target.shared_bytes < 65 * 1024 && p.head_dim == 192;
  d.tile = {by_query ? 1 : 64, uniform(rng, 0, 1) && !small ? 64 : 32};
  const int64_t longest = by_query ? 100 : 300;  // each query multiplies a whole tile
  if (uniform(rng, 0, 1)) {
    for (int64_t i = uniform(rng, 2, 4); i > 0; --i)
      d.documents.push_back(uniform(rng, 0, longest / 2));
    p.q_len = p.kv_len = std::reduce(d.documents.begin(), d.documents.end());
  } else {
    p.kv_len = uniform(rng, 1, longest);
    p.q_len = uniform(rng, 0, 1) ? p.kv_len : uniform(rng, 1, p.kv_len);
    d.documents = {p.kv_len};
  }
  draw_lists(rng, d);
  return d;
}

int64_t number(const char* variable, int64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoll(value);
}

/// Runs so many problems of their own seeds.
void expect_random_lists(bool by_query, int64_t otherwise) {
  const int64_t first = number("VERBATIM_TL_SEED", 1);
  const int64_t cases = number("VERBATIM_TL_CASES", otherwise);
  double worst = 0;
  for (int64_t seed = first; seed < first + cases; ++seed) {
    const Drawn d = draw(seed, by_query);
    SCOPED_TRACE(fmt::format("VERBATIM_TL_SEED={} VERBATIM_TL_CASES=1: {}", seed, d.text()));
    Case c(d.problem, d.definition(), seed);
    if (seed % 10 == 0 && d.problem.kv_len > 0) c.v.set(0, d.problem.kv_len / 2, 0, 3, NAN);
    if (seed % 10 == 3 && d.problem.kv_len > 0) c.k.set(0, d.problem.kv_len / 3, 0, 3, NAN);
    if (seed % 10 == 5 && d.problem.q_len > 0) c.q.set(0, d.problem.q_len / 2, 0, 3, NAN);
    const SelectedAttention attention = d.attention();
    attention.forward(c.forward(), d.blocks(), {.threads = 1});
    const Check check = check_forward(d.problem, c.mask, c.forward(), Selection::all(d.problem));
    EXPECT_TRUE(check.within(2)) << fmt::format(
        "o {:.3g} at {}, lse {:.3g} at {}, {} and {} non-finite", check.o.ratio, check.o.worst,
        check.lse.ratio, check.lse.worst, check.o.nonfinite_mismatches,
        check.lse.nonfinite_mismatches);
    EXPECT_TRUE(c.guards_intact());
    const auto hashes = c.hashes();
    for (const int threads : {2, 5}) {
      for (GuardedTensor* output : {&c.o, &c.lse}) output->poison();
      attention.forward(c.forward(), d.blocks(), {.threads = threads});
      EXPECT_EQ(c.hashes(), hashes) << threads << " threads";
    }
    worst = std::max(worst, check.worst_ratio());
    if (testing::Test::HasFailure()) return;
  }
  fmt::print("{} problems, worst error ratio {:.2f}\n", cases, worst);
}

TEST(Selected, RandomLists) { expect_random_lists(false, 100); }

// The heads of a group are the rows of a tile.
TEST(Selected, RandomListsOfSingleQueries) { expect_random_lists(true, 40); }

/// Rows [begin, begin + o.shape[1]) of entry b of `all` are those of `o`, bit by bit.
void expect_part(const Case& part, const Case& all, int64_t b, int64_t begin) {
  const TensorView &o = part.o.view(), &of_all = all.o.view();
  for (int64_t h = 0; h < o.shape[2]; ++h)
    for (int64_t row = 0; row < o.shape[1]; ++row) {
      for (int64_t d = 0; d < o.shape[3]; ++d)
        ASSERT_EQ(o.row<uint16_t>(0, row, h)[d], of_all.row<uint16_t>(b, begin + row, h)[d]);
      const float got = part.lse.row_view().row(0, h)[row];
      const float expected = all.lse.row_view().row(b, h)[begin + row];
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(expected));
    }
}

/// Copies rows [begin, ..) of entry b of `from` over all of `to`.
void copy_rows(const GuardedTensor& from, int64_t b, int64_t begin, const GuardedTensor& to) {
  const TensorView &in = from.view(), &out = to.view();
  for (int64_t row = 0; row < out.shape[1]; ++row)
    for (int64_t h = 0; h < out.shape[2]; ++h)
      std::copy_n(in.row<uint16_t>(b, begin + row, h), out.shape[3], out.row<uint16_t>(0, row, h));
}

TEST(Selected, APackedDocumentAndABatchEntryAreThemselvesAlone) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Drawn d = draw(seed, seed % 4 == 0);
    if (d.problem.dtype == Dtype::e4m3) continue;
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, d.text()));
    Case all(d.problem, d.mask(), seed);
    d.attention().forward(all.forward(), d.blocks(), {.threads = 2});
    for (int64_t b = 0; b < d.problem.batch; ++b) {
      int64_t begin = 0;
      for (const int64_t length : d.documents) {
        if (length == 0) continue;
        Drawn alone = d;
        alone.problem.batch = 1;
        if (d.packed()) alone.problem.q_len = alone.problem.kv_len = length;
        alone.documents = {length};
        alone.entries.clear();
        const int64_t rows = d.tiles(d.problem.q_len, d.tile.q);
        const int64_t first_row = d.packed() ? d.place(begin, d.tile.q).tiles : 0;
        const auto first_block =
            static_cast<int32_t>(d.packed() ? d.place(begin, d.tile.kv).tiles : 0);
        for (int64_t h = 0; h < d.problem.kv_heads; ++h)
          for (int64_t row = 0; row < alone.tiles(alone.problem.q_len, d.tile.q); ++row)
            for (int64_t i = 0; i < d.room; ++i) {
              const int32_t block =
                  d.entries[((b * d.problem.kv_heads + h) * rows + first_row + row) * d.room + i];
              alone.entries.push_back(block == kNone ? kNone : block - first_block);
            }
        Case part(alone.problem, alone.mask());
        copy_rows(all.q, b, begin, part.q);
        copy_rows(all.k, b, begin, part.k);
        copy_rows(all.v, b, begin, part.v);
        alone.attention().forward(part.forward(), alone.blocks(), {.threads = 1});
        expect_part(part, all, b, begin);
        begin += length;
      }
    }
    if (HasFailure()) return;
  }
}

// Rows of a product do not know each other, and a block of which a query sees nothing adds nothing.
TEST(Selected, ListsOfQueriesThatAreThoseOfTheirTileGiveItsBits) {
  Drawn tiles{.problem = {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 130, .kv_len = 130},
              .documents = {130},
              .tile = {64, 32},
              .target = "a100",
              .room = 5};
  tiles.problem.dtype = Dtype::bf16;
  Drawn queries = tiles;
  queries.tile.q = 1;
  queries.by_query = true;
  for (Drawn* d : {&tiles, &queries})
    for (int64_t head = 0; head < 4; ++head)
      for (int64_t row = 0; row < d->tiles(130, d->tile.q); ++row) {
        const int64_t last = std::min((row + 1) * d->tile.q, int64_t{130}) - 1;
        for (int32_t block = static_cast<int32_t>(last / 32); block >= 0; --block)
          d->entries.push_back(block);
        d->entries.resize((head * d->tiles(130, d->tile.q) + row + 1) * d->room, kNone);
      }
  Case a(tiles.problem, tiles.mask()), b(tiles.problem, tiles.mask());
  tiles.attention().forward(a.forward(), tiles.blocks());
  queries.attention().forward(b.forward(), queries.blocks());
  EXPECT_EQ(a.hashes(), b.hashes());
  queries.entries[100 * queries.room + 1] = kNone;  // one query without its other blocks
  for (int i = 2; i < 5; ++i) queries.entries[100 * queries.room + i] = kNone;
  queries.attention().forward(b.forward(), queries.blocks());
  EXPECT_NE(a.hashes(), b.hashes());
}

TEST(Selected, AllBlocksInAPlansOrderAreThePlansBits) {
  Drawn d{.problem = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 200, .kv_len = 250},
          .documents = {250},
          .tile = {64, 64},
          .target = "a100",
          .room = 4};
  d.problem.dtype = Dtype::bf16;
  for (int64_t list = 0; list < 4; ++list)
    for (int32_t row = 0; row < 4; ++row)
      for (int32_t block = 0; block < 4; ++block)  // the last query of a tile sees key 113 + 64 row
        d.entries.push_back(64 * block <= std::min(113 + 64 * row, 249) ? block : kNone);
  Case planned(d.problem, d.mask()), selected(d.problem, d.mask());
  AttentionOptions options;
  options.forward_order = "ascending";
  options.plan.tile = d.tile;
  options.kernels = {tl::reason(sketch("forward"), "forward", {d.problem, d.tile, d.target})};
  Attention(d.problem, d.mask(), options).forward(planned.forward());
  d.attention().forward(selected.forward(), d.blocks());
  EXPECT_EQ(selected.hashes(), planned.hashes());
  std::swap(d.entries[3 * d.room], d.entries[3 * d.room + 1]);  // another order, other bits
  d.attention().forward(selected.forward(), d.blocks());
  EXPECT_NE(selected.hashes(), planned.hashes());
}

/// The error of a call; none where nothing is refused.
template <class F>
Error refusal(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::io, "test", "nothing was refused");
}

TEST(Selected, ListsAreCheckedBeforeAnythingRuns) {
  Drawn d{.problem = {.batch = 2, .q_heads = 2, .kv_heads = 2, .q_len = 128, .kv_len = 128},
          .documents = {128},
          .tile = {64, 32},
          .target = "a100",
          .room = 3};
  d.problem.dtype = Dtype::bf16;
  const std::vector<int32_t> right{0, 1, kNone, 3, 0, 2};
  for (int i = 0; i < 4; ++i) d.entries.insert(d.entries.end(), right.begin(), right.end());
  const SelectedAttention attention = d.attention();
  Case c(d.problem, d.mask());
  const std::vector<std::string> before = c.hashes();
  struct Fault {
    int64_t at;
    int32_t entry;
    const char *got, *expected;
  };
  for (const Fault& f : {Fault{1, 2, "sel[0, 0, 0, 1] = 2", "0 to 1"},  // behind its queries
                         {11, 4, "sel[0, 1, 1, 2] = 4", "0 to 3, or -1 behind the last"},
                         {12, -2, "sel[1, 0, 0, 0] = -2", "0 to 3, or -1 behind the last"},
                         {23, 3, "sel[1, 1, 1, 2] = 3", "each block once"},
                         {21, kNone, "sel[1, 1, 1, 1] = 0", "-1 behind a -1"}}) {
    Drawn wrong = d;
    wrong.entries[f.at] = f.entry;
    const Error error = refusal([&] { attention.forward(c.forward(), wrong.blocks()); });
    EXPECT_EQ(error.details().got, f.got);
    EXPECT_EQ(error.details().expected, f.expected);
    EXPECT_EQ(error.details().argument, "sel");
    EXPECT_EQ(c.hashes(), before);
  }
  SelectedBlocks blocks = d.blocks();
  blocks.shape[2] = 3;
  EXPECT_EQ(refusal([&] { attention.forward(c.forward(), blocks); }).details().got,
            "shape (2, 2, 3, 3)");
  blocks = d.blocks();
  blocks.data = nullptr;
  EXPECT_EQ(refusal([&] { attention.forward(c.forward(), blocks); }).details().got,
            "a null pointer");
  EXPECT_EQ(c.hashes(), before);
  attention.forward(c.forward(), d.blocks());
  EXPECT_NE(c.hashes(), before);
}

// Lists are checked in parts of 4,096, by several threads.
TEST(Selected, OfManyListsTheFirstThatIsWrongIsRefused) {
  Drawn d{.problem = {.batch = 2, .q_heads = 2, .kv_heads = 2, .q_len = 3000, .kv_len = 3000},
          .documents = {3000},
          .tile = {1, 32},
          .target = "a100",
          .room = 2,
          .by_query = true};
  d.problem.dtype = Dtype::bf16;
  for (int64_t list = 0; list < 4 * 3000; ++list)
    d.entries.insert(d.entries.end(), {static_cast<int32_t>(list % 3000 / 32), kNone});
  const SelectedAttention attention = d.attention();
  attention.check(d.blocks());
  for (const int64_t list : {11999, 9001, 5000, 4095}) {  // each is before the ones of before
    d.entries[2 * list] = 94;
    EXPECT_EQ(refusal([&] { attention.check(d.blocks()); }).details().got,
              fmt::format("sel[{}, {}, {}, 0] = 94", list / 6000, list / 3000 % 2, list % 3000));
  }
}

TEST(Selected, WhatAProgramIsNotMadeForIsRefusedByName) {
  Drawn d{.problem = {.q_len = 128, .kv_len = 128},
          .documents = {128},
          .tile = {64, 64},
          .target = "a100"};
  d.problem.dtype = Dtype::bf16;
  const std::string program = d.program();
  const auto argument = [&](const Problem& p, const Mask& mask, const std::string& text) {
    return refusal([&] { SelectedAttention(p, mask, text); }).details().argument;
  };
  EXPECT_EQ(argument(d.problem, masks::full(128, 128), program), "mask");
  EXPECT_EQ(argument(d.problem, masks::causal(128, 130), program), "mask");
  const std::array lengths{int64_t{100}, int64_t{128}};
  Problem two = d.problem;
  two.batch = 2;
  EXPECT_EQ(argument(two, d.mask().with_lengths(lengths, lengths), program), "mask");
  const std::array same{int64_t{128}, int64_t{128}};
  EXPECT_EQ(argument(d.problem, d.mask().with_lengths(same, same), program), "mask");
  EXPECT_EQ(argument(two, d.mask().with_lengths(same, same), program), "");
  Problem p = d.problem;
  p.dropout = 0.5;
  EXPECT_EQ(argument(p, d.mask(), program), "dropout");
  p = d.problem;
  p.head_dim = 128;
  EXPECT_EQ(argument(p, d.mask(), program), "head_dim");
  EXPECT_EQ(argument(d.problem, d.mask(), code("forward")), "kernel");
  EXPECT_EQ(argument(d.problem, d.mask(), sketch("selected")), "kernel");
  d.by_query = true;
  const std::string of_queries = d.program();
  p = d.problem;
  p.q_heads = 65;
  EXPECT_EQ(argument(p, d.mask(), of_queries), "q_heads");
  p.q_heads = 64;
  EXPECT_EQ(argument(p, d.mask(), of_queries), "");
  d.target = "l40s";
  d.problem.dtype = Dtype::e4m3;
  EXPECT_EQ(argument(d.problem, d.mask(), d.program()), "dtype");
  EXPECT_EQ(refusal([&] { tl::emit(d.program(), "s.tl", {}); }).details().argument, "dtype");
}

}  // namespace
}  // namespace verbatim::test
