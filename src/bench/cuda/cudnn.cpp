#include "bench/cuda/cudnn.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <unordered_map>

#include "verbatim/error.h"

void* cudnn_frontend::cudnn_dlhandle = nullptr;  // what the headers take their symbols from

namespace verbatim::bench {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr const char* kOperation = "bench.cudnn";

CudnnFacts open_library() {
  const char* const given = std::getenv("VERBATIM_CUDNN");
  fe::cudnn_dlhandle = dlopen(given ? given : "libcudnn.so.9", RTLD_NOW);
  if (!fe::cudnn_dlhandle) {
    return {.version = "", .missing = "no libcudnn.so.9 is found (set VERBATIM_CUDNN to its path)"};
  }
  try {
    fe::detail::get_cuda_runtime_version();  // throws when there is no libcudart
    const size_t version = fe::detail::get_backend_version();
    return {.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100),
            .missing = ""};
  } catch (const std::exception& error) {
    return {.version = "", .missing = error.what()};
  }
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::unsupported, kOperation, message);
}

void check(fe::error_t status) {
  if (status.is_bad()) refuse("cuDNN: " + status.get_message());
}

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(ErrorCode::device, kOperation,
              fmt::format("{} failed with status {}", what, static_cast<int>(status)));
}

/// Whether the mask is causal, which cuDNN makes itself; refuses all but full and causal ones.
bool is_causal(const Problem& p, const Mask& mask) {
  const int64_t heads = p.batch * p.q_heads;
  const int64_t area = mask.area(p.batch, p.q_heads, p.kv_heads);  // less with key lengths
  if (area == heads * p.q_len * p.kv_len) return false;
  if (p.q_len == p.kv_len && mask.name() == "causal" && area == heads * p.q_len * (p.q_len + 1) / 2)
    return true;
  throw Error(ErrorCode::unsupported, kOperation, "cuDNN is asked for dense masks only",
              {"mask", mask.name(), "full, or causal with equal lengths", "causal"});
}

fe::DataType_t data_type(const Problem& p) {
  if (p.softcap != 0 || p.dropout != 0) refuse("cuDNN is asked for no softcap and no dropout");
  if (p.dtype != Dtype::bf16 && p.dtype != Dtype::f16)
    refuse("cuDNN's attention takes bf16 and f16; got " + std::string(to_string(p.dtype)));
  return p.dtype == Dtype::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
}

/// One pass: a graph, built and with its workspace, and the addresses of its tensors.
class PassGraph {
 public:
  PassGraph(cudnnHandle_t handle, fe::DataType_t type) : handle_(handle) {
    graph_.set_io_data_type(type)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  Tensor input(const TensorView& view) {
    return place(graph_.tensor(fe::graph::Tensor_attributes()), view);
  }
  Tensor input(const RowView& rows) {
    return place(graph_.tensor(fe::graph::Tensor_attributes()), rows);
  }
  template <class View>
  void output(const Tensor& tensor, const View& view) {
    place(tensor, view)->set_output(true);
  }
  Graph& graph() { return graph_; }

  void build(const Device& device) {
    check(graph_.build(handle_, {fe::HeurMode_t::A}));
    check(graph_.get_workspace_size(workspace_bytes_));
    workspace_ = device.allocate(workspace_bytes_);
  }
  void execute() { check(graph_.execute(handle_, addresses_, workspace_.get())); }
  int64_t workspace_bytes() const { return workspace_bytes_; }

 private:
  /// cuDNN's dimensions are (batch, heads, length, dim), wherever they lie in memory.
  Tensor place(const Tensor& tensor, const TensorView& view) {
    const auto& [batch, length, head, dim] = view.stride;
    return place(tensor, view.data, {view.shape[0], view.shape[2], view.shape[1], view.shape[3]},
                 {batch, head, length, dim});
  }
  Tensor place(const Tensor& tensor, const RowView& rows) {
    const auto& [batch, heads, length] = rows.shape;
    tensor->set_data_type(fe::DataType_t::FLOAT);
    return place(tensor, rows.data, {batch, heads, length, 1}, {heads * length, length, 1, 1});
  }
  Tensor place(const Tensor& tensor, void* data, std::vector<int64_t> dim,
               std::vector<int64_t> stride) {
    const int64_t id = std::ssize(addresses_) + 1;
    addresses_[id] = data;
    tensor->set_uid(id).set_dim(dim).set_stride(stride);
    return tensor;
  }

  cudnnHandle_t handle_;
  Graph graph_;
  std::unordered_map<int64_t, void*> addresses_;  // by the tensors' ids
  std::shared_ptr<void> workspace_;
  int64_t workspace_bytes_ = 0;
};

std::shared_ptr<cudnnContext> make_handle() {
  cudnnHandle_t handle = nullptr;
  check(fe::detail::create_handle(&handle), "cudnnCreate");
  return {handle, [](cudnnHandle_t h) { fe::detail::destroy_handle(h); }};
}

/// Both passes, and the handle that they run with.
struct Cudnn {
  explicit Cudnn(fe::DataType_t type) : forward(handle.get(), type), backward(handle.get(), type) {}

  const std::shared_ptr<cudnnContext> handle = make_handle();
  PassGraph forward, backward;
};

}  // namespace

const CudnnFacts& cudnn_facts() {
  static const CudnnFacts facts = open_library();
  return facts;
}

Passes make_cudnn(const Device& device, const Problem& problem, const Mask& mask,
                  const Tensors& tensors, bool deterministic) {
  if (!cudnn_facts().missing.empty()) refuse(cudnn_facts().missing);
  const bool causal = is_causal(problem, mask);
  const fe::DataType_t type = data_type(problem);
  const auto scale = static_cast<float>(problem.softmax_scale());
  const auto cudnn = std::make_shared<Cudnn>(type);

  const ForwardTensors& f = tensors.forward;
  PassGraph& forward = cudnn->forward;
  const auto [o, lse] = forward.graph().sdpa(
      forward.input(f.q), forward.input(f.k), forward.input(f.v),
      fe::graph::SDPA_attributes().set_generate_stats(true).set_attn_scale(scale).set_causal_mask(
          causal));
  forward.output(o, f.o);
  forward.output(lse, f.lse);
  forward.build(device);

  const BackwardTensors& b = tensors.backward;
  PassGraph& backward = cudnn->backward;
  const auto [dq, dk, dv] = backward.graph().sdpa_backward(
      backward.input(b.q), backward.input(b.k), backward.input(b.v), backward.input(b.o),
      backward.input(b.dout), backward.input(b.lse),
      fe::graph::SDPA_backward_attributes()
          .set_attn_scale(scale)
          .set_causal_mask(causal)
          .set_deterministic_algorithm(deterministic));
  backward.output(dq, b.dq);
  backward.output(dk, b.dk);
  backward.output(dv, b.dv);
  backward.build(device);

  return {.forward = [cudnn] { cudnn->forward.execute(); },
          .backward = [cudnn] { cudnn->backward.execute(); },
          .forward_workspace = forward.workspace_bytes(),
          .backward_workspace = backward.workspace_bytes()};
}

}  // namespace verbatim::bench
