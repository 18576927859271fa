#include "backend/composition.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "core/random.h"
#include "mask/slice.h"

namespace verbatim::test {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t uniform(int64_t least, int64_t most) { return random_.between(least, most); }
  bool one_in(int64_t n) { return uniform(1, n) == 1; }
  /// 1 to `most`, as often between a power of two and the next as between any others.
  int64_t log_uniform(int64_t most) {
    const int64_t power = int64_t{1} << uniform(0, std::bit_width(static_cast<uint64_t>(most)) - 1);
    return std::min(most, power + uniform(0, power - 1));
  }
  template <class T>
  T pick(const std::vector<T>& values) {
    return values[uniform(0, std::ssize(values) - 1)];
  }

 private:
  Random random_;
};

struct Lengths {
  int64_t q, k;
};

Lengths draw_lengths(Draw& draw, const CompositionCaps& caps) {
  const int64_t q = draw.one_in(10) ? 0 : draw.log_uniform(caps.q_len);
  if (draw.one_in(10)) return {q, 0};
  if (draw.one_in(3)) return {q, q};
  const int64_t k = draw.log_uniform(caps.kv_len);
  return draw.one_in(6) ? Lengths{q, k} : Lengths{q, std::max(q, k)};
}

Mask draw_mask(Draw& draw, Lengths n) {
  const int64_t window = draw.log_uniform(std::max<int64_t>(n.k, 1)) - 1;
  switch (draw.uniform(0, n.q == n.k ? 7 : 4)) {
    case 0:
      return masks::full(n.q, n.k);
    case 1:
      return masks::causal(n.q, n.k);
    case 2:
      return masks::causal_sliding_window(n.q, n.k, window);
    case 3:
      return masks::full_sliding_window(n.q, n.k, window);
    case 4: {
      const int64_t block = 32 * draw.uniform(1, 4), seed = draw.uniform(1, 1000);
      const double share = 0.1 * static_cast<double>(draw.uniform(1, 9));
      return masks::uniform_block_sparse(n.q, n.k, block, block, share, seed, 1);
    }
    case 5:
      return masks::prefix_lm_causal(n.q, window);
    case 6:
      return masks::global_sliding(n.q, window / 2, window);
    default: {
      const int64_t first = draw.uniform(0, n.q);
      const std::array documents{first, int64_t{0}, n.q - first};
      return draw.one_in(2) ? masks::causal_document(documents) : masks::full_document(documents);
    }
  }
}

/// Adds the slices and breaks of `entry`, moved to (q, k).
void place(HeadMask& whole, const HeadMask& entry, int64_t q, int64_t k) {
  for (const Slice& s : entry.slices)
    if (const auto tight = tighten(s)) whole.slices.push_back(shift(*tight, -q, -k));
  for (const int64_t edge : entry.q_breaks) whole.q_breaks.push_back(edge + q);
  for (const int64_t edge : entry.k_breaks) whole.k_breaks.push_back(edge + k);
}

double work_of(const Composition::Entry& entry) {
  const Problem& p = entry.problem;
  return static_cast<double>(entry.mask.area(1, p.q_heads, p.kv_heads)) *
         static_cast<double>(p.head_dim);
}

double elements_of(const Problem& p) {
  const auto dims = static_cast<double>(p.head_dim + p.head_dim_v);
  return static_cast<double>(p.batch) * dims * 2 *
         (static_cast<double>(p.q_len * p.q_heads) + static_cast<double>(p.kv_len * p.kv_heads));
}

