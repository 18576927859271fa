// Head dims between those of the Hopper kernels' instances: columns behind them hold zeros in
// shared memory, and in the tensors the next head's numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cuda/gpu_case.h"

namespace verbatim::test {
namespace {

struct Setting {
  int64_t head_dim;
  Dtype dtype;
  bool extras;  // softcap and dropout
};

std::string name(const Setting& s) {
  return fmt::format("hd{}_{}{}", s.head_dim, to_string(s.dtype), s.extras ? "_extras" : "");
}
void PrintTo(const Setting& s, std::ostream* out) { *out << name(s); }  // for GoogleTest

class Padded : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!gpu()) GTEST_SKIP() << "no GPU";
    if (gpu()->arithmetic() != "sm90") GTEST_SKIP() << "not Hopper";
  }
  /// `q_heads` query heads on 2 KV heads.
  Problem problem(const Mask& mask, int64_t q_heads = 8) const {
    Problem p = problem_of(mask, GetParam().head_dim);
    p.q_heads = q_heads;
    p.dtype = GetParam().dtype;
    if (GetParam().extras) p.softcap = 1.5, p.dropout = 0.3;
    return p;
  }
  static SharedPlan plan(const GpuCase& c, Pass pass, const std::string& order,
                         int32_t workers = 132) {
    return c.plan(pass, order, {0, 0}, "auto", workers, "sm90");
  }
};

/// An order of the backward, and the workers it is placed for: few cut rotating chains into pieces.
struct Order {
  std::string name;
  int32_t workers = 132;
};
const Order kOrders[] = {
    {"descending"}, {"ascending/split:2"}, {"descending/split/rows:192"}, {"shift", 1}};

/// `from`'s columns in `to`, whose columns behind them become 0.
void copy_columns(const GpuTensor& from, GpuTensor& to) {
  const TensorView source = from.host.view(), target = to.host.view();
  std::memset(target.data, 0,
              static_cast<size_t>(target.shape[0] * target.stride[0]) * sizeof(uint16_t));
  for (int64_t b = 0; b < source.shape[0]; ++b)
    for (int64_t l = 0; l < source.shape[1]; ++l)
      for (int64_t h = 0; h < source.shape[2]; ++h)
        std::memcpy(target.row<uint16_t>(b, l, h), source.row<uint16_t>(b, l, h),
                    static_cast<size_t>(source.shape[3]) * sizeof(uint16_t));
  to.upload();
}

/// Whether all elements of `narrow` are those of `wide`, which may have more columns.
bool same_columns(const GpuTensor& narrow, const GpuTensor& wide) {
  const TensorView a = narrow.host.view(), b = wide.host.view();
  const auto bytes = static_cast<size_t>(a.shape[3] * size_of(a.dtype));
  const auto row = [](const TensorView& view, int64_t entry, int64_t l, int64_t h) {
    return static_cast<const uint8_t*>(view.data) + view.offset(entry, l, h) * size_of(view.dtype);
  };
  for (int64_t entry = 0; entry < a.shape[0]; ++entry)
    for (int64_t l = 0; l < a.shape[1]; ++l)
      for (int64_t h = 0; h < a.shape[2]; ++h)
        if (std::memcmp(row(a, entry, l, h), row(b, entry, l, h), bytes) != 0) return false;
  return true;
}

// Zeros change no sum, so the same kernel makes the same bits where they are the tensors' own.
TEST_P(Padded, HasTheBitsOfColumnsOfZeros) {
  constexpr const char* kNames[] = {"o", "lse", "dq", "dk", "dv"};
  const std::vector<int64_t> documents{130, 61, 0, 200, 1, 77};
  for (const Mask& mask :
       {masks::causal(300, 400), masks::full(260, 260), masks::share_question(documents),
        masks::uniform_block_sparse(600, 600, 64, 64, 0.4, 7, 2)}) {
    const Problem p = problem(mask);
    Problem zeros = p;
    zeros.head_dim = zeros.head_dim_v = p.head_dim <= 64 ? 64 : 128;
    zeros.scale = p.softmax_scale();
    GpuCase narrow(p, mask, 5, 8), wide(zeros, mask, 5);  // with a gap between rows, and dense
    for (const auto& [from, to] : {std::pair{&narrow.q, &wide.q},
                                   {&narrow.k, &wide.k},
                                   {&narrow.v, &wide.v},
                                   {&narrow.dout, &wide.dout}})
      copy_columns(*from, *to);
    for (const auto& [order, workers] : kOrders) {
      for (GpuCase* c : {&narrow, &wide})
        c->run(*gpu(), plan(*c, Pass::forward, "ascending"),
               plan(*c, Pass::backward, order, workers));
      const auto got = narrow.outputs(), expected = wide.outputs();
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(same_columns(*got[i], *expected[i]))
            << kNames[i] << " " << mask.name() << " " << order;
        EXPECT_TRUE(got[i]->host.guards_intact())
            << "a write outside " << kNames[i] << ", " << mask.name() << " " << order;
      }
    }
    double ratio = 0;
    EXPECT_EQ(narrow.examine(ratio), "") << mask.name();
  }
}

