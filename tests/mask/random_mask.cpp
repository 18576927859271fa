#include "random_mask.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>

namespace verbatim::test {
namespace {

using Lengths = std::vector<int64_t>;

Lengths random_lengths(Rng& rng, int64_t total) {
  Lengths lengths;
  int64_t rest = total;
  while (rest > 0) {
    const bool empty = uniform(rng, 0, 3) == 0;
    lengths.push_back(empty ? 0 : uniform(rng, 1, uniform(rng, 1, rest)));
    rest -= lengths.back();
  }
  if (lengths.empty() || uniform(rng, 0, 3) == 0) lengths.push_back(0);
  return lengths;
}

/// Document of every position and first position of every document.
struct Documents {
  std::vector<int64_t> of, start;

  explicit Documents(const Lengths& lengths) {
    for (size_t d = 0; d < lengths.size(); ++d) {
      start.push_back(std::ssize(of));
      of.insert(of.end(), lengths[d], d);
    }
  }
};

/// Sequences of queries and keys behind one another: edges, and the sequence of every position.
struct Packed {
  Lengths cu_q{0}, cu_k{0}, q_of, k_of;

  Packed(Rng& rng, int64_t longest) {
    const int64_t sequences = uniform(rng, 0, 6);
    for (int64_t i = 0; i < sequences; ++i) {
      cu_q.push_back(cu_q.back() + uniform(rng, 0, longest / 6));
      cu_k.push_back(cu_k.back() + uniform(rng, 0, longest / 6));
      q_of.resize(cu_q.back(), i);
      k_of.resize(cu_k.back(), i);
    }
  }
  /// From a query to a key of its sequence, where the last of both stand side by side.
  int64_t ahead(int64_t q, int64_t k) const {
    return (k - cu_k[q_of[q] + 1]) - (q - cu_q[q_of[q] + 1]);
  }
};

}  // namespace

int64_t uniform(Rng& rng, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(rng() % static_cast<uint64_t>(most - least + 1));
}

const std::vector<std::string>& static_patterns() {
  static const std::vector<std::string> names = {
      "full",           "causal",           "full_sliding_window", "causal_sliding_window",
      "full_document",  "causal_document",  "share_question",      "causal_blockwise",
      "global_sliding", "prefix_lm_causal", "prefix_lm_document",  "block_causal_document",
      "cu_seqlens",     "windows"};
  return names;
}

MaskCase random_case(const std::string& pattern, Rng& rng, int64_t longest) {
  const int64_t len = uniform(rng, 0, 9) < 8 ? uniform(rng, 0, longest) : uniform(rng, 0, 2);
  const int64_t q_len = len, kv_len = uniform(rng, 0, 1) == 0 ? len : uniform(rng, 0, longest);
  const int64_t offset = kv_len - q_len;
  const int64_t w = uniform(rng, 0, 9) < 9 ? uniform(rng, 0, len / 2 + 1) : INT64_MAX;
  const int64_t g = uniform(rng, 0, 3) < 3 ? uniform(rng, 0, len / 4 + 1) : uniform(rng, 0, 200);
  const std::string plane = fmt::format("{} {}x{}", pattern, q_len, kv_len);
  const Lengths lengths = random_lengths(rng, len);
  const std::string packed = fmt::format("{} {}", pattern, lengths);
  const Documents doc(lengths);
  const int64_t last = std::ssize(lengths) - 1;

  if (pattern == "full") {
    return {plane, masks::full(q_len, kv_len), [](int64_t, int64_t) { return true; }};
  }
  if (pattern == "causal") {
    return {plane, masks::causal(q_len, kv_len),
            [=](int64_t q, int64_t k) { return k <= q + offset; }};
  }
  if (pattern == "full_sliding_window") {
    return {fmt::format("{} window {}", plane, w), masks::full_sliding_window(q_len, kv_len, w),
            [=](int64_t q, int64_t k) { return std::abs(k - (q + offset)) <= w; }};
  }
  if (pattern == "causal_sliding_window") {
    return {fmt::format("{} window {}", plane, w), masks::causal_sliding_window(q_len, kv_len, w),
            [=](int64_t q, int64_t k) { return k <= q + offset && q + offset - k <= w; }};
  }
  if (pattern == "full_document") {
    return {packed, masks::full_document(lengths),
            [=](int64_t q, int64_t k) { return doc.of[k] == doc.of[q]; }};
  }
  if (pattern == "causal_document") {
    return {packed, masks::causal_document(lengths),
            [=](int64_t q, int64_t k) { return doc.of[k] == doc.of[q] && k <= q; }};
  }
  if (pattern == "share_question") {
    return {packed, masks::share_question(lengths), [=](int64_t q, int64_t k) {
              return k <= q && (doc.of[k] == 0 || doc.of[k] == doc.of[q]);
            }};
  }
  if (pattern == "causal_blockwise") {
    return {packed, masks::causal_blockwise(lengths), [=](int64_t q, int64_t k) {
              return k <= q && (doc.of[k] == doc.of[q] || doc.of[q] == last);
            }};
  }
  if (pattern == "global_sliding") {
    return {fmt::format("{} {} global {} window {}", pattern, len, g, w),
            masks::global_sliding(len, g, w),
            [=](int64_t q, int64_t k) { return q < g || k < g || std::abs(q - k) <= w; }};
  }
  if (pattern == "prefix_lm_causal") {
    return {fmt::format("{} {} prefix {}", pattern, len, g), masks::prefix_lm_causal(len, g),
            [=](int64_t q, int64_t k) { return k < g || k <= q; }};
  }
  if (pattern == "prefix_lm_document") {
    Lengths prefix{g};
    if (uniform(rng, 0, 1) == 0) {
      prefix.assign(lengths.size(), 0);
      for (int64_t& p : prefix) p = uniform(rng, 0, len / 4 + 1);
    }
    return {fmt::format("{} prefix {}", packed, prefix), masks::prefix_lm_document(lengths, prefix),
            [=](int64_t q, int64_t k) {
              const int64_t d = doc.of[q], p = prefix[prefix.size() == 1 ? 0 : d];
              return doc.of[k] == d && (k - doc.start[d] < p || k <= q);
            }};
  }
  if (pattern == "block_causal_document") {
    const int64_t block = g + 1;
    return {fmt::format("{} block {}", packed, block), masks::block_causal_document(lengths, block),
            [=](int64_t q, int64_t k) {
              const int64_t start = doc.start[doc.of[q]];
              return doc.of[k] == doc.of[q] && (k - start) / block <= (q - start) / block;
            }};
  }
  if (pattern == "cu_seqlens") {
    const Packed p(rng, longest);
    const bool causal = uniform(rng, 0, 1) == 0;
    return {fmt::format("{} {} {} causal {}", pattern, p.cu_q, p.cu_k, causal),
            masks::from_cu_seqlens(p.cu_q, p.cu_k, causal), [=](int64_t q, int64_t k) {
              return p.k_of[k] == p.q_of[q] && (!causal || p.ahead(q, k) <= 0);
            }};
  }
  if (pattern == "windows") {
    const Packed p(rng, longest);
    const auto side = [&]() -> std::optional<int64_t> {  // negative: the nearest keys are hidden
      if (uniform(rng, 0, 3) == 0) return {};
      return uniform(rng, 0, 3) == 0 ? uniform(rng, -4, -1) : w;
    };
    const std::optional<int64_t> left = side(), right = side();
    const auto told = [](std::optional<int64_t> n) { return n ? fmt::to_string(*n) : "all"; };
    return {
        fmt::format("{} {} {} left {} right {}", pattern, p.cu_q, p.cu_k, told(left), told(right)),
        masks::windows(p.cu_q, p.cu_k, left, right), [=](int64_t q, int64_t k) {
          return p.k_of[k] == p.q_of[q] && (!left || -p.ahead(q, k) <= *left) &&
                 (!right || p.ahead(q, k) <= *right);
        }};
  }
  throw std::logic_error("no such pattern: " + pattern);
}

HeadMask random_head_mask(Rng& rng, int64_t longest, std::string& text) {
  const auto any = [&] {
    return random_case(static_patterns()[rng() % static_patterns().size()], rng, longest);
  };
  const MaskCase first = any();
  text = first.text;
  HeadMask head = first.mask.head(0, 0);
  if (uniform(rng, 0, 2) == 0) {
    HeadMask second = any().mask.head(0, 0);
    const int64_t q_len = std::min(head.q_len, second.q_len);
    const int64_t kv_len = std::min(head.kv_len, second.kv_len);
    head = head.crop(0, q_len, 0, kv_len).intersect(second.crop(0, q_len, 0, kv_len));
    text += " & another";
  }
  return head;
}

}  // namespace verbatim::test
