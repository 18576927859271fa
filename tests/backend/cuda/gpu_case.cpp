#include "backend/cuda/gpu_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/random.h"

namespace verbatim::test {
namespace {

constexpr double kLimit = 2;  // of the error ratio: FlashAttention's factor

std::array<int64_t, 4> strides(std::array<int64_t, 4> shape, int64_t gap) {
  if (gap == 0) return TensorView::dense(nullptr, Dtype::f32, shape).stride;
  const int64_t row = shape[3] + gap, head = row * std::max<int64_t>(shape[1], 1);
  return {head * shape[2] + gap, row, head, 1};
}

std::string describe(const char* name, const Comparison& c) {
  if (c.within(kLimit)) return "";
  const auto [b, l, h, d] = c.worst;
  return fmt::format("{}: ratio {:.3g}, {} non-finite, worst [{}, {}, {}, {}] got {} expected {}; ",
                     name, c.ratio, c.nonfinite_mismatches, b, l, h, d, c.got, c.expected);
}

}  // namespace

const cuda::CudaBackend* gpu() {
  static const std::unique_ptr<cuda::CudaBackend> backend = [] {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // a stream must not queue behind another's
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      return std::unique_ptr<cuda::CudaBackend>();
    }
    auto made = std::make_unique<cuda::CudaBackend>(0);
    made->set_wait_limit(2);
    return made;
  }();
  return backend.get();
}

std::string gpu_arithmetic() {
  const char* asked = std::getenv("VERBATIM_ARITHMETIC");
  return asked ? asked : gpu() ? std::string(gpu()->arithmetic()) : "sm80";
}

std::vector<Named> patterns(int64_t length, int64_t kv_heads) {
  const std::vector<int64_t> docs{length / 8, 0, length / 3, 1, length / 4, 77, 300};
  const std::vector<int64_t> prefix{100}, edges{0, 100, 101, 500, length};
  const std::vector<int64_t> cu_seqlens{0, length / 3, length / 3, length};
  return {{"full", masks::full(length, length - 37)},
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
          {"variable_block_sparse", masks::variable_block_sparse(edges, edges, 0.5, 7, kv_heads)},
          {"windows", masks::windows(cu_seqlens, cu_seqlens, 200, 30)}};
}

std::string to_string(const HeadDims& dims) {
  return dims.qk == dims.v ? fmt::to_string(dims.qk) : fmt::format("{}v{}", dims.qk, dims.v);
}
std::vector<HeadDims> hopper_head_dims() { return {64, 128, {192, 128}}; }
std::vector<HeadDims> every_head_dims() { return {64, 128, {192, 128}, 192}; }

Problem problem_of(const Mask& mask, const HeadDims& dims, int64_t batch) {
  Problem p;
  p.batch = batch;
  p.q_heads = 8;
  p.kv_heads = 2;
  p.q_len = mask.q_len();
  p.kv_len = mask.kv_len();
  p.head_dim = dims.qk;
  p.head_dim_v = dims.v;
  p.dtype = Dtype::bf16;
  return p;
}

GpuTensor::GpuTensor(Dtype dtype, std::array<int64_t, 4> shape, int64_t gap)
    : host(dtype, shape, strides(shape, gap)) {
  cuda::check(cudaMalloc(&device_, host.bytes().size()), "test");
  upload();
}
GpuTensor::GpuTensor(GpuTensor&& other) noexcept
    : host(std::move(other.host)),
      device_(std::exchange(other.device_, nullptr)),
      scales_(std::move(other.scales_)),
      device_scales_(std::exchange(other.device_scales_, nullptr)) {}
GpuTensor::~GpuTensor() {
  cudaFree(device_);
  cudaFree(device_scales_);
}

