// attention() of JAX arrays: XLA's calls of foreign functions, as calls of the C interface. _xla.py
// has it compiled with jaxlib's headers and registers the four handlers at the end.
//
// A handler finds its plan by text, never by an address: a compiled program may come from a cache
// that another process wrote. It may be called from several threads at once.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "verbatim/c.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using ffi::AnyBuffer;
using ffi::ErrorCode;
using Text = std::string_view;

constexpr size_t workspace_alignment = 256;  // bytes, as c.h asks for

// What verbatim_jax_begin() is given.
decltype(&verbatim_attention_create) create;
decltype(&verbatim_attention_destroy) destroy;
decltype(&verbatim_attention_forward) forward_pass;
decltype(&verbatim_attention_backward) backward_pass;
decltype(&verbatim_attention_workspace) workspace_of;
decltype(&verbatim_attention_bytes) bytes_of;
decltype(&verbatim_last_error) last_error;
const double* wait_limit;  // of all calls, in seconds

struct Failure {
  ErrorCode code;
  std::string message;
};

[[noreturn]] void refuse(std::string message) {
  throw Failure{ErrorCode::kInvalidArgument, std::move(message)};
}

ErrorCode code_of(verbatim_status status) {
  switch (status) {
    case verbatim_invalid_argument:
      return ErrorCode::kInvalidArgument;
    case verbatim_unsupported:
      return ErrorCode::kUnimplemented;
    default:
      return ErrorCode::kInternal;
  }
}

void check(verbatim_status status) {
  if (status != verbatim_ok) throw Failure{code_of(status), last_error()};
}

// Owns a verbatim_attention.
struct Handle {
  explicit Handle(const std::string& spec) {
    check(create(spec.c_str(), &attention));
    if (bytes_of(attention, &bytes) != verbatim_ok) bytes = 0;
    bytes += static_cast<int64_t>(spec.size());
  }
  ~Handle() { destroy(attention); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  verbatim_attention* attention = nullptr;
  int64_t bytes = 0;  // of the host's memory
};

// Handles by specification, in two generations as _handles.py has them: when the younger is full,
// what only the older has goes, which was not used for longest.
class Handles {
 public:
  std::shared_ptr<const Handle> get(const std::string& spec) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = younger_.find(spec); found != younger_.end()) return found->second;
      if (const auto found = older_.find(spec); found != older_.end()) {
        const auto handle = found->second;  // keep() may end the older generation
        return keep(spec, handle);
      }
    }
    const auto made = std::make_shared<const Handle>(spec);  // others need not wait for planning
    const std::lock_guard<std::mutex> lock(mutex_);
    return keep(spec, made);
  }

 private:
  using Generation = std::unordered_map<std::string, std::shared_ptr<const Handle>>;

  std::shared_ptr<const Handle> keep(const std::string& spec,
                                     const std::shared_ptr<const Handle>& handle) {
    if (younger_.size() == most || bytes_ + handle->bytes > most_bytes) {
      older_ = std::exchange(younger_, {});
      bytes_ = 0;
    }
    const auto [at, is_new] = younger_.emplace(spec, handle);
    if (is_new) bytes_ += handle->bytes;
    return at->second;
  }

  static constexpr size_t most = 128;
  static constexpr int64_t most_bytes = 256 << 20;
  std::mutex mutex_;
  Generation younger_, older_;
  int64_t bytes_ = 0;  // of the younger
};

Handles& handles() {
  static auto* const kept = new Handles;  // never destroyed: XLA's threads may outlive it
  return *kept;
}

// What jax.py has written: objects of JSON.
struct Asked {
  Text problem, mask, options;
};

// Where a call runs.
struct Place {
  std::string device;  // as options name it
  void* stream = nullptr;
  ffi::ScratchAllocator* scratch = nullptr;  // of a GPU
};

