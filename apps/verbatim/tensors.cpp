#include "tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "backend/reference/compare.h"
#include "core/dtype.h"
#include "core/host_memory.h"
#include "core/random.h"
#include "core/sha256.h"
#include "dist/mpi.h"
#include "options.h"
#include "report/format.h"

namespace verbatim::app {
namespace {

const Problem& held_here(const Problem& p) {
  require_memory(p);
  return p;
}

}  // namespace

void require_memory(const Problem& p) {
  const auto launched = dist::launched();
  const int32_t processes = launched ? launched->beside : 1;
  const double q_rows = 1.0 * p.batch * p.q_len * p.q_heads;  // in double: absurd ones overflow
  const double k_rows = 1.0 * p.batch * p.kv_len * p.kv_heads;
  const double inputs = q_rows * p.head_dim + k_rows * (p.head_dim + p.head_dim_v);
  const double outputs = inputs + 2 * q_rows * p.head_dim_v;  // and dO
  const double bytes = processes * (inputs * size_of(p.dtype) + outputs * size_of(p.o_dtype()) +
                                    q_rows * sizeof(float));
  const int64_t most = host_memory();
  if (bytes <= most) return;
  std::string got = report::bytes(static_cast<int64_t>(std::min(bytes, 9e18)));
  if (processes > 1) got += fmt::format(" in {} processes", processes);
  fail("this machine has not the memory for the tensors",
       {"problem", got, report::bytes(most) + " at most", ""});
}

Tensor::Tensor(Dtype dtype, std::array<int64_t, 4> shape) {
  const int64_t elements = shape[0] * shape[1] * shape[2] * shape[3];
  bytes_.resize(elements * size_of(dtype));
  view_ = TensorView::dense(bytes_.data(), dtype, shape);
}

void Tensor::set_scales(std::vector<float> scales) {
  scales_ = std::move(scales);
  view_.scales = scales_.data();
}

void Tensor::poison() { std::memset(bytes_.data(), 0xFF, bytes_.size()); }

Tensors::Tensors(const Problem& p, uint64_t seed)
    : q(held_here(p).dtype, {p.batch, p.q_len, p.q_heads, p.head_dim}),
      k(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim}),
      v(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim_v}),
      dout(p.o_dtype(), {p.batch, p.q_len, p.q_heads, p.head_dim_v}),
      o(p.o_dtype(), dout.view().shape),
      dq(p.o_dtype(), q.view().shape),
      dk(p.o_dtype(), k.view().shape),
      dv(p.o_dtype(), v.view().shape),
      lse(static_cast<size_t>(p.batch * p.q_heads * p.q_len)),
      lse_view{lse.data(), {p.batch, p.q_heads, p.q_len}} {
  uint64_t stream = 4 * seed;
  for (const Tensor* input : {&q, &k, &v, &dout}) fill_normal(input->view(), stream++);
  poison_outputs(Passes::both);
}

Tensors Tensors::garbage(const Problem& problem) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::array kGarbage{std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity,
                                60000.0f};  // that f16 holds, too
  Tensors tensors(problem, problem.seed);
  for (const Tensor* input : {&tensors.q, &tensors.k, &tensors.v, &tensors.dout}) {
    const TensorView& view = input->view();
    dispatch_dtype(view.dtype, [&]<class T>(T) {
      const auto [batch, length, heads, dim] = view.shape;
      for (int64_t row = 0; row < batch * length * heads; ++row)
        for (int64_t d = 0; d < dim; ++d)
          static_cast<T*>(view.data)[row * dim + d] =
              from_f32<T>(kGarbage[static_cast<size_t>(row + d) % kGarbage.size()]);
    });
  }
  return tensors;
}

ForwardTensors Tensors::forward() const {
  return {q.view(), k.view(), v.view(), o.view(), lse_view};
}

BackwardTensors Tensors::backward() const {
  return {q.view(), k.view(),  v.view(),  o.view(), dout.view(),
          lse_view, dq.view(), dk.view(), dv.view()};
}

void Tensors::poison_outputs(Passes passes) {
  if (passes != Passes::backward) {
    o.poison();
    std::memset(lse.data(), 0xFF, lse.size() * sizeof(float));
  }
  if (passes == Passes::forward) return;
  for (Tensor* output : {&dq, &dk, &dv}) output->poison();
}

Passes passes_from_string(const std::string& name, const Problem& problem) {
  require_one_of(name, "--pass", {"forward", "backward", "both"});
  if (!problem.has_backward() && name != "forward")
    fail(fmt::format("{} is a dtype of forwards", to_string(problem.dtype)),
         {"--pass", name, "forward", "--pass forward, or --dtype bf16"});
  return name == "forward" ? Passes::forward : name == "backward" ? Passes::backward : Passes::both;
}

