// The same bits every time: idle, under load, replayed, alone and in a batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/cuda/gpu_case.h"
#include "backend/cuda/load.h"
#include "backend/cuda/repeat.h"
#include "plan/live_heads.h"

namespace verbatim::test {
namespace {

int64_t repeats() {
  const char* value = std::getenv("VERBATIM_GPU_REPEATS");
  return value ? std::atoll(value) : 100;
}

TEST(Bits, RepeatsIdleAndUnderLoad) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  cudaStream_t stream, load[2];
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  for (auto& s : load) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  const auto repeat_plan = [&](const std::string& name, GpuCase& c, const SharedPlan& backward) {
    const SharedPlan forward = c.plan(Pass::forward, "ascending");
    c.run(*gpu(), forward, backward, stream);
    const auto disturb = [&](int64_t run) {
      for (auto& s : load) {
        if (run % 2 == 1) {
          start_load(static_cast<int>(1 + run * 37 % 120), static_cast<unsigned>(run), s);
        }
      }
    };
    EXPECT_EQ(Repeats(c).differing(*gpu(), forward, backward, stream, repeats(), disturb), 0)
        << name << " " << backward->orders.front()->name << " " << to_json(c.problem);
  };
  const auto repeat = [&](const std::string& name, const Problem& problem, const Mask& mask) {
    GpuCase c(problem, mask, 11);
    for (const std::string order : {"descending", "ascending/split"})
      repeat_plan(name, c, c.plan(Pass::backward, order));
  };
  for (const HeadDims& dims : every_head_dims()) {
    for (const auto& [name, mask] : patterns(1500, 2)) {
      repeat(name, problem_of(mask, dims), mask);
    }
  }
  const Mask causal = masks::causal(1500, 1500);
  for (const HeadDims& dims : hopper_head_dims()) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      Problem p = problem_of(causal, dims);
      p.dtype = dtype;
      p.softcap = 1.5;
      p.dropout = 0.3;
      repeat("causal", p, causal);
    }
  }
  // Chains that rotate, and those in pieces that three workers can run.
  const Mask full = masks::full(1500, 1500);
  for (const HeadDims& dims : every_head_dims()) {
    GpuCase c(problem_of(full, dims), full, 11);
    for (const int32_t workers : {132, 3})
      repeat_plan("rotating", c, c.plan(Pass::backward, "shift", {0, 0}, "auto", workers));
  }
  // Matched chains of one query head each, whole and in pieces.
  const Mask blocks = masks::uniform_block_sparse(1500, 1500, 64, 64, 0.4, 3, 1);
  for (const HeadDims& dims : every_head_dims()) {
    Problem p = problem_of(blocks, dims);
    p.q_heads = 4 * p.kv_heads;
    GpuCase c(p, blocks, 11);
    for (const int32_t workers : {132, 3})
      repeat_plan("matched", c, c.plan(Pass::backward, "matched/split", {0, 0}, "auto", workers));
  }
  // Chains that rotate in chunks: more KV tiles than a chunk has.
  const Mask chunks = masks::full(512, 8500);
  for (const HeadDims& dims : every_head_dims()) {
    GpuCase c(problem_of(chunks, dims), chunks, 11);
    repeat_plan("rotating in chunks", c, c.plan(Pass::backward, "shift"));
  }
  // Many short heads, which have their sums of dQ where heads before them had theirs.
  const Mask brief = masks::causal(300, 300);
  for (const int64_t head_dim : {64, 128}) {
    Problem p = problem_of(brief, head_dim, 16);
    p.kv_heads = p.q_heads;
    GpuCase c(p, brief, 11);
    const SharedPlan backward = c.plan(Pass::backward, "descending", {0, 0}, "queue");
    ASSERT_LT(live_heads(*backward).heads, p.batch * p.kv_heads);
    repeat_plan("many short heads", c, backward);
  }
  // Parts of groups, which have theirs where parts before had them.
  const Mask longer = masks::causal(1100, 1100);
  for (const int64_t head_dim : {64, 128}) {
    Problem p = problem_of(longer, head_dim, 4);
    p.q_heads = 8 * p.kv_heads;
    GpuCase c(p, longer, 11);
    const SharedPlan backward =
        c.plan(Pass::backward, "descending/split:4", {0, 0}, "staggered:8", 40);
    ASSERT_LT(live_heads(*backward).queries, 8);
    repeat_plan("parts of groups", c, backward);
  }
  cudaDeviceSynchronize();
}

