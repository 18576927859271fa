// attention() of plain PyTorch tensors, from Python to the C interface and back through autograd,
// and a plan's passes: what _torch.py and _calls.py do, without the interpreter. native.py builds
// it for one PyTorch and one Python.
//
// Whatever is not plain (somebody observes the call, a tensor of another kind, a gradient of
// gradients) goes back to Python, which knows what to do or to say.

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/SafePyObject.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>

#include "verbatim/c.h"

namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr int64_t gpu_alignment = 16;  // bytes: kernels of a GPU move as many at a time

// What begin() is given.
decltype(&verbatim_attention_forward) forward_pass;
decltype(&verbatim_attention_backward) backward_pass;
decltype(&verbatim_attention_workspace) workspace_of;
const double* wait_limit;  // of all calls, in seconds
PyObject* kept;            // (make, *arguments) -> what make returns for them, made once
PyObject* make_plan;       // (mask, settings, numbers) -> (address, its owner, mask, settings)
PyObject* gradients_of;    // ((q, k, v, o, dout, lse), seed, mask, settings) -> (dq, dk, dv)
PyObject* check_status;    // raises what a verbatim_status means

[[noreturn]] void throw_python_error() {
  python_error error;
  error.persist();  // for the thread that asked for gradients
  throw std::move(error);
}

void check(verbatim_status status) {
  if (status == verbatim_ok) return;
  const pybind11::gil_scoped_acquire gil;
  const THPObjectPtr none(PyObject_CallFunction(check_status, "i", static_cast<int>(status)));
  throw_python_error();
}

// A mode, a transform or a tracer: each adds a key to this thread's.
bool somebody_observes() {
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  return (included | c10::default_included_set) != c10::default_included_set;
}

c10::DispatchKeySet keys_of_plain_tensors(c10::DispatchKey device, c10::BackendComponent backend) {
  return c10::DispatchKeySet({device, c10::DispatchKey::ADInplaceOrView}) |
         c10::getAutogradRelatedKeySetFromBackend(backend) |
         c10::getAutocastRelatedKeySetFromBackend(backend);
}

// Whether x is strided memory on the device and no more: other layouts and classes, tensors of a
// transform and lazy minus signs have keys of their own.
bool is_plain(const Tensor& x, c10::Device device) {
  using c10::DispatchKey;
  static const auto cpu = keys_of_plain_tensors(DispatchKey::CPU, c10::BackendComponent::CPUBit);
  static const auto cuda = keys_of_plain_tensors(DispatchKey::CUDA, c10::BackendComponent::CUDABit);
  const auto keys = device.is_cuda() ? cuda : cpu;
  const auto* autograd = torch::autograd::impl::get_autograd_meta(x);
  return (x.key_set() | keys) == keys && x.device() == device &&
         (autograd == nullptr || autograd->fw_grad_ == nullptr);
}

bool has_kernel(const Tensor& x) {
  const auto dtype = x.scalar_type();
  return x.dim() == 4 && x.size(0) > 0 &&
         (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf);
}

// Whether the library can read x's rows where they lie.
bool is_readable(const Tensor& x) {
  const auto shape = x.sizes(), stride = x.strides();
  if (stride[3] != 1 && shape[3] > 1) return false;
  if (!x.is_cuda()) return true;
  for (int i = 0; i < 3; ++i) {
    if (shape[i] != 1 && stride[i] * x.element_size() % gpu_alignment != 0) return false;
  }
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % gpu_alignment == 0;
}

Tensor readable(const Tensor& x) {
  return is_readable(x) ? x : x.clone(at::MemoryFormat::Contiguous);
}

verbatim_dtype dtype_of(const Tensor& x) {  // of one that has a kernel
  if (x.scalar_type() == at::kFloat) return verbatim_f32;
  return x.scalar_type() == at::kHalf ? verbatim_f16 : verbatim_bf16;
}

verbatim_tensor view(const Tensor& x) {  // (batch, length, heads, dim)
  verbatim_tensor view{const_cast<void*>(x.const_data_ptr()), dtype_of(x), {}, {}};
  std::copy_n(x.sizes().begin(), 4, view.shape);
  std::copy_n(x.strides().begin(), 4, view.stride);
  return view;
}

bool is_seed(const Tensor& x) {
  return is_plain(x, x.device()) && x.numel() == 1 && x.scalar_type() == at::kLong;
}

// `value` holds a seed that has to be read now.
verbatim_run_options run_options(c10::Device device, const Tensor& seed, uint64_t& value,
                                 int threads) {
  verbatim_run_options run{nullptr, threads, nullptr, nullptr, *wait_limit, nullptr, 0};
  if (device.is_cuda()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    run.stream = guard.getStreamNativeHandle(guard.getStream(device));
  }
  if (!seed.defined()) return run;
  if (seed.device() == device) {
    run.seed_at = static_cast<const uint64_t*>(seed.const_data_ptr());
  } else {
    value = static_cast<uint64_t>(seed.item<int64_t>());
    run.seed = &value;
  }
  return run;
}

