#include "backend/backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <string>

namespace verbatim {
namespace {

using Shape = std::array<int64_t, 4>;

[[noreturn]] void refuse(const char* tensor, std::string_view what, std::string got,
                         std::string expected, std::string nearest = "") {
  throw Error(ErrorCode::invalid_argument, "tensors", fmt::format("{} of {}", what, tensor),
              {tensor, std::move(got), std::move(expected), std::move(nearest)});
}

/// Whether two elements of the view share memory.
bool overlaps(const TensorView& t) {
  std::array<int, 4> dims{0, 1, 2, 3};
  std::sort(dims.begin(), dims.end(), [&](int a, int b) { return t.stride[a] < t.stride[b]; });
  int64_t extent = 1;  // elements that the dims so far span
  for (const int d : dims) {
    if (t.shape[d] <= 1) continue;
    if (t.stride[d] < extent) return true;
    extent += (t.shape[d] - 1) * t.stride[d];
  }
  return false;
}

/// Whether the last element lies more bytes behind the first than 63 bits count.
bool reaches_too_far(const TensorView& t) {
  int64_t sum = 0;
  for (size_t d = 0; d < t.shape.size(); ++d) {
    int64_t part = 0;
    if (__builtin_mul_overflow(t.shape[d] - 1, t.stride[d], &part) ||
        __builtin_mul_overflow(part, size_of(t.dtype), &part) ||
        __builtin_add_overflow(sum, part, &sum))
      return true;
  }
  return false;
}

void check(const char* name, const TensorView& t, Dtype dtype, const Shape& shape, bool output) {
  if (t.dtype != dtype)
    refuse(name, "wrong dtype", std::string(to_string(t.dtype)), std::string(to_string(dtype)));
  if (t.scales != nullptr && dtype != Dtype::e4m3)
    refuse(name, "scales", "one a head", "none: they are of e4m3", "a null pointer");
  if (t.shape != shape)
    refuse(name, "wrong shape", fmt::format("{}", t.shape), fmt::format("{}", shape));
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  if (t.data == nullptr) refuse(name, "no memory", "a null pointer", "an address");
  if (t.stride[3] != 1 && shape[3] > 1)
    refuse(name, "stride of the last dimension", fmt::to_string(t.stride[3]), "1", "a dense copy");
  if (*std::min_element(t.stride.begin(), t.stride.end()) < 0)
    refuse(name, "negative stride", fmt::format("{}", t.stride), "strides of at least 0");
  if (reaches_too_far(t))
    refuse(name, "strides beyond all memory", fmt::format("{}", t.stride),
           "strides between elements of one array", "a dense tensor");
  if (output && overlaps(t))
    refuse(name, "overlapping elements", fmt::format("strides {}", t.stride),
           "an output whose elements are distinct", "a dense tensor");
}

void check(const char* name, const RowView& r, const Problem& p) {
  const std::array<int64_t, 3> shape{p.batch, p.q_heads, p.q_len};
  if (r.shape != shape)
    refuse(name, "wrong shape", fmt::format("{}", r.shape), fmt::format("{}", shape));
  if (r.data == nullptr && p.q_len > 0) refuse(name, "no memory", "a null pointer", "an address");
}

/// Where a tensor begins; null without elements.
struct Place {
  const char* name;
  const void* at;
  template <class View>
  Place(const char* name, const View& view)
      : name(name),
        at(std::ranges::find(view.shape, 0) == view.shape.end() ? view.data : nullptr) {}
};

/// Refuses an output that begins where another tensor does: it is written while that is read.
void check_apart(std::initializer_list<Place> outputs, std::initializer_list<Place> inputs) {
  const auto check_pair = [](const Place& output, const Place& other) {
    if (output.at && output.at == other.at)
      refuse(output.name, "memory of another tensor", fmt::format("that of {}", other.name),
             "memory of its own", "another tensor");
  };
  for (const Place* output = outputs.begin(); output != outputs.end(); ++output) {
    for (const Place& input : inputs) check_pair(*output, input);
    for (const Place* before = outputs.begin(); before != output; ++before)
      check_pair(*output, *before);
  }
}

struct Shapes {
  Shape q, k, v, o;
  explicit Shapes(const Problem& p)
      : q{p.batch, p.q_len, p.q_heads, p.head_dim},
        k{p.batch, p.kv_len, p.kv_heads, p.head_dim},
        v{p.batch, p.kv_len, p.kv_heads, p.head_dim_v},
        o{p.batch, p.q_len, p.q_heads, p.head_dim_v} {}
};

}  // namespace

void check_tensors(const Problem& problem, const ForwardTensors& t) {
  problem.validate();
  const Shapes shapes(problem);
  check("q", t.q, problem.dtype, shapes.q, false);
  check("k", t.k, problem.dtype, shapes.k, false);
  check("v", t.v, problem.dtype, shapes.v, false);
  check("o", t.o, problem.o_dtype(), shapes.o, true);
  check("lse", t.lse, problem);
  check_apart({{"o", t.o}, {"lse", t.lse}}, {{"q", t.q}, {"k", t.k}, {"v", t.v}});
}

void check_tensors(const Problem& problem, const BackwardTensors& t) {
  problem.validate();
  if (!problem.has_backward())
    throw Error(ErrorCode::unsupported, "backward", "there is none of this dtype",
                {"dtype", std::string(to_string(problem.dtype)), "f32, bf16 or f16", "bf16"});
  const Shapes shapes(problem);
  check("q", t.q, problem.dtype, shapes.q, false);
  check("k", t.k, problem.dtype, shapes.k, false);
  check("v", t.v, problem.dtype, shapes.v, false);
  check("o", t.o, problem.dtype, shapes.o, false);
  check("dout", t.dout, problem.dtype, shapes.o, false);
  check("lse", t.lse, problem);
  check("dq", t.dq, problem.dtype, shapes.q, true);
  check("dk", t.dk, problem.dtype, shapes.k, true);
  check("dv", t.dv, problem.dtype, shapes.v, true);
  check_apart({{"dq", t.dq}, {"dk", t.dk}, {"dv", t.dv}},
              {{"q", t.q}, {"k", t.k}, {"v", t.v}, {"o", t.o}, {"dout", t.dout}, {"lse", t.lse}});
}

void refuse_pieces(std::string_view backend) {
  throw Error(ErrorCode::unsupported, "dist", "this device runs no pieces of a plan",
              {"device", std::string(backend), "cpu", "cpu"});
}

void refuse_arithmetic(const Plan& plan, const std::string& known, const char* operation) {
  throw Error(ErrorCode::unsupported, operation, "the plan is of an arithmetic that is not here",
              {"plan.arithmetic", plan.arithmetic, known, "a plan made for this device"});
}

void refuse_second_kernel(Pass pass, const char* operation) {
  throw Error(ErrorCode::invalid_argument, operation, "two programs are for one pass",
              {"kernel", pass == Pass::forward ? "two of the forward" : "two of the backward",
               "one a pass", "the first"});
}

void check_whole_rows(const Plan& plan, const char* operation) {
  if (plan.pass != Pass::forward) return;
  for (const auto& order : plan.orders)
    for (const Chain& chain : order->chains)
      if (chain.addends > 1)
        throw Error(ErrorCode::unsupported, operation, "programs merge no segments of rows",
                    {"forward_order", order->name, "an order without /split", "descending"});
}

}  // namespace verbatim
