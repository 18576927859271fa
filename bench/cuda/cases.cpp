#include "bench/cuda/cases.h"

#include <fmt/format.h>

namespace verbatim::bench {
namespace {

Problem problem(int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t len, int64_t dim) {
  Problem p;
  p.batch = batch;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.q_len = p.kv_len = len;
  p.head_dim = p.head_dim_v = dim;
  p.dtype = Dtype::bf16;
  return p;
}

}  // namespace

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t dim : {128, 64}) {
    for (const bool causal : {true, false}) {
      for (const int64_t len : {512, 1024, 2048, 4096, 8192, 16384}) {
        const int64_t heads = 2048 / dim;
        all.push_back({"dense", fmt::format("hd{} {} {}", dim, causal ? "causal" : "full", len),
                       problem(16384 / len, heads, heads, len, dim),
                       causal ? masks::causal(len, len) : masks::full(len, len)});
      }
    }
  }
  constexpr int64_t kLen = 8192;
  const Problem grouped = problem(1, 64, 8, kLen, 128);
  all.push_back({"gqa", "hd128 causal 64:8 8192", grouped, masks::causal(kLen, kLen)});
  all.push_back({"gqa", "hd128 full 64:8 8192", grouped, masks::full(kLen, kLen)});

  // Parameters of the FlexAttention table that we compare with (docs/benchmarks.md).
  const std::vector<int64_t> documents{380, 18,  147, 124, 561, 433, 1606, 59,  216,
                                       21,  122, 260, 19,  114, 394, 287,  123, 322,
                                       825, 4,   801, 466, 177, 90,  623};
  const std::vector<int64_t> two_documents{6144, 2048}, prefix{195};
  const auto masked = [&](Mask mask) { all.push_back({"masks", mask.name(), grouped, mask}); };
  masked(masks::full(kLen, kLen));
  masked(masks::causal(kLen, kLen));
  masked(masks::full_sliding_window(kLen, kLen, 1024));
  masked(masks::causal_sliding_window(kLen, kLen, 1024));
  masked(masks::full_document(documents));
  masked(masks::causal_document(documents));
  masked(masks::share_question(documents));
  masked(masks::causal_blockwise(documents));
  masked(masks::global_sliding(kLen, 397, 397));
  masked(masks::prefix_lm_causal(kLen, 1520));
  masked(masks::prefix_lm_document(documents, prefix));
  masked(masks::block_causal_document(two_documents, 1024));
  return all;
}

}  // namespace verbatim::bench