int64_t product(AnyBuffer::Dimensions dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

std::optional<verbatim_dtype> dtype_of(const AnyBuffer& x) {
  switch (x.element_type()) {
    case ffi::DataType::F32:
      return verbatim_f32;
    case ffi::DataType::BF16:
      return verbatim_bf16;
    case ffi::DataType::F16:
      return verbatim_f16;
    default:
      return std::nullopt;
  }
}

// (..., batch, length, heads, dim): jax.vmap puts its axes in front, and they count as batch.
verbatim_tensor view(const char* name, const AnyBuffer& x) {
  const auto dims = x.dimensions();
  const auto dtype = dtype_of(x);
  if (dims.size() < 4 || !dtype) {
    refuse("[tensors] no tensor of attention: " + std::string(name) + "; got " +
           std::to_string(dims.size()) + " dimensions of XLA's dtype " +
           std::to_string(static_cast<int>(x.element_type())) +
           ", expected (batch, length, heads, dim) of float32, bfloat16 or float16");
  }
  verbatim_tensor t{x.untyped_data(), *dtype, {}, {}};
  t.shape[0] = product(dims.first(dims.size() - 3));
  std::copy(dims.end() - 3, dims.end(), t.shape + 1);
  t.stride[3] = 1;
  for (int i = 3; i > 0; --i) t.stride[i - 1] = t.stride[i] * std::max<int64_t>(t.shape[i], 1);
  return t;
}

float* rows(const AnyBuffer& lse, const verbatim_tensor& q) {  // (..., batch, q_heads, q_len)
  const auto dims = lse.dimensions();
  if (lse.element_type() != ffi::DataType::F32 || dims.size() < 3 ||
      dims[dims.size() - 1] != q.shape[1] || dims[dims.size() - 2] != q.shape[2] ||
      product(dims) != q.shape[0] * q.shape[1] * q.shape[2]) {
    refuse("[tensors] wrong shape or dtype of lse; expected float32 of (batch, q_heads, q_len)");
  }
  return static_cast<float*>(lse.untyped_data());
}

// `object` with more members in front.
std::string joined(Text object, const std::string& members) {
  if (object.size() < 3 || object.front() != '{') {
    refuse("[jax] an attribute is no object of JSON; got " + std::string(object.substr(0, 60)) +
           ", expected what verbatim_attn.jax writes");
  }
  return "{" + members + ", " + std::string(object.substr(1));
}

std::string specification(const Asked& asked, const verbatim_tensor& q, const verbatim_tensor& k,
                          const verbatim_tensor& v, const std::string& device) {
  static constexpr const char* dtypes[] = {"f32", "bf16", "f16"};
  std::string sizes = "\"dtype\": \"" + std::string(dtypes[q.dtype]) + "\"";
  for (const auto& [name, size] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"batch", q.shape[0]},
                                                              {"q_len", q.shape[1]},
                                                              {"q_heads", q.shape[2]},
                                                              {"head_dim", q.shape[3]},
                                                              {"kv_len", k.shape[1]},
                                                              {"kv_heads", k.shape[2]},
                                                              {"head_dim_v", v.shape[3]}}) {
    sizes += ", \"" + std::string(name) + "\": " + std::to_string(size);
  }
  return "{\"problem\": " + joined(asked.problem, sizes) +
         ", \"mask\": " + std::string(asked.mask) +
         ", \"options\": " + joined(asked.options, "\"device\": \"" + device + "\"") + "}";
}

// `value` holds a seed that has to be read now: (2) words of 32 bits, the lower one first.
void take_seed(const ffi::RemainingArgs& rest, const Place& place, verbatim_run_options& run,
               uint64_t& value) {
  if (rest.size() == 0) return;
  const auto found = rest.get<AnyBuffer>(0);
  if (rest.size() != 1 || !found || found->element_type() != ffi::DataType::U32 ||
      found->element_count() != 2) {
    refuse("[tensors] no seed; expected two words of uint32");
  }
  if (place.scratch != nullptr) {
    run.seed_at = static_cast<const uint64_t*>(found->untyped_data());
  } else {
    std::memcpy(&value, found->untyped_data(), sizeof value);
    run.seed = &value;
  }
}

// Of XLA's allocator, until the handler returns: XLA gives it away again in sequence with the work
// on the stream.
void take_workspace(const Handle& handle, verbatim_pass pass, const Place& place,
                    verbatim_run_options& run) {
  if (place.scratch == nullptr) return;
  int64_t bytes = 0;
  check(workspace_of(handle.attention, pass, &run, &bytes));
  if (bytes == 0) return;
  size_t room = static_cast<size_t>(bytes) + workspace_alignment;
  const auto memory = place.scratch->Allocate(room);  // which takes no alignment above 16
  if (!memory) {
    throw Failure{ErrorCode::kResourceExhausted,
                  "[jax] no memory for the workspace; got none, expected " + std::to_string(bytes) +
                      " bytes on " + place.device};
  }
  run.workspace = *memory;
  std::align(workspace_alignment, static_cast<size_t>(bytes), run.workspace, room);
  run.workspace_bytes = bytes;
}

template <class Pass, class Tensors>
void run(Pass function, verbatim_pass pass, const Tensors& tensors, const ffi::RemainingArgs& seed,
         const Asked& asked, const Place& place) {
  const auto spec = specification(asked, tensors.q, tensors.k, tensors.v, place.device);
  const auto handle = handles().get(spec);  // held until the call has returned
  verbatim_run_options how{place.stream, 0, nullptr, nullptr, *wait_limit, nullptr, 0};
  uint64_t value = 0;
  take_seed(seed, place, how, value);
  take_workspace(*handle, pass, place, how);
  check(function(handle->attention, &tensors, &how));
}

