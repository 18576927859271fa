#include "backend/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/dropout.h"
#include "core/dtype.h"
#include "core/threads.h"

namespace verbatim {
namespace {

// Rows of one head as Real, dense: [length, dim].
template <class Real>
struct Rows {
  int64_t dim = 0;
  std::vector<Real> values;

  Rows() = default;
  Rows(const TensorView& tensor, int64_t b, int64_t h) : dim(tensor.shape[3]) {
    if (tensor.data == nullptr) return;
    values.reserve(tensor.shape[1] * dim);
    const Real scale = tensor.scales ? tensor.scales[h] : 1;
    dispatch_dtype(tensor.dtype, [&]<class T>(T) {
      for (int64_t l = 0; l < tensor.shape[1]; ++l) {
        const T* row = tensor.row<T>(b, l, h);
        for (int64_t d = 0; d < dim; ++d) values.push_back(scale * to_f32(row[d]));
      }
    });
  }
  const Real* row(int64_t l) const { return values.data() + l * dim; }
};

// Eight partial sums, so that compilers may use vectors without changing the order of a sum.
template <class Real>
Real dot(const Real* a, const Real* b, int64_t n) {
  Real lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * b[i];
  Real sum = 0;
  for (Real lane : lanes) sum += lane;
  return sum;
}

template <class Real>
void add_scaled(std::vector<Real>& sum, int64_t row, Real factor, const Real* values, int64_t n) {
  Real* out = sum.data() + row * n;
  for (int64_t d = 0; d < n; ++d) out[d] += factor * values[d];
}

// One KV head of one batch entry, with the query heads of its group. `Storage` is what
// intermediate results are rounded to; double keeps them.
template <class Real, class Storage>
class Head {
 public:
  Head(const Problem& problem, const Mask& mask, const TensorView& q, const TensorView& k,
       const TensorView& v, const TensorView& dout, const Selection& selection, Reference& result,
       int64_t b, int64_t kv_head, int64_t first_sequence)
      : p_(problem),
        mask_(mask.head(b, kv_head)),
        q_(q),
        dout_(dout),
        selection_(selection),
        result_(result),
        b_(b),
        kv_head_(kv_head),
        backward_(dout.data != nullptr),
        dropout_(Dropout::make(problem.dropout, problem.seed)),
        sequences_(sequences(mask_)),
        first_sequence_(first_sequence),
        k_(k, b, kv_head),
        v_(v, b, kv_head) {}

  /// `queries` and `keys` are this head's places in the selection.
  void run(const std::vector<int64_t>& queries, const std::vector<int64_t>& keys) {
    key_slot_.assign(p_.kv_len, -1);
    for (size_t i = 0; i < keys.size(); ++i)
      key_slot_[selection_.keys[keys[i]].l] = static_cast<int64_t>(i);
    dk_.assign(keys.size() * p_.head_dim, 0);
    dv_.assign(keys.size() * p_.head_dim_v, 0);
    squares_.assign(keys.size(), 0);

    for (int64_t h = kv_head_ * p_.group(); h < (kv_head_ + 1) * p_.group(); ++h) {
      const Rows<Real> q_rows(q_, b_, h), dout_rows(dout_, b_, h);
      std::vector<int64_t> slot(p_.q_len, -1);
      for (int64_t place : queries)
        if (selection_.queries[place].h == h) slot[selection_.queries[place].l] = place;
      for (int64_t q = 0; q < p_.q_len; ++q) {
        if (!find_keys(q) && slot[q] < 0) continue;
        attend(h, q, q_rows.row(q), slot[q]);
        if (backward_) differentiate(q_rows.row(q), dout_rows.row(q), slot[q]);
      }
    }

    const Real scale = static_cast<Real>(p_.softmax_scale());
    for (size_t i = 0; i < keys.size() && backward_; ++i) {
      for (int64_t d = 0; d < p_.head_dim; ++d)
        result_.dk[keys[i] * p_.head_dim + d] = round(scale * dk_[i * p_.head_dim + d]);
      for (int64_t d = 0; d < p_.head_dim_v; ++d)
        result_.dv[keys[i] * p_.head_dim_v + d] = round(dv_[i * p_.head_dim_v + d]);
    }
    for (size_t i = 0; i < keys.size() && backward_; ++i)
      result_.key_norms[keys[i]] = std::sqrt(static_cast<double>(squares_[i]));
  }

 private:
  static Real round(Real x) {
    using Stored = std::conditional_t<std::is_same_v<Storage, E4m3>, Bf16, Storage>;
    if constexpr (std::is_same_v<Storage, double>) {
      return x;
    } else {
      return to_f32(from_f32<Stored>(x));
    }
  }

