#include "backend/cpu/cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/passes.h"
#include "core/dropout.h"
#include "core/dtype.h"

namespace verbatim::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Error of one element; Inf unless both are NaN, or both the same infinity, or both finite.
double difference(double ours, double exact) {
  if (std::isnan(exact)) return std::isnan(ours) ? 0 : kInf;
  if (std::isinf(exact)) return ours == exact ? 0 : kInf;
  return std::isfinite(ours) ? std::abs(ours - exact) : kInf;
}

struct Worst {
  double error = 0, magnitude = 0;
  void add(double ours, double exact) {
    error = std::max(error, difference(ours, exact));
    if (std::isfinite(exact)) magnitude = std::max(magnitude, std::abs(exact));
  }
  double relative() const { return error == 0 ? 0 : error / std::max(magnitude, 0.1); }
};

using Grid = std::vector<double>;

}  // namespace

Tensor::Tensor(Dtype dtype, std::array<int64_t, 4> shape, int64_t gap) {
  view = TensorView::dense(nullptr, dtype, shape);
  view.stride = {shape[1] * shape[2] * (shape[3] + gap), shape[2] * (shape[3] + gap),
                 shape[3] + gap, 1};
  memory.assign(shape[0] * view.stride[0] * size_of(dtype) + 64, '\xff');
  view.data = memory.data() + 32;  // 0xff.. is NaN in every dtype
}

float Tensor::get(int64_t b, int64_t l, int64_t h, int64_t d) const {
  return dispatch_dtype(view.dtype,
                        [&](auto type) { return to_f32(view.row<decltype(type)>(b, l, h)[d]); });
}

void Tensor::set(int64_t b, int64_t l, int64_t h, int64_t d, float x) {
  dispatch_dtype(view.dtype, [&](auto type) {
    using T = decltype(type);
    view.row<T>(b, l, h)[d] = from_f32<T>(x);
  });
}

void Tensor::fill(uint32_t seed, float amplitude) {
  for (int64_t b = 0; b < view.shape[0]; ++b)
    for (int64_t l = 0; l < view.shape[1]; ++l)
      for (int64_t h = 0; h < view.shape[2]; ++h)
        for (int64_t d = 0; d < view.shape[3]; ++d) {
          seed = seed * 1664525u + 1013904223u;
          uint32_t x = seed ^ seed >> 16;
          x = (x * 0x7feb352du) ^ (x * 0x7feb352du) >> 15;
          set(b, l, h, d, amplitude * (static_cast<float>(x >> 8) * 0x1p-23f - 1.0f));
        }
}

Case::Case(const Problem& p, Mask m, uint32_t seed, int64_t gap, float amplitude)
    : problem(p),
      mask(std::move(m)),
      q(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim}, gap),
      k(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim}, gap),
      v(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim_v}, gap),
      dout(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim_v}, gap),
      o(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim_v}, gap),
      dq(p.dtype, q.view.shape, gap),
      dk(p.dtype, k.view.shape, gap),
      dv(p.dtype, v.view.shape, gap),
      lse_memory(p.batch * p.q_heads * p.q_len + 1, std::nanf("")) {
  q.fill(seed, amplitude);
  k.fill(seed + 1, amplitude);
  v.fill(seed + 2, 1);
  dout.fill(seed + 3, 1);
  lse = {lse_memory.data(), {p.batch, p.q_heads, p.q_len}};
}

ForwardTensors Case::forward() const { return {q.view, k.view, v.view, o.view, lse}; }

BackwardTensors Case::backward() const {
  return {q.view, k.view, v.view, o.view, dout.view, lse, dq.view, dk.view, dv.view};
}

void Case::run(const Plan& forward_plan, const Plan& backward_plan, int threads,
               const cpu::KernelTable& kernels) {
  RunOptions options;
  options.threads = threads;
  check_tensors(problem, forward());
  check_tensors(problem, backward());
  cpu::run_forward(forward_plan, forward(), options, kernels);
  cpu::run_backward(backward_plan, backward(), options, kernels);
}