/// Elements [batch entry b] of an output.
std::vector<float> entry(const GuardedTensor& tensor, int64_t b) {
  std::vector<float> values;
  const auto shape = tensor.view().shape;
  for (int64_t l = 0; l < shape[1]; ++l) {
    for (int64_t h = 0; h < shape[2]; ++h) {
      for (int64_t d = 0; d < shape[3]; ++d) values.push_back(tensor.get(b, l, h, d));
    }
  }
  return values;
}

TEST(Bits, AloneAsInABatch) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kBatch = 3;
  const Mask mask = masks::causal(700, 700);
  GpuCase batch(problem_of(mask, 128, kBatch), mask, 5);
  batch.run(*gpu(), batch.plan(Pass::forward, "ascending"),
            batch.plan(Pass::backward, "descending"));
  for (int64_t b = 0; b < kBatch; ++b) {
    GpuCase alone(problem_of(mask, 128, 1), mask, 5);
    for (auto [from, to] : {std::pair{&batch.q, &alone.q},
                            {&batch.k, &alone.k},
                            {&batch.v, &alone.v},
                            {&batch.dout, &alone.dout}}) {
      const TensorView source = from->host.view(), target = to->host.view();
      std::memcpy(target.data, source.row<uint16_t>(b, 0, 0),
                  static_cast<size_t>(target.stride[0]) * sizeof(uint16_t));
      to->upload();
    }
    alone.run(*gpu(), alone.plan(Pass::forward, "ascending"),
              alone.plan(Pass::backward, "descending"));
    EXPECT_EQ(entry(alone.o.host, 0), entry(batch.o.host, b));
    EXPECT_EQ(entry(alone.dq.host, 0), entry(batch.dq.host, b));
    EXPECT_EQ(entry(alone.dk.host, 0), entry(batch.dk.host, b));
    EXPECT_EQ(entry(alone.dv.host, 0), entry(batch.dv.host, b));
  }
}

// Documents have the same numbers as batch entries and packed: the same elements are dropped.
TEST(Bits, DropoutIsEqualAloneAndPacked) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kDocuments = 3, kLength = 700;
  const std::vector<int64_t> lengths(kDocuments, kLength);
  for (const HeadDims& dims : every_head_dims()) {
    const auto run = [&](const Mask& mask, int64_t batch) {
      Problem p = problem_of(mask, dims, batch);
      p.softcap = 1.5;
      p.dropout = 0.3;
      auto c = std::make_unique<GpuCase>(p, mask, 5);
      c->run(*gpu(), c->plan(Pass::forward, "ascending"), c->plan(Pass::backward, "descending"));
      return c;
    };
    // Of one shape but for the split of rows into batch entries, so of the same inputs.
    const auto alone = run(masks::causal(kLength, kLength), kDocuments);
    const auto packed = run(masks::causal_document(lengths), 1);
    ASSERT_EQ(alone->q.host.bytes(), packed->q.host.bytes());
    EXPECT_EQ(alone->o.host.bytes(), packed->o.host.bytes()) << "head dims " << to_string(dims);
    EXPECT_EQ(alone->dq.host.bytes(), packed->dq.host.bytes()) << "head dims " << to_string(dims);
    EXPECT_EQ(alone->dk.host.bytes(), packed->dk.host.bytes()) << "head dims " << to_string(dims);
    EXPECT_EQ(alone->dv.host.bytes(), packed->dv.host.bytes()) << "head dims " << to_string(dims);
  }
}