  // The P of a row, rounded.
  void round_probabilities() {
    if constexpr (std::is_same_v<Storage, E4m3>) {
      if (prob_.empty()) return;
      const Real unit = *std::ranges::max_element(prob_) / kE4m3One;
      for (Real& p : prob_) p = unit * to_f32(to_e4m3(p / unit));
    } else {
      for (Real& p : prob_) p = round(p);
    }
  }

  // Lists the visible keys of row q; true when one of them is selected.
  bool find_keys(int64_t q) {
    keys_.clear();
    bool selected = false;
    for (const Interval& interval : mask_.row(q)) {
      for (int64_t k = interval.begin; k < interval.end; ++k) {
        keys_.push_back(k);
        selected |= key_slot_[k] >= 0;
      }
    }
    return selected && backward_;
  }

  // P, dropout factors and softcap derivatives of one row; O and LSE when it is selected.
  void attend(int64_t h, int64_t q, const Real* q_row, int64_t slot) {
    const size_t n = keys_.size();
    const Real scale = static_cast<Real>(p_.softmax_scale()), cap = static_cast<Real>(p_.softcap);
    prob_.resize(n);
    factor_.assign(n, 1);
    slope_.assign(n, 1);
    exact_s_.resize(n);
    for (size_t j = 0; j < n; ++j) {
      Real s = scale * dot(q_row, k_.row(keys_[j]), p_.head_dim);
      prob_[j] = round(s);
      if (cap > 0) {
        const Real t = std::tanh(s / cap), rounded = round(t);
        s = cap * t;
        prob_[j] = round(cap * rounded);
        slope_[j] = 1 - rounded * rounded;
      }
      exact_s_[j] = s;
    }
    const Real lse = log_sum_exp(exact_s_);
    const Real rounded_lse = std::is_same_v<Storage, double> ? lse : log_sum_exp(prob_);
    for (size_t j = 0; j < n; ++j) {
      prob_[j] = std::exp(prob_[j] - rounded_lse);
      if (dropout_.enabled())
        factor_[j] = keeps(h, q, keys_[j]) ? static_cast<Real>(dropout_.scale) : 0;
    }
    round_probabilities();
    if (slot < 0) return;
    result_.lse[slot] = lse;
    double squares = 0;
    for (const Real p : prob_) squares += static_cast<double>(p) * static_cast<double>(p);
    result_.row_norms[slot] = std::sqrt(squares);
    std::vector<Real> o(p_.head_dim_v, 0);
    for (size_t j = 0; j < n; ++j) add_scaled(o, 0, dropped(j), v_.row(keys_[j]), p_.head_dim_v);
    for (int64_t d = 0; d < p_.head_dim_v; ++d) result_.o[slot * p_.head_dim_v + d] = round(o[d]);
    if (std::is_same_v<Storage, double> && p_.dtype == Dtype::e4m3) find_product_norm(slot);
  }

  // P behind the dropout; e4m3 has none, and its P is rounded already.
  Real dropped(size_t j) const {
    return std::is_same_v<Storage, E4m3> ? prob_[j] : round(factor_[j] * prob_[j]);
  }

  void find_product_norm(int64_t slot) {
    std::vector<Real> squares(p_.head_dim_v, 0);
    const auto largest = std::ranges::max_element(prob_) - prob_.begin();
    for (int64_t j = 0; j < std::ssize(keys_); ++j)
      for (int64_t d = 0; d < p_.head_dim_v && j != largest; ++d) {
        const Real product = prob_[j] * v_.row(keys_[j])[d];
        squares[d] += product * product;
      }
    for (const Real square : squares)
      result_.product_norms[slot] =
          std::max(result_.product_norms[slot], std::sqrt(static_cast<double>(square)));
  }

  bool keeps(int64_t h, int64_t q, int64_t k) const {
    size_t i = sequences_.size() - 1;
    while (sequences_[i].q_begin > q) --i;
    return dropout_.keep(first_sequence_ + i, h, q - sequences_[i].core.begin,
                         k - sequences_[i].k.begin);
  }