struct Plan {
  const verbatim_attention* attention;
  c10::SafePyObject owner;  // the tuple that make_plan returned
  bool is_deterministic;    // torch.use_deterministic_algorithms, as it was
};

// Dense memory beside x that holds anything: at::empty() fills it under
// torch.use_deterministic_algorithms, and kernels write all of it.
Tensor unfilled(at::IntArrayRef sizes, const Tensor& x, at::ScalarType dtype) {
  const c10::OptionalDeviceGuard guard(x.device());
  const auto key = x.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  return at::detail::empty_generic(sizes, c10::GetAllocator(x.device().type()),
                                   c10::DispatchKeySet(key), dtype, std::nullopt);
}

// What a call on a GPU needs besides its tensors, of PyTorch's allocator; no memory on a CPU.
Tensor workspace(const verbatim_attention* plan, verbatim_pass pass, const Tensor& q,
                 verbatim_run_options& run) {
  if (!q.is_cuda()) return {};
  check(workspace_of(plan, pass, &run, &run.workspace_bytes));
  Tensor memory = unfilled({run.workspace_bytes}, q, at::kByte);
  run.workspace = memory.mutable_data_ptr();
  return memory;
}

// (o, lse); o like q with v's head dim, lse f32 (batch, heads, q_len).
std::pair<Tensor, Tensor> forward(const verbatim_attention* plan, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const Tensor& seed, int threads) {
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  const Tensor inputs[] = {readable(q), readable(k), readable(v)};
  Tensor o = unfilled({q.size(0), q.size(1), q.size(2), v.size(3)}, q, q.scalar_type());
  Tensor lse = unfilled({q.size(0), q.size(2), q.size(1)}, q, at::kFloat);
  const verbatim_forward_tensors tensors{view(inputs[0]), view(inputs[1]), view(inputs[2]), view(o),
                                         lse.mutable_data_ptr<float>()};
  uint64_t value = 0;
  auto run = run_options(q.device(), seed, value, threads);
  const Tensor memory = workspace(plan, verbatim_forward_pass, q, run);
  check(forward_pass(plan, &tensors, &run));
  return {std::move(o), std::move(lse)};
}

// (dq, dk, dv), like q, k and v.
variable_list backward(const verbatim_attention* plan, const Tensor& q, const Tensor& k,
                       const Tensor& v, const Tensor& o, const Tensor& dout, const Tensor& lse,
                       const Tensor& seed, int threads) {
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  const Tensor inputs[] = {readable(q), readable(k), readable(v), readable(o), readable(dout)};
  variable_list made{unfilled(q.sizes(), q, q.scalar_type()),
                     unfilled(k.sizes(), q, q.scalar_type()),
                     unfilled(v.sizes(), q, q.scalar_type())};
  const verbatim_backward_tensors tensors{
      view(inputs[0]), view(inputs[1]), view(inputs[2]),
      view(inputs[3]), view(inputs[4]), lse.const_data_ptr<float>(),
      view(made[0]),   view(made[1]),   view(made[2])};
  uint64_t value = 0;
  auto run = run_options(q.device(), seed, value, threads);
  const Tensor memory = workspace(plan, verbatim_backward_pass, q, run);
  check(backward_pass(plan, &tensors, &run));
  return made;
}

bool is_deterministic() { return at::globalContext().deterministicAlgorithms(); }

class AttentionBackward : public torch::autograd::Node {
 public:
  AttentionBackward(Plan plan, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& seed)
      : plan_(std::move(plan)), q_(q, false), k_(k, false), v_(v, false), seed_(seed, false) {
    set_next_edges(torch::autograd::collect_next_edges(q, k, v));
  }

  // What only exists after set_history().
  void save(const Tensor& o, const Tensor& lse) {
    o_ = SavedVariable(o, true);
    lse_ = SavedVariable(lse, false);
  }

  std::string name() const override { return "VerbatimAttentionBackward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* saved : {&q_, &k_, &v_, &o_, &lse_, &seed_}) saved->reset_data();
  }

  variable_list apply(variable_list&& gradients) override {
    const Tensor& dout = gradients[0];
    if (!dout.defined()) return variable_list(3);
    const auto [q, k, v, o, lse, seed] = unpack();
    const bool is_usual = !at::GradMode::is_enabled() &&
                          is_deterministic() == plan_.is_deterministic &&
                          are_plain({q, k, v, o, dout}) && is_plain(lse, q.device()) &&
                          lse.scalar_type() == at::kFloat && lse.is_contiguous() &&
                          (!seed.defined() || is_seed(seed));
    return is_usual ? backward(plan_.attention, q, k, v, o, dout, lse, seed, at::get_num_threads())
                    : in_python({q, k, v, o, dout, lse}, seed);
  }

