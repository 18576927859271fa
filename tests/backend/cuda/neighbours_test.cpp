// What lies beside a document or behind a length, be it no number, changes no bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "backend/cuda/gpu_case.h"

namespace verbatim::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Rows [begin, end) of every batch entry: `values` in turn.
void fill_rows(GpuTensor& tensor, const Interval& rows, const std::vector<float>& values) {
  const auto shape = tensor.host.view().shape;
  size_t i = 0;
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t l = rows.begin; l < rows.end; ++l)
      for (int64_t h = 0; h < shape[2]; ++h)
        for (int64_t d = 0; d < shape[3]; ++d)
          tensor.host.set(b, l, h, d, values[i++ % values.size()]);
}

/// Bytes of the outputs in rows [begin, end) of both axes: o, lse, dq, dk, dv.
std::vector<std::vector<uint8_t>> bits_of(GpuCase& c, const Interval& rows) {
  std::vector<std::vector<uint8_t>> all;
  for (GpuTensor* output : c.outputs()) {
    const TensorView& view = output->host.view();
    auto& bytes = all.emplace_back();
    const bool statistic = output == &c.lse;  // [1, batch, heads, length]
    const int64_t size = size_of(view.dtype), last = statistic ? rows.end : view.shape[3];
    const Interval lines = statistic ? Interval{0, view.shape[1]} : rows;
    for (int64_t b = 0; b < view.shape[0]; ++b)
      for (int64_t l = lines.begin; l < lines.end; ++l)
        for (int64_t h = 0; h < view.shape[2]; ++h) {
          const auto* row = static_cast<const uint8_t*>(view.data) + view.offset(b, l, h) * size;
          bytes.insert(bytes.end(), row + (statistic ? rows.begin : 0) * size, row + last * size);
        }
  }
  return all;
}

struct Setting {
  std::string arithmetic;  // sm80 or sm90
  HeadDims dims;
  bool extras;  // softcap and dropout
};

std::string name(const Setting& s) {
  return fmt::format("{}_hd{}{}", s.arithmetic, to_string(s.dims), s.extras ? "_extras" : "");
}
void PrintTo(const Setting& s, std::ostream* out) { *out << name(s); }  // for GoogleTest

class Neighbours : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!gpu()) GTEST_SKIP() << "no GPU";
    if (GetParam().arithmetic == "sm90" && gpu()->arithmetic() != "sm90")
      GTEST_SKIP() << "no such device";
  }

  /// Runs both passes with each kind of value in the `foreign` rows of the inputs: the outputs of
  /// the `own` rows must keep their bits.
  void expect_no_effect(const Mask& mask, const std::vector<Interval>& foreign_q,
                        const std::vector<Interval>& foreign_k, const std::vector<Interval>& own,
                        const std::string& where) {
    const Setting& setting = GetParam();
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      Problem p = problem_of(mask, setting.dims, mask.batch() > 1 ? mask.batch() : 2);
      p.q_heads = 4;
      p.dtype = dtype;
      if (setting.extras) p.softcap = 1.5, p.dropout = 0.3;
      GpuCase c(p, mask, 17);
      const SharedPlan forward =
          c.plan(Pass::forward, "descending", {0, 0}, "auto", 132, setting.arithmetic);
      for (const std::string order : {"descending", "ascending/split"}) {
        const SharedPlan backward =
            c.plan(Pass::backward, order, {0, 0}, "auto", 132, setting.arithmetic);
        const auto outputs = [&](const std::vector<float>& values) {
          for (GpuTensor* input : {&c.q, &c.k, &c.v, &c.dout}) {
            const bool queries = input == &c.q || input == &c.dout;
            for (const Interval& rows : queries ? foreign_q : foreign_k) {
              fill_rows(*input, rows, values);
            }
            input->upload();
          }
          c.run(*gpu(), forward, backward);
          std::vector<std::vector<std::vector<uint8_t>>> bits;
          for (const Interval& rows : own) bits.push_back(bits_of(c, rows));
          return bits;
        };
        const auto expected = outputs({1, -2, 0.5});
        const float large = dtype == Dtype::f16 ? 65504.0f : 3e38f;
        for (const std::vector<float>& values : std::vector<std::vector<float>>{
                 {NAN}, {kInf}, {-kInf, kInf, 1}, {large, -large, NAN, 0}}) {
          EXPECT_EQ(outputs(values), expected)
              << where << " " << order << " " << to_string(dtype) << ", with " << values.front();
        }
        for (const auto& rows : expected) {  // and they are numbers
          for (const auto& tensor : rows) {
            EXPECT_NE(std::set<uint8_t>(tensor.begin(), tensor.end()), std::set<uint8_t>{0xff});
          }
        }
      }
    }
  }
};

// Tiles end inside a box of the copy engine: the rows behind are the next document's.
TEST_P(Neighbours, NeverReachADocument) {
  const std::vector<int64_t> lengths{130, 61, 0, 200, 1, 77, 128, 31};
  std::array<std::vector<Interval>, 2> documents;  // of even and of odd number
  int64_t begin = 0;
  for (size_t i = 0; i < lengths.size(); begin += lengths[i++]) {
    documents[i % 2].push_back({begin, begin + lengths[i]});
  }
  for (const Mask& mask : {masks::causal_document(lengths), masks::full_document(lengths)}) {
    for (const size_t own : {0, 1}) {
      const auto& foreign = documents[1 - own];
      expect_no_effect(mask, foreign, foreign, documents[own], mask.name());
    }
  }
}

// Padding lies inside the tiles of those whom it is hidden from.
TEST_P(Neighbours, NeverReachBehindALength) {
  constexpr int64_t kLength = 300;
  const std::vector<int64_t> lengths{170, 131};  // the padding that both have is filled
  const std::vector<Interval> none, behind{{lengths.front(), kLength}}, all{{0, kLength}};
  const std::vector<int64_t> equal{170, 170};
  expect_no_effect(masks::full(kLength, kLength).with_key_lengths(lengths), none, behind, all,
                   "full, padded keys");
  expect_no_effect(masks::causal(kLength, kLength).with_key_lengths(equal), none, behind, all,
                   "causal, padded keys");
  const HeadMask inside{kLength, kLength, {{0, 170, 0, 170}}, {}, {}};
  expect_no_effect(Mask("padded", "{}", inside), behind, behind, all, "padded queries and keys");
}

INSTANTIATE_TEST_SUITE_P(Bits, Neighbours,
                         testing::Values(Setting{"sm90", 64, false}, Setting{"sm90", 64, true},
                                         Setting{"sm90", 128, false}, Setting{"sm90", 128, true},
                                         Setting{"sm90", 40, false}, Setting{"sm90", 72, true},
                                         Setting{"sm90", {192, 128}, false},
                                         Setting{"sm90", {192, 128}, true},
                                         Setting{"sm80", 64, false}, Setting{"sm80", 64, true},
                                         Setting{"sm80", 128, false}, Setting{"sm80", 128, true},
                                         Setting{"sm80", {192, 128}, false},
                                         Setting{"sm80", {192, 128}, true},
                                         Setting{"sm80", 192, false}, Setting{"sm80", 192, true}),
                         [](const auto& info) { return name(info.param); });

}  // namespace
}  // namespace verbatim::test