std::vector<std::string> output_names(Passes passes) {
  switch (passes) {
    case Passes::forward:
      return {"o", "lse"};
    case Passes::backward:
      return {"dq", "dk", "dv"};
    default:
      return {"o", "lse", "dq", "dk", "dv"};
  }
}

Part Part::all(const Problem& p) { return {0, p.batch, 0, p.kv_heads, 0, p.q_len, 0, p.kv_len}; }

namespace {

/// The part of a tensor that belongs to `part`: `group` heads per KV head, its rows of one axis.
TensorView cut(const TensorView& whole, const Part& part, int64_t group, bool queries) {
  const int64_t begin = queries ? part.q_begin : part.k_begin;
  const int64_t end = queries ? part.q_end : part.k_end;
  TensorView view = whole;
  view.shape = {part.batch_end - part.batch_begin, end - begin,
                (part.head_end - part.head_begin) * group, whole.shape[3]};
  view.data = static_cast<std::byte*>(whole.data) +
              whole.offset(part.batch_begin, begin, part.head_begin * group) * size_of(whole.dtype);
  if (whole.scales) view.scales += part.head_begin * group;
  return view;
}

std::string hash_lse(const Tensors& t, const Part& part, int64_t group) {
  const int64_t batch = part.batch_end - part.batch_begin, rows = part.q_end - part.q_begin;
  const int64_t heads = (part.head_end - part.head_begin) * group;
  std::vector<float> cut;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* row =
          t.lse_view.row(part.batch_begin + b, part.head_begin * group + h) + part.q_begin;
      cut.insert(cut.end(), row, row + rows);
    }
  }
  return sha256_of(RowView{cut.data(), {batch, heads, rows}});
}

}  // namespace

std::vector<Timeline> record(const Attention& attention, const Tensors& tensors,
                             const Machine& machine, Pass pass, RunOptions options) {
  Timeline predicted, measured;
  simulate(attention.plan(pass), machine, &predicted);
  options.timeline = &measured;
  if (pass == Pass::backward) {
    attention.backward(tensors.backward(), options);
  } else {
    attention.forward(tensors.forward(), options);
  }
  std::vector<Timeline> timelines{std::move(predicted)};
  if (!measured.events.empty()) timelines.push_back(std::move(measured));
  return timelines;
}

void copy_inputs(const Tensors& from, const Part& source, Tensors& to, const Part& target) {
  const int64_t group = from.group();
  const auto copy = [&](const Tensor& a, const Tensor& b, int64_t heads, bool queries) {
    const TensorView in = cut(a.view(), source, heads, queries);
    const TensorView out = cut(b.view(), target, heads, queries);
    const int64_t size = size_of(in.dtype);
    for (int64_t i = 0; i < in.shape[0]; ++i) {
      for (int64_t l = 0; l < in.shape[1]; ++l) {
        for (int64_t h = 0; h < in.shape[2]; ++h) {
          std::memcpy(static_cast<std::byte*>(out.data) + out.offset(i, l, h) * size,
                      static_cast<const std::byte*>(in.data) + in.offset(i, l, h) * size,
                      in.shape[3] * size);
        }
      }
    }
  };
  copy(from.q, to.q, group, true);
  copy(from.dout, to.dout, group, true);
  copy(from.k, to.k, 1, false);
  copy(from.v, to.v, 1, false);
}

Hashes hash_outputs(const Tensors& t, const Part& part, Passes passes) {
  const int64_t group = t.group();
  Hashes hashes;
  for (const std::string& name : output_names(passes)) {
    hashes[name] = name == "lse"  ? hash_lse(t, part, group)
                   : name == "o"  ? sha256_of(cut(t.o.view(), part, group, true))
                   : name == "dq" ? sha256_of(cut(t.dq.view(), part, group, true))
                   : name == "dk" ? sha256_of(cut(t.dk.view(), part, 1, false))
                                  : sha256_of(cut(t.dv.view(), part, 1, false));
  }
  return hashes;
}

Hashes hash_outputs(const Tensors& t, Passes passes) {
  const auto& q = t.q.view().shape;
  const auto& k = t.k.view().shape;
  return hash_outputs(t, {0, q[0], 0, k[2], 0, q[1], 0, k[1]}, passes);
}

std::string digest(const Hashes& hashes) {
  std::string text;
  for (const auto& [name, hash] : hashes) text += name + " " + hash + "\n";
  return sha256(text);
}

}  // namespace verbatim::app
