// Lesson 1: make an Attention once, run it, run it again: the same bits.
#include <cstdio>
#include <cstring>
#include <vector>

#include "verbatim/verbatim.h"

int main() {
  using namespace verbatim;
  Problem problem;
  problem.q_heads = 4;
  problem.kv_heads = 2;
  problem.q_len = problem.kv_len = 300;
  const Attention attention(problem, masks::causal(300, 300));

  // (batch, length, heads, dim), f32. Any strides would do; dense() is the usual case.
  const size_t q_size = 300 * 4 * 64, k_size = 300 * 2 * 64;
  std::vector<float> q(q_size), k(k_size), v(k_size), dout(q_size);
  std::vector<float> o(q_size), lse(4 * 300), dq(q_size), dk(k_size), dv(k_size);
  for (size_t i = 0; i < q_size; ++i) {
    q[i] = static_cast<float>(i % 7) / 7;
    dout[i] = static_cast<float>(i % 5) / 5;
  }
  for (size_t i = 0; i < k_size; ++i) {
    k[i] = static_cast<float>(i % 11) / 11;
    v[i] = static_cast<float>(i % 3) / 3;
  }
  const auto queries = [](std::vector<float>& x) {
    return TensorView::dense(x.data(), Dtype::f32, {1, 300, 4, 64});
  };
  const auto keys = [](std::vector<float>& x) {
    return TensorView::dense(x.data(), Dtype::f32, {1, 300, 2, 64});
  };
  const RowView rows{lse.data(), {1, 4, 300}};
  const auto run = [&](int threads) {
    attention.forward({queries(q), keys(k), keys(v), queries(o), rows}, {.threads = threads});
    attention.backward({queries(q), keys(k), keys(v), queries(o), queries(dout), rows, queries(dq),
                        keys(dk), keys(dv)},
                       {.threads = threads});
  };

  run(1);
  const std::vector<float> first = dq;
  run(8);
  const bool same = std::memcmp(first.data(), dq.data(), q_size * sizeof(float)) == 0;
  std::printf("plan %s, one thread and eight: %s\n",
              attention.plan(Pass::backward).fingerprint().c_str(),
              same ? "the same bits" : "DIFFERENT bits");
  return same ? 0 : 1;
}