// Pieces of chains pass dK and dV on as they are.
TEST(Bits, EqualWhenChainsAreCutForFewWorkers) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const std::vector<int64_t> documents{900, 1, 0, 700, 333};
  for (const Mask& mask : {masks::full(1500, 1500), masks::full(2048, 700), masks::full(512, 8500),
                           masks::full_document(documents)}) {
    for (const HeadDims& dims : every_head_dims()) {
      for (const bool extras : {false, true}) {
        Problem p = problem_of(mask, dims);
        if (extras) p.softcap = 1.5, p.dropout = 0.3;
        GpuCase c(p, mask, 7);
        const SharedPlan forward = c.plan(Pass::forward, "ascending");
        const SharedPlan whole = c.plan(Pass::backward, "shift");
        c.run(*gpu(), forward, whole);
        const auto expected = c.bits();
        for (const int32_t workers : {1, 4}) {
          const SharedPlan cut = c.plan(Pass::backward, "shift", {0, 0}, "auto", workers);
          ASSERT_EQ(cut->residency, 1);
          c.run(*gpu(), forward, cut);
          EXPECT_EQ(c.bits(), expected) << mask.name() << " head dims " << to_string(dims)
                                        << " for " << workers << " workers";
        }
      }
    }
  }
}

// Where chains share a tile, pieces pass on theirs apart from its sum.
TEST(Bits, EqualWhenPartsOfGroupsAreCutForFewWorkers) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  for (const Mask& mask :
       {masks::uniform_block_sparse(1500, 1500, 64, 64, 0.4, 3, 1),
        masks::uniform_block_sparse(700, 2100, 128, 128, 0.5, 4, 1), masks::full(1000, 1000)}) {
    for (const HeadDims& dims : every_head_dims()) {
      for (const bool extras : {false, true}) {
        Problem p = problem_of(mask, dims);
        p.q_heads = 4 * p.kv_heads;
        if (extras) p.softcap = 1.5, p.dropout = 0.3;
        GpuCase c(p, mask, 7);
        const SharedPlan forward = c.plan(Pass::forward, "ascending");
        for (const std::string order : {"matched/split", "matched/split:2", "shift/split"}) {
          if (order == "shift/split" && mask.name() != "full") continue;  // cannot be cut there
          c.run(*gpu(), forward, c.plan(Pass::backward, order));
          const auto expected = c.bits();
          for (const int32_t workers : {1, 4, 40}) {
            const SharedPlan cut = c.plan(Pass::backward, order, {0, 0}, "queue", workers);
            ASSERT_LE(cut->residency, workers);
            c.run(*gpu(), forward, cut);
            EXPECT_EQ(c.bits(), expected) << mask.name() << " " << order << " head dims "
                                          << to_string(dims) << " for " << workers << " workers";
          }
        }
      }
    }
  }
}

TEST(Bits, GraphReplay) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  for (const HeadDims& dims : hopper_head_dims()) {
    for (const auto& [name, mask] : patterns(900, 2)) {
      GpuCase c(problem_of(mask, dims), mask, 3);
      const SharedPlan forward = c.plan(Pass::forward, "ascending");
      const SharedPlan backward = c.plan(Pass::backward, "descending/split");
      c.run(*gpu(), forward, backward);
      const auto eager = c.bits();

      cudaGraph_t graph;
      cudaGraphExec_t executable;
      cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "test");
      gpu()->forward(forward, c.forward(), {.stream = stream});
      gpu()->backward(backward, c.backward(), {.stream = stream});
      cuda::check(cudaStreamEndCapture(stream, &graph), "test");
      cuda::check(cudaGraphInstantiate(&executable, graph, 0), "test");
      for (int i = 0; i < 10; ++i) {
        c.poison();
        cuda::check(cudaGraphLaunch(executable, stream), "test");
        gpu()->synchronize({.stream = stream});
        for (GpuTensor* output : c.outputs()) output->download();
        ASSERT_EQ(c.bits(), eager) << name << " head dims " << to_string(dims) << " replay " << i;
      }
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    }
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace verbatim::test
