// The same bits every time: idle, under load, replayed, alone and in a batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/cuda/gpu_case.h"
#include "backend/cuda/load.h"

namespace verbatim::test {
namespace {

struct Named {
  std::string name;
  Mask mask;
};

/// All fourteen patterns at about `length` tokens.
std::vector<Named> patterns(int64_t length, int64_t kv_heads) {
  const std::vector<int64_t> docs{length / 8, 0, length / 3, 1, length / 4, 77, 300};
  const std::vector<int64_t> prefix{100}, edges{0, 100, 101, 500, length};
  std::vector<Named> all{
      {"full", masks::full(length, length - 37)},
      {"causal", masks::causal(length, length + 65)},
      {"full_sliding_window", masks::full_sliding_window(length, length, 200)},
      {"causal_sliding_window", masks::causal_sliding_window(length, length, 200)},
      {"full_document", masks::full_document(docs)},
      {"causal_document", masks::causal_document(docs)},
      {"share_question", masks::share_question(docs)},
      {"causal_blockwise", masks::causal_blockwise(docs)},
      {"global_sliding", masks::global_sliding(length, 50, 150)},
      {"prefix_lm_causal", masks::prefix_lm_causal(length, 333)},
      {"prefix_lm_document", masks::prefix_lm_document(docs, prefix)},
      {"block_causal_document", masks::block_causal_document(docs, 128)},
      {"uniform_block_sparse",
       masks::uniform_block_sparse(length, length, 128, 96, 0.3, 7, kv_heads)},
      {"variable_block_sparse", masks::variable_block_sparse(edges, edges, 0.5, 7, kv_heads)}};
  return all;
}

Problem problem_of(const Mask& mask, int64_t head_dim, int64_t batch = 2) {
  Problem p;
  p.batch = batch;
  p.q_heads = 8;
  p.kv_heads = 2;
  p.q_len = mask.q_len();
  p.kv_len = mask.kv_len();
  p.head_dim = p.head_dim_v = head_dim;
  p.dtype = Dtype::bf16;
  return p;
}

int64_t repeats() {
  const char* value = std::getenv("VERBATIM_GPU_REPEATS");
  return value ? std::atoll(value) : 20;
}

TEST(Bits, RepeatsIdleAndUnderLoad) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  cudaStream_t stream, load[2];
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  for (auto& s : load) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  for (const int64_t head_dim : {64, 128, 192}) {
    for (const auto& [name, mask] : patterns(1500, 2)) {
      GpuCase c(problem_of(mask, head_dim), mask, 11);
      for (const std::string order : {"descending", "ascending/split"}) {
        const Plan forward = c.plan(Pass::forward, "ascending");
        const Plan backward = c.plan(Pass::backward, order);
        c.run(*gpu(), forward, backward, stream);
        const auto first = c.bits();
        int64_t differing = 0;
        for (int64_t i = 0; i < repeats(); ++i) {
          if (i % 2 == 1) {
            for (auto& s : load) {
              start_load(static_cast<int>(1 + i * 37 % 120), static_cast<unsigned>(i), s);
            }
          }
          c.run(*gpu(), forward, backward, stream);
          differing += c.bits() != first;
        }
        EXPECT_EQ(differing, 0) << name << " " << order << " head dim " << head_dim;
      }
    }
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

TEST(Bits, GraphReplay) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(900, 900);
  GpuCase c(problem_of(mask, 64), mask, 3);
  const Plan forward = c.plan(Pass::forward, "ascending");
  const Plan backward = c.plan(Pass::backward, "descending/split");
  c.run(*gpu(), forward, backward);
  const auto eager = c.bits();

  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "test");
  gpu()->forward(forward, c.forward(), {.stream = stream});
  gpu()->backward(backward, c.backward(), {.stream = stream});
  cuda::check(cudaStreamEndCapture(stream, &graph), "test");
  cuda::check(cudaGraphInstantiate(&executable, graph, 0), "test");
  for (int i = 0; i < 30; ++i) {
    c.poison();
    cuda::check(cudaGraphLaunch(executable, stream), "test");
    gpu()->synchronize({.stream = stream});
    for (GpuTensor* output : c.outputs()) output->download();
    ASSERT_EQ(c.bits(), eager) << "replay " << i;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace verbatim::test