// Heads lie beside each other in a row: the columns behind one are the next one's first.
TEST_P(Padded, NeverReachesTheHeadBeside) {
  const std::vector<int64_t> documents{130, 61, 200, 33};
  for (const Mask& mask : {masks::causal(300, 300), masks::causal_document(documents)}) {
    for (const int64_t own : {0, 1}) {  // the KV head whose numbers stay
      const Problem p = problem(mask, 4);
      GpuCase c(p, mask, 17);
      const auto head_of = [&](const GpuTensor& tensor) {  // the KV head of each of its heads
        return [kv = tensor.host.view().shape[2] == p.kv_heads, group = p.group()](int64_t h) {
          return kv ? h : h / group;
        };
      };
      const auto outputs = [&](float value) {
        for (GpuTensor* input : {&c.q, &c.k, &c.v, &c.dout}) {
          const TensorView& view = input->host.view();
          for (int64_t b = 0; b < view.shape[0]; ++b)
            for (int64_t l = 0; l < view.shape[1]; ++l)
              for (int64_t h = 0; h < view.shape[2]; ++h)
                for (int64_t d = 0; d < view.shape[3] && head_of(*input)(h) != own; ++d)
                  input->host.set(b, l, h, d, value);
          input->upload();
        }
        std::vector<uint8_t> bits;
        for (const auto& [order, workers] : kOrders) {
          c.run(*gpu(), plan(c, Pass::forward, "ascending"),
                plan(c, Pass::backward, order, workers));
          for (GpuTensor* output : {&c.o, &c.dq, &c.dk, &c.dv}) {
            const TensorView& view = output->host.view();
            for (int64_t b = 0; b < view.shape[0]; ++b)
              for (int64_t l = 0; l < view.shape[1]; ++l)
                for (int64_t h = 0; h < view.shape[2]; ++h) {
                  if (head_of(*output)(h) != own) continue;
                  const auto* row = reinterpret_cast<const uint8_t*>(view.row<uint16_t>(b, l, h));
                  bits.insert(bits.end(), row, row + view.shape[3] * 2);
                }
          }
        }
        return bits;
      };
      const auto expected = outputs(0.5);
      for (const float value : {NAN, INFINITY})
        EXPECT_EQ(outputs(value), expected) << mask.name() << ", KV head " << own;
    }
  }
}

TEST_P(Padded, IsRightWithoutAnOrder) {
  const Mask mask = masks::causal(300, 300);
  GpuCase c(problem(mask), mask, 3);
  PlanOptions options;
  options.pass = Pass::backward;
  options.order = "none";
  options.level = Level::not_guaranteed;
  options.workers = 132;
  options.arithmetic = "sm90";
  c.run(*gpu(), plan(c, Pass::forward, "ascending"), share(make_plan(c.problem, mask, options)));
  double ratio = 0;
  EXPECT_EQ(c.examine(ratio), "");
}

TEST_P(Padded, RunsOnTheHopperKernels) {
  const Mask mask = masks::causal(100, 100);
  const GpuCase c(problem(mask), mask, 3);
  EXPECT_EQ(gpu()->kernel_name(*plan(c, Pass::forward, "auto")), "sm90.forward");
  EXPECT_EQ(gpu()->kernel_name(*plan(c, Pass::backward, "auto")), "sm90.backward");
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (int64_t head_dim = 8; head_dim < 128; head_dim += 8) {
    if (head_dim == 64) continue;
    all.push_back({head_dim, head_dim % 16 == 0 ? Dtype::bf16 : Dtype::f16, false});
    if (head_dim % 24 == 0)
      all.push_back({head_dim, head_dim % 16 == 0 ? Dtype::f16 : Dtype::bf16, true});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Hopper, Padded, testing::ValuesIn(settings()),
                         [](const auto& info) { return name(info.param); });

}  // namespace
}  // namespace verbatim::test