 private:
  std::array<Tensor, 6> unpack() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {q_.unpack(),         k_.unpack(),   v_.unpack(),
            o_.unpack(getptr()), lse_.unpack(), seed_.unpack()};
  }

  static bool are_plain(std::initializer_list<Tensor> tensors) {
    const auto device = tensors.begin()->device();
    return std::all_of(tensors.begin(), tensors.end(),
                       [&](const Tensor& x) { return is_plain(x, device) && has_kernel(x); });
  }

  variable_list in_python(const std::array<Tensor, 6>& tensors, const Tensor& seed) const {
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr six(PyTuple_New(6));
    for (int i = 0; i < 6; ++i) PyTuple_SET_ITEM(six.get(), i, THPVariable_Wrap(tensors[i]));
    PyObject* owner = plan_.owner.ptr(getPyInterpreter());
    THPObjectPtr arguments(Py_BuildValue("NNOO", six.release(), THPVariable_Wrap(seed),
                                         PyTuple_GET_ITEM(owner, 2), PyTuple_GET_ITEM(owner, 3)));
    THPObjectPtr found(PyObject_CallObject(gradients_of, arguments));
    if (!found) throw_python_error();
    variable_list gradients;
    for (int i = 0; i < 3; ++i) {
      gradients.push_back(THPVariable_Unpack(PyTuple_GET_ITEM(found.get(), i)));
    }
    return gradients;
  }

  Plan plan_;
  SavedVariable q_, k_, v_, o_, lse_, seed_;
};

// The plan for these shapes, from Python's cache.
Plan plan_for(const Tensor& q, const Tensor& k, const Tensor& v, PyObject* mask,
              PyObject* settings) {
  const bool deterministic = is_deterministic();
  int64_t numbers[15] = {deterministic, q.device().index(),
                         dtype_of(q)};  // as _native.py reads them
  int64_t* next = numbers + 3;
  for (const auto* x : {&q, &k, &v}) next = std::copy_n(x->sizes().begin(), 4, next);
  THPObjectPtr bytes(PyBytes_FromStringAndSize(reinterpret_cast<char*>(numbers), sizeof numbers));
  PyObject* arguments[] = {make_plan, mask, settings, bytes.get()};
  PyObject* plan = PyObject_Vectorcall(kept, arguments, 4, nullptr);
  if (plan == nullptr) throw_python_error();
  return {static_cast<verbatim_attention*>(PyLong_AsVoidPtr(PyTuple_GET_ITEM(plan, 0))),
          c10::SafePyObject(plan, getPyInterpreter()), deterministic};
}

// Of PyTorch's own class.
bool is_tensor(PyObject* x) { return reinterpret_cast<PyObject*>(Py_TYPE(x)) == THPVariableClass; }

// (q, k, v, seed, mask, settings, return_lse) as _torch.attention's; None: for Python to do.
PyObject* attention(PyObject*, PyObject* const* arguments, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const int return_lse = PyObject_IsTrue(arguments[6]);
  if (return_lse < 0) return nullptr;
  for (int i = 0; i < 3; ++i) {
    if (!is_tensor(arguments[i])) Py_RETURN_NONE;
  }
  Tensor q = THPVariable_Unpack(arguments[0]);
  Tensor k = THPVariable_Unpack(arguments[1]);
  Tensor v = THPVariable_Unpack(arguments[2]);
  const Tensor seed = arguments[3] == Py_None ? Tensor() : THPVariable_Unpack(arguments[3]);
  const auto device = q.device();
  if (somebody_observes() || !(device.is_cpu() || device.is_cuda()) || !is_plain(q, device) ||
      !is_plain(k, device) || !is_plain(v, device) || (seed.defined() && !is_seed(seed))) {
    Py_RETURN_NONE;
  }
  if (at::autocast::is_autocast_enabled(device.type())) {
    const auto dtype = at::autocast::get_autocast_dtype(device.type());
    for (auto* x : {&q, &k, &v}) {  // as for matrix products
      if (x->is_floating_point() && x->scalar_type() != at::kDouble) *x = x->to(dtype);
    }
  }
  if (!has_kernel(q) || !has_kernel(k) || !has_kernel(v)) Py_RETURN_NONE;
  Plan plan = plan_for(q, k, v, arguments[4], arguments[5]);

  Tensor o, lse;
  {
    const pybind11::gil_scoped_release no_gil;
    std::tie(o, lse) = forward(plan.attention, q, k, v, seed, at::get_num_threads());
    if (at::GradMode::is_enabled() &&
        (q.requires_grad() || k.requires_grad() || v.requires_grad())) {
      const std::shared_ptr<AttentionBackward> node(
          new AttentionBackward(std::move(plan), q, k, v, seed), torch::autograd::deleteNode);
      torch::autograd::set_history(o, node);
      node->save(o, lse);
    }
  }
  if (!return_lse) return THPVariable_Wrap(o);
  return Py_BuildValue("NN", THPVariable_Wrap(o), THPVariable_Wrap(lse));
  END_HANDLE_TH_ERRORS
}