/// Sets the places of the entries, the sizes of the composition and its mask.
void arrange(Draw& draw, Composition& c) {
  Problem& p = c.problem;
  const bool packed = c.arrangement == Arrangement::packed;
  p.batch = packed ? 1 : std::ssize(c.entries);
  p.q_len = p.kv_len = 0;
  for (const auto& entry : c.entries) {
    p.q_len = packed ? p.q_len + entry.problem.q_len : std::max(p.q_len, entry.problem.q_len);
    p.kv_len = packed ? p.kv_len + entry.problem.kv_len : std::max(p.kv_len, entry.problem.kv_len);
  }
  // Rows and keys beyond those of the longest, or behind the last document.
  const int64_t q_rest = draw.one_in(2) ? 0 : draw.log_uniform(300);
  const bool left = c.arrangement == Arrangement::padded_left;
  p.q_len += q_rest;
  p.kv_len += draw.one_in(2) ? 0 : draw.log_uniform(600);
  std::vector<HeadMask> heads;
  std::vector<int32_t> variant_of;
  int64_t q = 0, k = 0;
  for (auto& entry : c.entries) {
    entry.b = packed ? 0 : std::ssize(heads);
    entry.q_begin = packed ? q : left ? p.q_len - entry.problem.q_len : 0;
    entry.k_begin = packed ? k : left ? p.kv_len - entry.problem.kv_len : 0;
    if (!packed || heads.empty()) {
      variant_of.push_back(static_cast<int32_t>(heads.size()));
      heads.push_back({p.q_len, p.kv_len, {}, {}, {}});
    } else {
      heads.front().q_breaks.push_back(q);
      heads.front().k_breaks.push_back(k);
    }
    if (left) {
      heads.back().q_padding = entry.q_begin;
      heads.back().k_padding = entry.k_begin;
    }
    place(heads.back(), entry.mask.head(0, 0), entry.q_begin, entry.k_begin);
    q += entry.problem.q_len;
    k += entry.problem.kv_len;
  }
  c.mask = Mask("composition", "{}", std::move(heads), std::move(variant_of), p.batch, 1);
}

const char* name_of(Arrangement arrangement) {
  static constexpr std::array kNames{"padded_right", "padded_left", "packed"};
  return kNames[static_cast<size_t>(arrangement)];
}

GuardedTensor dense(const Problem& p, int64_t length, int64_t heads, int64_t dim) {
  return GuardedTensor(p.dtype, {p.batch, length, heads, dim});
}

void fill_with_garbage(const TensorView& t) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::array kGarbage{std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity,
                                60000.0f};
  dispatch_dtype(t.dtype, [&]<class T>(T) {
    std::array<T, kGarbage.size()> values;
    for (size_t i = 0; i < values.size(); ++i) values[i] = from_f32<T>(kGarbage[i]);
    size_t next = 0;
    for (int64_t b = 0; b < t.shape[0]; ++b)
      for (int64_t l = 0; l < t.shape[1]; ++l)
        for (int64_t h = 0; h < t.shape[2]; ++h)
          for (int64_t d = 0; d < t.shape[3]; ++d)
            t.row<T>(b, l, h)[d] = values[(next++ + static_cast<size_t>(l)) % values.size()];
  });
}

size_t row_bytes(const TensorView& t) { return static_cast<size_t>(t.shape[3] * size_of(t.dtype)); }

char* row_of(const TensorView& t, int64_t b, int64_t l, int64_t h) {
  return static_cast<char*>(t.data) + t.offset(b, l, h) * size_of(t.dtype);
}

/// Copies all rows of `from` (batch 1) to rows [begin, ..) of entry b of `to`.
void copy_rows(const TensorView& from, const TensorView& to, int64_t b, int64_t begin) {
  for (int64_t l = 0; l < from.shape[1]; ++l)
    for (int64_t h = 0; h < from.shape[2]; ++h)
      std::memcpy(row_of(to, b, begin + l, h), row_of(from, 0, l, h), row_bytes(from));
}

/// First row of `alone` that differs from row begin + l of entry b of `all`; empty if none does.
std::string first_difference(const char* name, const TensorView& alone, const TensorView& all,
                             int64_t b, int64_t begin) {
  for (int64_t h = 0; h < alone.shape[2]; ++h)
    for (int64_t l = 0; l < alone.shape[1]; ++l)
      if (std::memcmp(row_of(all, b, begin + l, h), row_of(alone, 0, l, h), row_bytes(alone)) != 0)
        return fmt::format("{} row {} of head {}", name, l, h);
  return "";
}