  // dQ when the row is selected; its share of the selected dK and dV.
  void differentiate(const Real* q_row, const Real* dout_row, int64_t slot) {
    const size_t n = keys_.size();
    std::vector<Real>& dp = exact_s_;  // S is not needed any more
    Real delta = 0;
    for (size_t j = 0; j < n; ++j) {
      dp[j] = round(factor_[j] * round(dot(dout_row, v_.row(keys_[j]), p_.head_dim_v)));
      delta += prob_[j] * dp[j];
    }
    std::vector<Real> dq(p_.head_dim, 0);
    for (size_t j = 0; j < n; ++j) {
      const Real ds = round(round(prob_[j] * (dp[j] - delta)) * slope_[j]);
      if (slot >= 0) add_scaled(dq, 0, ds, k_.row(keys_[j]), p_.head_dim);
      const int64_t key = key_slot_[keys_[j]];
      if (key < 0) continue;
      add_scaled(dk_, key, ds, q_row, p_.head_dim);
      add_scaled(dv_, key, dropped(j), dout_row, p_.head_dim_v);
      squares_[key] += prob_[j] * prob_[j];
    }
    const Real scale = static_cast<Real>(p_.softmax_scale());
    for (int64_t d = 0; d < p_.head_dim && slot >= 0; ++d)
      result_.dq[slot * p_.head_dim + d] = round(scale * dq[d]);
  }

  static Real log_sum_exp(const std::vector<Real>& s) {
    if (s.empty()) return -std::numeric_limits<Real>::infinity();
    const Real max = *std::ranges::max_element(s);
    Real sum = 0;
    for (Real x : s) sum += std::exp(x - max);
    return max + std::log(sum);
  }

  const Problem& p_;
  const HeadMask& mask_;
  const TensorView &q_, &dout_;
  const Selection& selection_;
  Reference& result_;
  const int64_t b_, kv_head_;
  const bool backward_;
  const Dropout dropout_;
  const std::vector<Sequence> sequences_;
  const int64_t first_sequence_;  // in the whole problem
  const Rows<Real> k_, v_;
  std::vector<int64_t> key_slot_;                      // [kv_len], -1: not selected
  std::vector<Real> dk_, dv_, squares_;                // of the selected keys
  std::vector<int64_t> keys_;                          // visible keys of the row at hand ...
  std::vector<Real> prob_, factor_, slope_, exact_s_;  // ... and what belongs to each
};

}  // namespace

Reference reference_attention(const Problem& problem, const Mask& mask, const TensorView& q,
                              const TensorView& k, const TensorView& v, const TensorView& dout,
                              Arithmetic arithmetic, const Selection& selection, int threads) {
  const int64_t heads = problem.batch * problem.kv_heads;
  std::vector<std::vector<int64_t>> queries(heads), keys(heads);  // places in the selection
  for (size_t i = 0; i < selection.queries.size(); ++i) {
    const RowIndex& row = selection.queries[i];
    queries[row.b * problem.kv_heads + row.h / problem.group()].push_back(i);
  }
  for (size_t i = 0; i < selection.keys.size(); ++i) {
    const RowIndex& row = selection.keys[i];
    keys[row.b * problem.kv_heads + row.h].push_back(i);
  }

  Reference result;
  result.o.resize(selection.queries.size() * problem.head_dim_v);
  result.lse.resize(selection.queries.size());
  result.row_norms.resize(selection.queries.size());
  if (problem.dtype == Dtype::e4m3) result.product_norms.resize(selection.queries.size());
  if (dout.data != nullptr) {
    result.dq.resize(selection.queries.size() * problem.head_dim);
    result.dk.resize(selection.keys.size() * problem.head_dim);
    result.dv.resize(selection.keys.size() * problem.head_dim_v);
    result.key_norms.resize(selection.keys.size());
  }

  std::vector<int64_t> first_sequence(heads, 0);
  for (int64_t head = problem.kv_heads; head < heads; ++head) {
    const int64_t before = head - problem.kv_heads;
    const HeadMask& mask_before = mask.head(before / problem.kv_heads, before % problem.kv_heads);
    first_sequence[head] = first_sequence[before] + std::ssize(sequences(mask_before));
  }

  const auto run = [&]<class Real, class Storage>(int64_t head, Real, Storage) {
    if (queries[head].empty() && keys[head].empty()) return;
    Head<Real, Storage> one(problem, mask, q, k, v, dout, selection, result,
                            head / problem.kv_heads, head % problem.kv_heads, first_sequence[head]);
    one.run(queries[head], keys[head]);
  };
  for_each_in_parallel(threads ? threads : core_count(), heads, [&](int64_t head) {
    if (arithmetic == Arithmetic::exact) {
      run(head, double{}, double{});
    } else {
      dispatch_dtype(problem.dtype, [&](auto storage) { run(head, float{}, storage); });
    }
  });
  return result;
}

}  // namespace verbatim
