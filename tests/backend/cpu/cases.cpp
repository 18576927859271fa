#include "backend/cpu/cases.h"

#include "backend/cpu/passes.h"
#include "core/random.h"

namespace verbatim::test {
namespace {

GuardedTensor spaced(Dtype dtype, std::array<int64_t, 4> shape, int64_t gap) {
  const int64_t head = shape[3] + gap, row = shape[2] * head;
  return GuardedTensor(dtype, shape, {shape[1] * row, row, head, 1});
}

}  // namespace

Case::Case(const Problem& p, Mask m, uint64_t seed, int64_t gap, double amplitude)
    : problem(p),
      mask(std::move(m)),
      q(spaced(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim}, gap)),
      k(spaced(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim}, gap)),
      v(spaced(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim_v}, gap)),
      dout(spaced(p.o_dtype(), {p.batch, p.q_len, p.q_heads, p.head_dim_v}, gap)),
      o(spaced(p.o_dtype(), dout.view().shape, gap)),
      lse(GuardedTensor::rows({p.batch, p.q_heads, p.q_len})),
      dq(spaced(p.o_dtype(), q.view().shape, gap)),
      dk(spaced(p.o_dtype(), k.view().shape, gap)),
      dv(spaced(p.o_dtype(), v.view().shape, gap)) {
  fill_uniform(q.view(), seed, -amplitude, amplitude);
  fill_uniform(k.view(), seed + 1, -amplitude, amplitude);
  fill_uniform(v.view(), seed + 2, -1, 1);
  fill_uniform(dout.view(), seed + 3, -1, 1);
}

ForwardTensors Case::forward() const {
  return {q.view(), k.view(), v.view(), o.view(), lse.row_view()};
}

BackwardTensors Case::backward() const {
  return {q.view(),       k.view(),  v.view(),  o.view(), dout.view(),
          lse.row_view(), dq.view(), dk.view(), dv.view()};
}

void Case::run(const Plan& forward_plan, const Plan& backward_plan, int threads,
               const cpu::KernelTable& kernels) {
  for (GuardedTensor* t : {&o, &lse, &dq, &dk, &dv}) t->poison();
  RunOptions options;
  options.threads = threads;
  cpu::run_forward(forward_plan, forward(), options, kernels);
  cpu::run_backward(backward_plan, backward(), options, kernels);
}

std::vector<std::string> Case::hashes() const {
  return {sha256_of(o.view()), sha256_of(lse.row_view()), sha256_of(dq.view()),
          sha256_of(dk.view()), sha256_of(dv.view())};
}

Check Case::check() const {
  return check_backward(problem, mask, backward(), Selection::all(problem));
}

bool Case::guards_intact() const {
  for (const GuardedTensor* t : {&o, &lse, &dq, &dk, &dv})
    if (!t->guards_intact()) return false;
  return true;
}

std::string Case::describe() const {
  return to_json(problem) + " mask " + mask.name() + " " + mask.params_json();
}

std::vector<Mask> every_mask(int64_t kv_heads) {
  constexpr int64_t n = 200;
  const std::vector<int64_t> documents{70, 1, 0, 129}, prefix{20}, edges{0, 30, 31, 110, n};
  const std::vector<int64_t> cu_seqlens{0, 70, 70, n};
  return {masks::full(n, n),
          masks::causal(n, n),
          masks::full_sliding_window(n, n, 40),
          masks::causal_sliding_window(n, n, 40),
          masks::full_document(documents),
          masks::causal_document(documents),
          masks::share_question(documents),
          masks::causal_blockwise(documents),
          masks::global_sliding(n, 20, 30),
          masks::prefix_lm_causal(n, 70),
          masks::prefix_lm_document(documents, prefix),
          masks::block_causal_document(documents, 30),
          masks::uniform_block_sparse(n, n, 24, 40, 0.4, 3, kv_heads),
          masks::variable_block_sparse(edges, edges, 0.5, 3, kv_heads),
          masks::windows(cu_seqlens, cu_seqlens, 50, 10)};
}

}  // namespace verbatim::test