/// Which rows (or keys) of the composition belong to an entry, [batch][length].
std::vector<std::vector<bool>> owned(const Composition& c, bool keys) {
  const int64_t length = keys ? c.problem.kv_len : c.problem.q_len;
  std::vector<std::vector<bool>> owned(c.problem.batch, std::vector<bool>(length, false));
  for (const auto& entry : c.entries) {
    const auto begin = owned[entry.b].begin() + (keys ? entry.k_begin : entry.q_begin);
    std::fill_n(begin, keys ? entry.problem.kv_len : entry.problem.q_len, true);
  }
  return owned;
}

/// First row that no entry owns and that is not 0 throughout.
std::string first_leak(const char* name, const TensorView& t,
                       const std::vector<std::vector<bool>>& owned) {
  const std::vector<char> zeros(row_bytes(t), 0);
  for (int64_t b = 0; b < t.shape[0]; ++b)
    for (int64_t l = 0; l < t.shape[1]; ++l)
      for (int64_t h = 0; h < t.shape[2] && !owned[b][l]; ++h)
        if (std::memcmp(row_of(t, b, l, h), zeros.data(), zeros.size()) != 0)
          return fmt::format("{} row {} of head {} of entry {}", name, l, h, b);
  return "";
}

}  // namespace

Composition Composition::draw(uint64_t seed, const CompositionCaps& caps) {
  Draw draw(seed);
  Problem p;
  p.kv_heads = draw.uniform(1, 4);
  p.q_heads = p.kv_heads * draw.uniform(1, 8);
  p.head_dim = draw.pick(caps.head_dims);
  p.head_dim_v = p.head_dim == 192 && draw.one_in(2) ? 128 : p.head_dim;
  p.dtype = draw.pick(caps.dtypes);
  if (draw.one_in(6)) p.softcap = 20;
  const auto arrangement = static_cast<Arrangement>(draw.uniform(0, 2));
  Composition c{seed, arrangement, p, masks::full(0, 0), {}};
  const auto make = [&](Lengths n) {
    Problem alone = p;
    alone.q_len = n.q;
    alone.kv_len = n.k;
    return Entry{alone, draw_mask(draw, n), 0, 0, 0};
  };
  const int64_t count = draw.uniform(2, 8);
  for (int64_t i = 0; i < count; ++i) c.entries.push_back(make(draw_lengths(draw, caps)));
  for (;;) {
    arrange(draw, c);
    double work = 0;
    for (const Entry& entry : c.entries) work += work_of(entry);
    if (work <= caps.work && elements_of(c.problem) <= caps.elements) return c;
    const auto longest = std::ranges::max_element(c.entries, {}, [](const Entry& entry) {
      return entry.problem.q_len + entry.problem.kv_len;
    });
    *longest = make({longest->problem.q_len / 2, longest->problem.kv_len / 2});
  }
}

std::string Composition::text() const {
  std::string text = fmt::format("seed {}: {} {}", seed, name_of(arrangement), to_json(problem));
  for (const Entry& entry : entries)
    text += fmt::format("; {} {} {}x{}", entry.mask.name(), entry.mask.params_json(),
                        entry.problem.q_len, entry.problem.kv_len);
  return text;
}

HostTensors::HostTensors(const Problem& p)
    : q(dense(p, p.q_len, p.q_heads, p.head_dim)),
      k(dense(p, p.kv_len, p.kv_heads, p.head_dim)),
      v(dense(p, p.kv_len, p.kv_heads, p.head_dim_v)),
      dout(dense(p, p.q_len, p.q_heads, p.head_dim_v)),
      o(dense(p, p.q_len, p.q_heads, p.head_dim_v)),
      lse(GuardedTensor::rows({p.batch, p.q_heads, p.q_len})),
      dq(dense(p, p.q_len, p.q_heads, p.head_dim)),
      dk(dense(p, p.kv_len, p.kv_heads, p.head_dim)),
      dv(dense(p, p.kv_len, p.kv_heads, p.head_dim_v)) {}

ForwardTensors HostTensors::forward() const {
  return {q.view(), k.view(), v.view(), o.view(), lse.row_view()};
}

BackwardTensors HostTensors::backward() const {
  return {q.view(),       k.view(),  v.view(),  o.view(), dout.view(),
          lse.row_view(), dq.view(), dk.view(), dv.view()};
}