// What a plan's tensors are, as plan.py packs it.
struct PlannedTensors {
  int64_t q[4], k[4], v[4];
  int64_t dtype, device;  // a verbatim_dtype; the index of a GPU, or -1

  // Of q, k and v, or of q, k, v, o, dout and the LSE.
  bool are(const std::array<Tensor, 6>& x, Py_ssize_t count) const {
    const auto where = x[0].device();
    if (!(where.is_cpu() || where.is_cuda()) || (where.is_cuda() ? where.index() : -1) != device) {
      return false;
    }
    const std::array<int64_t, 4> o{q[0], q[1], q[2], v[3]};
    const at::IntArrayRef sizes[] = {q, k, v, o, o};
    for (int i = 0; i < std::min<Py_ssize_t>(count, 5); ++i) {
      if (!is_plain(x[i], where) || !has_kernel(x[i]) || dtype_of(x[i]) != dtype ||
          x[i].sizes() != sizes[i]) {
        return false;
      }
    }
    const Tensor& lse = x[5];
    return count == 3 || (is_plain(lse, where) && lse.scalar_type() == at::kFloat &&
                          lse.is_contiguous() && lse.sizes() == at::IntArrayRef{q[0], q[2], q[1]});
  }
};

// (address of a verbatim_attention, its PlannedTensors, tensors of one pass, seed, threads) as
// Plan.forward and Plan.backward have them; None: for Python to do.
PyObject* run(PyObject*, PyObject* const* arguments, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const auto* plan = static_cast<const verbatim_attention*>(PyLong_AsVoidPtr(arguments[0]));
  const int threads = static_cast<int>(PyLong_AsLong(arguments[4]));
  if (PyErr_Occurred()) return nullptr;
  const auto* planned = reinterpret_cast<const PlannedTensors*>(PyBytes_AsString(arguments[1]));
  std::array<Tensor, 6> x;
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments[2]);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(arguments[2], i);
    if (!is_tensor(item)) Py_RETURN_NONE;
    x[i] = THPVariable_Unpack(item);
  }
  Tensor seed;
  if (arguments[3] != Py_None) {
    if (!is_tensor(arguments[3])) Py_RETURN_NONE;
    seed = THPVariable_Unpack(arguments[3]);
    if (!is_seed(seed) || seed.device() != x[0].device()) Py_RETURN_NONE;
  }
  if (somebody_observes() || !planned->are(x, count)) Py_RETURN_NONE;

  variable_list made;
  {
    const pybind11::gil_scoped_release no_gil;
    if (count == 3) {
      auto [o, lse] = forward(plan, x[0], x[1], x[2], seed, threads);
      made = {std::move(o), std::move(lse)};
    } else {
      made = backward(plan, x[0], x[1], x[2], x[3], x[4], x[5], seed, threads);
    }
  }
  THPObjectPtr all(PyTuple_New(static_cast<Py_ssize_t>(made.size())));
  for (size_t i = 0; i < made.size(); ++i) {
    PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(std::move(made[i])));
  }
  return all.release();
  END_HANDLE_TH_ERRORS
}

// (forward, backward, workspace: addresses of C functions, that of wait_limit, kept, make_plan,
// gradients_of, check_status)
PyObject* begin(PyObject*, PyObject* arguments) {
  unsigned long long forward = 0, backward = 0, memory = 0, limit = 0;
  if (!PyArg_ParseTuple(arguments, "KKKKOOOO", &forward, &backward, &memory, &limit, &kept,
                        &make_plan, &gradients_of, &check_status)) {
    return nullptr;
  }
  forward_pass = reinterpret_cast<decltype(forward_pass)>(forward);
  backward_pass = reinterpret_cast<decltype(backward_pass)>(backward);
  workspace_of = reinterpret_cast<decltype(workspace_of)>(memory);
  wait_limit = reinterpret_cast<const double*>(limit);
  for (auto* object : {kept, make_plan, gradients_of, check_status}) Py_INCREF(object);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"attention", reinterpret_cast<PyCFunction>(attention), METH_FASTCALL, nullptr},
    {"run", reinterpret_cast<PyCFunction>(run), METH_FASTCALL, nullptr},
    {"begin", begin, METH_VARARGS, nullptr},
    {}};
PyModuleDef module{PyModuleDef_HEAD_INIT, "verbatim_torch", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_verbatim_torch() { return PyModule_Create(&module); }