TensorView GpuTensor::host_view() const {
  TensorView view = host.view();
  if (device_scales_) view.scales = scales_.data();
  return view;
}
TensorView GpuTensor::view() const {
  TensorView view = host.view();
  view.data = static_cast<uint8_t*>(device_) + GuardedTensor::kGuard;
  view.scales = static_cast<const float*>(device_scales_);
  return view;
}
void GpuTensor::set_scales(std::vector<float> of_heads) {
  scales_ = std::move(of_heads);
  cuda::check(cudaFree(std::exchange(device_scales_, nullptr)), "test");
  const size_t bytes = scales_.size() * sizeof(float);
  cuda::check(cudaMalloc(&device_scales_, bytes), "test");
  cuda::check(cudaMemcpy(device_scales_, scales_.data(), bytes, cudaMemcpyHostToDevice), "test");
  cuda::check(cudaStreamSynchronize(nullptr), "test");
}
RowView GpuTensor::row_view() const {
  RowView rows = host.row_view();
  rows.data = static_cast<float*>(view().data);
  return rows;
}
void GpuTensor::upload() {
  auto& bytes = host.bytes();
  cuda::check(cudaMemcpy(device_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "test");
  cuda::check(cudaStreamSynchronize(nullptr), "test");  // of pageable memory it may still be going
}
void GpuTensor::download() {
  auto& bytes = host.bytes();
  cuda::check(cudaMemcpy(bytes.data(), device_, bytes.size(), cudaMemcpyDeviceToHost), "test");
}

GpuCase::GpuCase(const Problem& p, Mask m, uint64_t seed, int64_t gap)
    : problem(p),
      mask(std::move(m)),
      q(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim}, gap),
      k(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim}, gap),
      v(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim_v}),
      dout(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim_v}, gap),
      o(p.o_dtype(), {p.batch, p.q_len, p.q_heads, p.head_dim_v}, gap),
      lse(GpuTensor::rows({p.batch, p.q_heads, p.q_len})),
      dq(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim}, gap),
      dk(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim}),
      dv(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim_v}, gap) {
  for (GpuTensor* input : {&q, &k, &v, &dout}) {
    fill_normal(input->host.view(), seed++);
    input->upload();
  }
  if (p.dtype != Dtype::e4m3) return;
  Random random(seed);
  for (GpuTensor* input : {&q, &k, &v}) {
    std::vector<float> scales;
    for (int64_t h = 0; h < input->host.view().shape[2]; ++h)
      scales.push_back(static_cast<float>(random.between(1, 16)) / 16);
    if (random.chance(0.75)) input->set_scales(std::move(scales));
  }
}

ForwardTensors GpuCase::forward() const {
  return {q.view(), k.view(), v.view(), o.view(), lse.row_view()};
}
BackwardTensors GpuCase::backward() const {
  return {q.view(),       k.view(),  v.view(),  o.view(), dout.view(),
          lse.row_view(), dq.view(), dk.view(), dv.view()};
}

SharedPlan GpuCase::plan(Pass pass, const std::string& order, TileShape tile,
                         const std::string& placement, int32_t workers,
                         const std::string& arithmetic) const {
  PlanOptions options;
  options.pass = pass;
  options.order = order;
  options.level = Level::run_to_run;
  options.tile = tile;
  options.workers = workers;
  options.placement = placement;
  options.arithmetic = arithmetic;
  return share(make_plan(problem, mask, options));
}

void GpuCase::poison() {
  for (GpuTensor* output : outputs()) {
    output->host.poison();
    output->upload();
  }
}

void GpuCase::run(const cuda::CudaBackend& backend, const SharedPlan& forward_plan,
                  const SharedPlan& backward_plan, void* stream) {
  poison();
  const RunOptions options{.stream = stream};
  backend.forward(forward_plan, forward(), options);
  backend.backward(backward_plan, backward(), options);
  backend.synchronize(options);
  for (GpuTensor* output : outputs()) output->download();
}

std::vector<std::vector<uint8_t>> GpuCase::bits() {
  std::vector<std::vector<uint8_t>> all;
  for (GpuTensor* output : outputs()) all.push_back(output->host.bytes());
  return all;
}

Check GpuCase::check(Pass pass, const std::optional<Selection>& rows) {
  const BackwardTensors t{q.host_view(),  k.host_view(),    v.host_view(),
                          o.host.view(),  dout.host.view(), lse.host.row_view(),
                          dq.host.view(), dk.host.view(),   dv.host.view()};
  const Selection of = rows ? *rows : Selection::all(problem);
  const int threads = rows ? 0 : 1;  // whole problems are small, and checked side by side
  if (pass == Pass::backward) return check_backward(problem, mask, t, of, threads);
  return check_forward(problem, mask, {t.q, t.k, t.v, t.o, t.lse}, of, threads);
}

std::string GpuCase::examine(double& worst_ratio, Pass pass) {
  const Check check = this->check(pass);
  // LSE comes from scores as large as it or the cap, which tensor cores add with truncation: 16 ulp
  // of that (2e-6 of it) are rounding. The largest seen is 12.
  const double lse_error = std::abs(check.lse.got - check.lse.expected);
  const double ulp = 1.2e-7 * std::max(std::abs(check.lse.expected), problem.softcap);
  const bool within_ulps = check.lse.nonfinite_mismatches == 0 && lse_error <= 16 * ulp;
  worst_ratio = std::max(check.o.ratio, within_ulps ? 0 : check.lse.ratio);
  std::string wrong = describe("o", check.o) + (within_ulps ? "" : describe("lse", check.lse));
  for (const auto& [name, gradient] :
       {std::pair{"dq", &check.dq}, {"dk", &check.dk}, {"dv", &check.dv}}) {
    if (!*gradient) continue;
    worst_ratio = std::max(worst_ratio, (*gradient)->ratio);
    wrong += describe(name, **gradient);
  }
  for (GpuTensor* output : outputs()) {
    if (!output->host.guards_intact()) wrong += "a write outside an output; ";
  }
  return wrong;
}

}  // namespace verbatim::test