std::vector<uint64_t> Case::bits() const {
  std::vector<uint64_t> hashes;
  const auto hash = [&](const void* data, size_t bytes) {
    uint64_t h = 0xcbf29ce484222325;
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) h = (h ^ p[i]) * 0x100000001b3;
    hashes.push_back(h);
  };
  for (const Tensor* t : {&o, &dq, &dk, &dv}) hash(t->memory.data(), t->memory.size());
  hash(lse_memory.data(), lse_memory.size() * sizeof(float));
  return hashes;
}

std::vector<double> errors(const Case& c) {
  const Problem& p = c.problem;
  const Dropout dropout = Dropout::make(p.dropout, p.seed);
  const double scale = p.softmax_scale();
  Worst o, lse, dq, dk, dv;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t g = 0; g < p.kv_heads; ++g) {
      const HeadMask& mask = c.mask.head(b, g);
      Grid dk_sum(p.kv_len * p.head_dim), dv_sum(p.kv_len * p.head_dim_v);
      for (int64_t h = g * p.group(); h < (g + 1) * p.group(); ++h) {
        for (int64_t q = 0; q < p.q_len; ++q) {
          std::vector<int64_t> keys;
          for (int64_t k = 0; k < p.kv_len; ++k)
            if (mask.contains(q, k)) keys.push_back(k);
          Grid score, slope, prob, out(p.head_dim_v), dq_row(p.head_dim);
          double top = -kInf, sum = 0;
          for (const int64_t k : keys) {
            double s = 0;
            for (int64_t d = 0; d < p.head_dim; ++d)
              s += double{c.q.get(b, q, h, d)} * c.k.get(b, k, g, d);
            s *= scale;
            const double t = p.softcap == 0 ? 0 : std::tanh(s / p.softcap);
            if (p.softcap != 0) s = p.softcap * t;
            score.push_back(s);
            slope.push_back(1 - t * t);
            top = std::max(top, s);
          }
          for (const double s : score) prob.push_back(std::exp(s - top)), sum += prob.back();
          double delta = 0;
          Grid keep;
          for (size_t i = 0; i < keys.size(); ++i) {
            prob[i] /= sum;
            const bool kept = !dropout.enabled() || dropout.keep(b, h, q, keys[i]);
            keep.push_back(kept ? double{dropout.scale} : 0);
            for (int64_t d = 0; d < p.head_dim_v; ++d)
              out[d] += prob[i] * keep[i] * c.v.get(b, keys[i], g, d);
          }
          for (int64_t d = 0; d < p.head_dim_v; ++d) {
            o.add(c.o.get(b, q, h, d), out[d]);
            delta += out[d] * c.dout.get(b, q, h, d);
          }
          lse.add(c.lse.row(b, h)[q], keys.empty() ? -kInf : top + std::log(sum));
          for (size_t i = 0; i < keys.size(); ++i) {
            double dp = 0;
            for (int64_t d = 0; d < p.head_dim_v; ++d) {
              const double g_out = c.dout.get(b, q, h, d);
              dp += g_out * c.v.get(b, keys[i], g, d);
              dv_sum[keys[i] * p.head_dim_v + d] += prob[i] * keep[i] * g_out;
            }
            const double ds = prob[i] * (keep[i] * dp - delta) * slope[i] * scale;
            for (int64_t d = 0; d < p.head_dim; ++d) {
              dq_row[d] += ds * c.k.get(b, keys[i], g, d);
              dk_sum[keys[i] * p.head_dim + d] += ds * c.q.get(b, q, h, d);
            }
          }
          for (int64_t d = 0; d < p.head_dim; ++d) dq.add(c.dq.get(b, q, h, d), dq_row[d]);
        }
      }
      for (int64_t k = 0; k < p.kv_len; ++k) {
        for (int64_t d = 0; d < p.head_dim; ++d)
          dk.add(c.dk.get(b, k, g, d), dk_sum[k * p.head_dim + d]);
        for (int64_t d = 0; d < p.head_dim_v; ++d)
          dv.add(c.dv.get(b, k, g, d), dv_sum[k * p.head_dim_v + d]);
      }
    }
  }
  return {o.relative(), lse.relative(), dq.relative(), dk.relative(), dv.relative()};
}

std::string describe(const Case& c) { return to_json(c.problem) + " mask " + c.mask.name(); }

}  // namespace verbatim::test
