// Scores far from zero, and values that are no numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backend/cuda/gpu_case.h"
#include "core/random.h"

namespace verbatim::test {
namespace {

/// Q and K whose every product is near `score` at scale 1.
void point_at(GpuCase& c, double score) {
  const double size = std::sqrt(std::abs(score) / static_cast<double>(c.problem.head_dim));
  const auto fill = [&](GpuTensor& tensor, double mean, uint64_t seed) {
    const auto shape = tensor.host.view().shape;
    uint64_t i = 0;
    for (int64_t b = 0; b < shape[0]; ++b)
      for (int64_t l = 0; l < shape[1]; ++l)
        for (int64_t h = 0; h < shape[2]; ++h)
          for (int64_t d = 0; d < shape[3]; ++d)
            tensor.host.set(b, l, h, d, static_cast<float>(mean + 0.05 * normal_at(seed, i++)));
    tensor.upload();
  };
  fill(c.q, score < 0 ? -size : size, 1);
  fill(c.k, size, 2);
}

TEST(Extremes, ScoresFarFromZero) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  // exp of a padded score of 0 minus an LSE below -88.7 overflows; beyond 5e4 lie the finite
  // stand-ins for -inf of other kernels, and roundings of a score that show in P.
  for (const double score : {-150.0, 150.0, -1000.0, 1000.0, -5.5e4, 5.5e4}) {
    double worst = 0;
    for (const HeadDims& dims : every_head_dims()) {
      for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
        for (const auto& mask : {masks::causal(192, 192), masks::full(320, 65), masks::full(1, 1),
                                 masks::full(1, 300), masks::causal(40, 168)}) {
          Problem p = problem_of(mask, dims, 1);
          p.dtype = dtype;
          p.scale = 1;
          GpuCase c(p, mask, 5);
          point_at(c, score);
          c.run(*gpu(), c.plan(Pass::forward, "ascending"), c.plan(Pass::backward, "descending"));
          const Check check = c.check();
          const auto where = fmt::format("scores near {}, head dims {}, {}, {} x {}", score,
                                         to_string(dims), to_string(dtype), p.q_len, p.kv_len);
          for (const Comparison& o : {check.o, check.lse, *check.dq, *check.dk, *check.dv}) {
            EXPECT_EQ(o.nonfinite_mismatches, 0) << where;
          }
          worst = std::max(worst, check.worst_ratio());
          double ratio = 0;
          if (std::abs(score) < 5e4) {
            EXPECT_EQ(c.examine(ratio), "") << where;
          }
        }
      }
    }
    fmt::print("scores near {}: error ratio up to {:.2f}\n", score, worst);
  }
}

// V and dO are zeros of either sign, and so is every sum; a scale below 0 would make -0 of +0.
TEST(Extremes, ResultsThatAreZeroArePositive) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(200, 200);
  for (const std::string& arithmetic : {std::string("sm80"), gpu_arithmetic()})
    for (const HeadDims& dims : every_head_dims())
      for (const Dtype dtype : {Dtype::bf16, Dtype::f16})
        for (const char* order : {"descending", "descending/split"})
          for (const double scale : {0.2, -0.2}) {
            Problem p = problem_of(mask, dims, 1);
            p.dtype = dtype;
            p.scale = scale;
            GpuCase c(p, mask, 5);
            for (GpuTensor* input : {&c.v, &c.dout}) {
              const auto shape = input->host.view().shape;
              for (int64_t l = 0; l < shape[1]; ++l)
                for (int64_t h = 0; h < shape[2]; ++h)
                  for (int64_t d = 0; d < shape[3]; ++d)
                    input->host.set(0, l, h, d, (l + d) % 3 == 0 ? 0.0f : -0.0f);
              input->upload();
            }
            c.run(*gpu(), c.plan(Pass::forward, "ascending", {0, 0}, "auto", 132, arithmetic),
                  c.plan(Pass::backward, order, {0, 0}, "auto", 132, arithmetic));
            for (GpuTensor* output : {&c.o, &c.dq, &c.dk, &c.dv}) {
              const auto shape = output->host.view().shape;
              for (int64_t l = 0; l < shape[1]; ++l)
                for (int64_t h = 0; h < shape[2]; ++h)
                  for (int64_t d = 0; d < shape[3]; ++d) {
                    const float x = output->host.get(0, l, h, d);
                    ASSERT_TRUE(x == 0 && !std::signbit(x))
                        << fmt::format("{}, {}, head dims {}, scale {}: {} at {}, {}, {}",
                                       arithmetic, order, to_string(dims), scale, x, l, h, d);
                  }
            }
          }
}

int32_t tile_of(const std::vector<int64_t>& edges, int64_t position) {
  return static_cast<int32_t>(std::ranges::upper_bound(edges, position) - edges.begin()) - 1;
}

bool visits(const TileMap& tiles, int32_t q_tile, int32_t kv_tile) {
  return std::ranges::any_of(tiles.row(q_tile), [&](const TileRun& run) {
    return run.first <= kv_tile && kv_tile < run.last;
  });
}