HostTensors tensors_of(const Composition& c, size_t entry) {
  HostTensors alone(c.entries[entry].problem);
  uint64_t stream = c.seed * 1000 + 10 * entry;
  for (const GuardedTensor* tensor : {&alone.q, &alone.k, &alone.v, &alone.dout})
    fill_uniform(tensor->view(), stream++, -1, 1);
  return alone;
}

HostTensors tensors_of(const Composition& c) {
  HostTensors all(c.problem);
  for (const GuardedTensor* tensor : {&all.q, &all.k, &all.v, &all.dout})
    fill_with_garbage(tensor->view());
  for (size_t i = 0; i < c.entries.size(); ++i) {
    const HostTensors alone = tensors_of(c, i);
    const auto& entry = c.entries[i];
    copy_rows(alone.q.view(), all.q.view(), entry.b, entry.q_begin);
    copy_rows(alone.dout.view(), all.dout.view(), entry.b, entry.q_begin);
    copy_rows(alone.k.view(), all.k.view(), entry.b, entry.k_begin);
    copy_rows(alone.v.view(), all.v.view(), entry.b, entry.k_begin);
  }
  return all;
}

void spoil_padding(const Composition& c, const HostTensors& tensors) {
  HostTensors garbage(c.problem);
  fill_with_garbage(garbage.o.view());
  const auto rows = owned(c, false);
  const TensorView &o = tensors.o.view(), &from = garbage.o.view();
  for (int64_t b = 0; b < o.shape[0]; ++b)
    for (int64_t l = 0; l < o.shape[1]; ++l) {
      if (rows[b][l]) continue;
      for (int64_t h = 0; h < o.shape[2]; ++h) {
        std::memcpy(row_of(o, b, l, h), row_of(from, b, l, h), row_bytes(o));
        tensors.lse.row_view().row(b, h)[l] =
            l % 2 ? std::numeric_limits<float>::quiet_NaN() : -1e30f;
      }
    }
}

std::string difference(const Composition& c, size_t index, const HostTensors& alone,
                       const HostTensors& all) {
  const auto& entry = c.entries[index];
  struct Pair {
    const char* name;
    const GuardedTensor HostTensors::*tensor;
    int64_t begin;
  };
  const std::array<Pair, 4> pairs{{{"o", &HostTensors::o, entry.q_begin},
                                   {"dq", &HostTensors::dq, entry.q_begin},
                                   {"dk", &HostTensors::dk, entry.k_begin},
                                   {"dv", &HostTensors::dv, entry.k_begin}}};
  for (int64_t h = 0; h < entry.problem.q_heads; ++h)
    for (int64_t l = 0; l < entry.problem.q_len; ++l)
      if (std::memcmp(all.lse.row_view().row(entry.b, h) + entry.q_begin + l,
                      alone.lse.row_view().row(0, h) + l, sizeof(float)) != 0)
        return fmt::format("lse row {} of head {}", l, h);
  for (const auto& [name, tensor, begin] : pairs) {
    const std::string found =
        first_difference(name, (alone.*tensor).view(), (all.*tensor).view(), entry.b, begin);
    if (!found.empty()) return found;
  }
  return "";
}

std::string leak(const Composition& c, const HostTensors& all, Pass pass) {
  const auto rows = owned(c, false), keys = owned(c, true);
  if (pass == Pass::backward) {
    std::string found = first_leak("dq", all.dq.view(), rows);
    if (found.empty()) found = first_leak("dk", all.dk.view(), keys);
    return found.empty() ? first_leak("dv", all.dv.view(), keys) : found;
  }
  for (int64_t b = 0; b < c.problem.batch; ++b)
    for (int64_t h = 0; h < c.problem.q_heads; ++h)
      for (int64_t l = 0; l < c.problem.q_len; ++l)
        if (!rows[b][l] &&
            all.lse.row_view().row(b, h)[l] != -std::numeric_limits<float>::infinity())
          return fmt::format("lse row {} of head {} of entry {}", l, h, b);
  return first_leak("o", all.o.view(), rows);
}

}  // namespace verbatim::test