// XLA is C to its handlers: nothing is thrown through it.
template <class F>
ffi::Error guarded(F&& work) {
  try {
    work();
    return ffi::Error::Success();
  } catch (const Failure& failure) {
    return {failure.code, failure.message};
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
}

using Result = ffi::Result<AnyBuffer>;

ffi::Error forward(AnyBuffer q, AnyBuffer k, AnyBuffer v, ffi::RemainingArgs seed, Result o,
                   Result lse, const Asked& asked, const Place& place) {
  return guarded([&] {
    const auto queries = view("q", q);
    const verbatim_forward_tensors tensors{
        queries, view("k", k), view("v", v), view("o", *o), rows(*lse, queries),
        nullptr, nullptr,      nullptr};
    run(forward_pass, verbatim_forward_pass, tensors, seed, asked, place);
  });
}

ffi::Error backward(AnyBuffer q, AnyBuffer k, AnyBuffer v, AnyBuffer o, AnyBuffer dout,
                    AnyBuffer lse, ffi::RemainingArgs seed, Result dq, Result dk, Result dv,
                    const Asked& asked, const Place& place) {
  return guarded([&] {
    const auto queries = view("q", q);
    const verbatim_backward_tensors tensors{queries,         view("k", k),       view("v", v),
                                            view("o", o),    view("dout", dout), rows(lse, queries),
                                            view("dq", *dq), view("dk", *dk),    view("dv", *dv)};
    run(backward_pass, verbatim_backward_pass, tensors, seed, asked, place);
  });
}

auto forward_arguments() {
  return ffi::Ffi::Bind()
      .Arg<AnyBuffer>()  // q
      .Arg<AnyBuffer>()  // k
      .Arg<AnyBuffer>()  // v
      .RemainingArgs()
      .Ret<AnyBuffer>()  // o
      .Ret<AnyBuffer>()  // lse
      .Attr<Text>("problem")
      .Attr<Text>("mask")
      .Attr<Text>("options");
}

auto backward_arguments() {
  return ffi::Ffi::Bind()
      .Arg<AnyBuffer>()  // q
      .Arg<AnyBuffer>()  // k
      .Arg<AnyBuffer>()  // v
      .Arg<AnyBuffer>()  // o
      .Arg<AnyBuffer>()  // dout
      .Arg<AnyBuffer>()  // lse
      .RemainingArgs()
      .Ret<AnyBuffer>()  // dq
      .Ret<AnyBuffer>()  // dk
      .Ret<AnyBuffer>()  // dv
      .Attr<Text>("problem")
      .Attr<Text>("mask")
      .Attr<Text>("options");
}

template <class Binding>
auto on_cuda(Binding&& binding) {
  return std::move(binding)
      .template Ctx<ffi::PlatformStream<void*>>()
      .template Ctx<ffi::DeviceOrdinal>()
      .template Ctx<ffi::ScratchAllocator>();
}

Place cuda(void* stream, int32_t ordinal, ffi::ScratchAllocator& scratch) {
  return {"cuda:" + std::to_string(ordinal), stream, &scratch};
}

}  // namespace

#pragma GCC visibility push(default)

extern "C" void verbatim_jax_begin(decltype(create) made, decltype(destroy) ended,
                                   decltype(forward_pass) forward, decltype(backward_pass) backward,
                                   decltype(workspace_of) workspace, decltype(bytes_of) bytes,
                                   decltype(last_error) error, const double* limit) {
  create = made;
  destroy = ended;
  forward_pass = forward;
  backward_pass = backward;
  workspace_of = workspace;
  bytes_of = bytes;
  last_error = error;
  wait_limit = limit;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    verbatim_jax_forward_cpu,
    [](AnyBuffer q, AnyBuffer k, AnyBuffer v, ffi::RemainingArgs seed, Result o, Result lse,
       Text problem, Text mask, Text options) {
      return forward(q, k, v, seed, o, lse, {problem, mask, options}, {"cpu"});
    },
    forward_arguments());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    verbatim_jax_backward_cpu,
    [](AnyBuffer q, AnyBuffer k, AnyBuffer v, AnyBuffer o, AnyBuffer dout, AnyBuffer lse,
       ffi::RemainingArgs seed, Result dq, Result dk, Result dv, Text problem, Text mask,
       Text options) {
      return backward(q, k, v, o, dout, lse, seed, dq, dk, dv, {problem, mask, options}, {"cpu"});
    },
    backward_arguments());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    verbatim_jax_forward_cuda,
    [](AnyBuffer q, AnyBuffer k, AnyBuffer v, ffi::RemainingArgs seed, Result o, Result lse,
       Text problem, Text mask, Text options, void* stream, int32_t ordinal,
       ffi::ScratchAllocator scratch) {
      return forward(q, k, v, seed, o, lse, {problem, mask, options},
                     cuda(stream, ordinal, scratch));
    },
    on_cuda(forward_arguments()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    verbatim_jax_backward_cuda,
    [](AnyBuffer q, AnyBuffer k, AnyBuffer v, AnyBuffer o, AnyBuffer dout, AnyBuffer lse,
       ffi::RemainingArgs seed, Result dq, Result dk, Result dv, Text problem, Text mask,
       Text options, void* stream, int32_t ordinal, ffi::ScratchAllocator scratch) {
      return backward(q, k, v, o, dout, lse, seed, dq, dk, dv, {problem, mask, options},
                      cuda(stream, ordinal, scratch));
    },
    on_cuda(backward_arguments()));

#pragma GCC visibility pop