/// Queries and keys whose tiles meet a value at `position` of the queries or of the keys, in the
/// forward or behind it.
struct Reach {
  std::vector<bool> forward, queries, keys;  // rows of O; of dQ; of dK and dV

  Reach(const TileMap& f, const TileMap& b, int64_t position, bool of_queries) {
    const auto mark = [](std::vector<bool>& rows, const std::vector<int64_t>& edges, int32_t tile) {
      std::fill(rows.begin() + edges[tile], rows.begin() + edges[tile + 1], true);
    };
    const auto meets = [&](const TileMap& tiles, int32_t q_tile) {
      return of_queries ? q_tile == tile_of(tiles.q_edges, position)
                        : visits(tiles, q_tile, tile_of(tiles.kv_edges, position));
    };
    forward.resize(f.q_edges.back());
    queries.resize(forward.size());
    keys.resize(f.kv_edges.back());
    for (int32_t t = 0; t < f.q_tiles(); ++t) {
      if (meets(f, t)) mark(forward, f.q_edges, t);
    }
    for (int32_t t = 0; t < b.q_tiles(); ++t) {
      const auto rows = forward.begin() + b.q_edges[t];
      const auto end = forward.begin() + b.q_edges[t + 1];
      if (!meets(b, t) && std::find(rows, end, true) == end) continue;
      mark(queries, b.q_edges, t);
      for (int32_t k = 0; k < b.kv_tiles(); ++k) {
        if (visits(b, t, k)) mark(keys, b.kv_edges, k);
      }
    }
  }
};

/// Elements of [0, l, head] for l outside `reach`, and all of other heads and batch entries.
std::vector<uint16_t> untouched(const GuardedTensor& tensor, const std::vector<bool>& reach,
                                int64_t first_head, int64_t last_head) {
  std::vector<uint16_t> values;
  const TensorView& view = tensor.view();
  for (int64_t b = 0; b < view.shape[0]; ++b) {
    for (int64_t l = 0; l < view.shape[1]; ++l) {
      for (int64_t h = 0; h < view.shape[2]; ++h) {
        if (b == 0 && h >= first_head && h <= last_head && reach[l]) continue;
        const auto* row = view.row<uint16_t>(b, l, h);
        values.insert(values.end(), row, row + view.shape[3]);
      }
    }
  }
  return values;
}

// What docs/kernels promises of the Hopper kernels; the portable ones contain more (Launch.*).
TEST(Extremes, ANanStaysInItsTiles) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kPosition = 700, kKvHead = 1, kQHead = 5;
  const Mask mask = masks::causal_sliding_window(1500, 1500, 200);
  constexpr std::array kNames{"q", "k", "v", "dout"};
  for (const HeadDims& dims : hopper_head_dims()) {
    GpuCase c(problem_of(mask, dims), mask, 6);
    const SharedPlan forward = c.plan(Pass::forward, "ascending");
    const SharedPlan backward = c.plan(Pass::backward, "descending");
    const std::array inputs{&c.q, &c.k, &c.v, &c.dout};
    for (size_t which = 0; which < inputs.size(); ++which) {
      GpuTensor& input = *inputs[which];
      const bool of_queries = which == 0 || which == 3;
      const int64_t head = of_queries ? kQHead : kKvHead;
      const int64_t group = c.problem.group();
      const int64_t first = of_queries ? kQHead : kKvHead * group;
      const int64_t last = of_queries ? kQHead : first + group - 1;
      Reach reach(*forward->order(0).tiles, *backward->order(0).tiles, kPosition, of_queries);
      if (which == 3) reach.forward.assign(reach.forward.size(), false);
      const auto outside = [&] {
        c.run(*gpu(), forward, backward);
        return std::array{untouched(c.o.host, reach.forward, first, last),
                          untouched(c.dq.host, reach.queries, first, last),
                          untouched(c.dk.host, reach.keys, kKvHead, kKvHead),
                          untouched(c.dv.host, reach.keys, kKvHead, kKvHead)};
      };
      EXPECT_LT(std::ranges::count(reach.keys, true), 1200);
      const auto expected = outside();
      const float before = input.host.get(0, kPosition, head, 9);
      for (const float poison :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        input.host.set(0, kPosition, head, 9, poison);
        input.upload();
        EXPECT_EQ(outside(), expected)
            << poison << " in " << kNames[which] << ", head dims " << to_string(dims);
        if (!std::isnan(poison)) continue;  // an infinite score may well have no weight
        const GuardedTensor& seer = which == 3 ? c.dq.host : c.o.host;
        bool lost = true;
        for (int64_t d = 0; d < seer.view().shape[3]; ++d) {
          lost = lost && std::isfinite(seer.get(0, kPosition, first, d));
        }
        EXPECT_FALSE(lost) << "a NaN in " << kNames[which] << ", head dims " << to_string(dims);
      }
      input.host.set(0, kPosition, head, 9, before);
      input.upload();
    }
  }
}

}  // namespace
}  // namespace verbatim::test
