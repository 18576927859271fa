// Patterns of lengths, windows and documents, and packed sequences with their windows, as slices
// (predicates: docs/masks.md; how to add one: docs/adding-a-mask.md).
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "mask/slice.h"
#include "verbatim/error.h"

namespace verbatim::masks {
namespace {

using Json = nlohmann::json;

constexpr int64_t kOpenLow = Slice::kNoLow;
constexpr int64_t kOpenHigh = Slice::kNoHigh;

[[noreturn]] void fail(const char* mask, const std::string& argument, int64_t got,
                       const std::string& expected, const std::string& nearest) {
  throw Error(ErrorCode::invalid_argument, std::string("mask.") + mask,
              fmt::format("{} is out of range", argument),
              {argument, fmt::to_string(got), expected, nearest});
}

void check_length(const char* mask, const char* argument, int64_t length) {
  if (length >= 0 && length <= kMaxLength) return;
  fail(mask, argument, length, fmt::format("0 to {}", kMaxLength),
       fmt::to_string(length < 0 ? 0 : kMaxLength));
}

/// A parameter that may be any number from `least`; beyond the plane it changes nothing.
int64_t clamped(const char* mask, const char* argument, int64_t value, int64_t least) {
  if (value < least) {
    fail(mask, argument, value, fmt::format("{} or more", least), fmt::to_string(least));
  }
  return std::min(value, kMaxLength);
}

void add(HeadMask& head, const Slice& slice) {
  if (const auto tight = tighten(slice)) head.slices.push_back(*tight);
}

HeadMask plane(const char* mask, int64_t q_len, int64_t kv_len) {
  check_length(mask, "q_len", q_len);
  check_length(mask, "kv_len", kv_len);
  return {q_len, kv_len, {}, {}, {}};
}

/// 0 and the end of every document.
std::vector<int64_t> document_edges(const char* mask, Lengths lengths) {
  std::vector<int64_t> edges{0};
  for (size_t d = 0; d < lengths.size(); ++d) {
    const int64_t rest = kMaxLength - edges.back();
    if (lengths[d] < 0 || lengths[d] > rest) {
      fail(mask, fmt::format("doc_lengths[{}]", d), lengths[d], fmt::format("0 to {}", rest),
           fmt::to_string(lengths[d] < 0 ? 0 : rest));
    }
    edges.push_back(edges.back() + lengths[d]);
  }
  return edges;
}

/// All edges but the first and the last.
std::vector<int64_t> breaks_at(std::span<const int64_t> edges) {
  if (edges.size() < 3) return {};
  return {edges.begin() + 1, edges.end() - 1};
}

/// A mask whose slices `document(head, d, begin, end)` adds for each document.
template <class AddDocument>
Mask documents(const char* name, Lengths lengths, Json params, AddDocument document) {
  const std::vector<int64_t> edges = document_edges(name, lengths);
  const std::vector<int64_t> breaks = breaks_at(edges);
  HeadMask head{edges.back(), edges.back(), {}, breaks, breaks};
  for (size_t d = 0; d < lengths.size(); ++d) document(head, d, edges[d], edges[d + 1]);
  Json all = {{"doc_lengths", std::vector<int64_t>(lengths.begin(), lengths.end())}};
  all.update(params);
  return Mask(name, all.dump(), std::move(head));
}

Slice causal_square(int64_t begin, int64_t end) { return {begin, end, begin, end, kOpenLow, 0}; }

/// One slice with a band around the diagonal that is aligned bottom-right.
Mask one_band(const char* name, int64_t q_len, int64_t kv_len, const Json& params, int64_t lo,
              int64_t hi) {
  HeadMask head = plane(name, q_len, kv_len);
  const int64_t offset = kv_len - q_len;
  add(head,
      {0, q_len, 0, kv_len, lo == kOpenLow ? lo : lo + offset, hi == kOpenHigh ? hi : hi + offset});
  return Mask(name, params.dump(), std::move(head));
}

}  // namespace

Mask full(int64_t q_len, int64_t kv_len) {
  return one_band("full", q_len, kv_len, Json::object(), kOpenLow, kOpenHigh);
}

Mask causal(int64_t q_len, int64_t kv_len) {
  return one_band("causal", q_len, kv_len, Json::object(), kOpenLow, 0);
}

Mask full_sliding_window(int64_t q_len, int64_t kv_len, int64_t window) {
  const char* name = "full_sliding_window";
  const int64_t width = clamped(name, "window", window, 0);
  return one_band(name, q_len, kv_len, {{"window", window}}, -width, width);
}

Mask causal_sliding_window(int64_t q_len, int64_t kv_len, int64_t window) {
  const char* name = "causal_sliding_window";
  const int64_t width = clamped(name, "window", window, 0);
  return one_band(name, q_len, kv_len, {{"window", window}}, -width, 0);
}

Mask full_document(Lengths doc_lengths) {
  return documents("full_document", doc_lengths, Json::object(),
                   [](HeadMask& head, size_t, int64_t begin, int64_t end) {
                     add(head, {begin, end, begin, end});
                   });
}

Mask causal_document(Lengths doc_lengths) {
  return documents("causal_document", doc_lengths, Json::object(),
                   [](HeadMask& head, size_t, int64_t begin, int64_t end) {
                     add(head, causal_square(begin, end));
                   });
}

Mask share_question(Lengths doc_lengths) {
  return documents("share_question", doc_lengths, Json::object(),
                   [](HeadMask& head, size_t d, int64_t begin, int64_t end) {
                     // Everybody's view of the question is one slice.
                     if (d == 0) add(head, {0, head.q_len, 0, end, kOpenLow, 0});
                     if (d > 0) add(head, causal_square(begin, end));
                   });
}

Mask causal_blockwise(Lengths doc_lengths) {
  const size_t last = doc_lengths.size() - 1;
  return documents("causal_blockwise", doc_lengths, Json::object(),
                   [last](HeadMask& head, size_t d, int64_t begin, int64_t end) {
                     // The test example sees itself and all that comes before it: one slice.
                     if (d == last) add(head, {begin, end, 0, end, kOpenLow, 0});
                     if (d != last) add(head, causal_square(begin, end));
                   });
}

Mask global_sliding(int64_t len, int64_t global, int64_t window) {
  const char* name = "global_sliding";
  HeadMask head = plane(name, len, len);
  const int64_t edge = std::min(clamped(name, "global", global, 0), len);
  const int64_t width = clamped(name, "window", window, 0);
  add(head, {0, edge, 0, len});
  add(head, {edge, len, 0, edge});
  add(head, {edge, len, edge, len, -width, width});
  return Mask(name, Json{{"global", global}, {"window", window}}.dump(), std::move(head));
}

Mask prefix_lm_causal(int64_t len, int64_t prefix) {
  const char* name = "prefix_lm_causal";
  HeadMask head = plane(name, len, len);
  const int64_t edge = std::min(clamped(name, "prefix", prefix, 0), len);
  add(head, {0, len, 0, edge});
  add(head, causal_square(edge, len));
  return Mask(name, Json{{"prefix", prefix}}.dump(), std::move(head));
}

Mask prefix_lm_document(Lengths doc_lengths, Lengths prefix) {
  const char* name = "prefix_lm_document";
  if (prefix.size() != 1 && prefix.size() != doc_lengths.size()) {
    fail(name, "prefix", std::ssize(prefix), fmt::format("1 or {} numbers", doc_lengths.size()),
         "1");
  }
  const Json params = {{"prefix", std::vector<int64_t>(prefix.begin(), prefix.end())}};
  for (const int64_t p : prefix) clamped(name, "prefix", p, 0);
  return documents(name, doc_lengths, params,
                   [prefix](HeadMask& head, size_t d, int64_t begin, int64_t end) {
                     const int64_t length = prefix[prefix.size() == 1 ? 0 : d];
                     const int64_t edge = begin + std::min(length, end - begin);
                     add(head, {begin, end, begin, edge});
                     add(head, causal_square(edge, end));
                   });
}

Mask block_causal_document(Lengths doc_lengths, int64_t block) {
  const char* name = "block_causal_document";
  const int64_t size = clamped(name, "block", block, 1);
  return documents(name, doc_lengths, {{"block", block}},
                   [size](HeadMask& head, size_t, int64_t begin, int64_t end) {
                     // Causal, and in every block also the future: so a far tile meets one slice.
                     add(head, causal_square(begin, end));
                     for (int64_t at = begin; at < end; at += size) {
                       const int64_t block_end = std::min(at + size, end);
                       add(head, {at, block_end, at, block_end, 1, kOpenHigh});
                     }
                   });
}

namespace {

/// Sequences whose queries see `left` keys before and `right` keys after their own positions.
Mask packed(const char* name, Lengths cu_seqlens_q, Lengths cu_seqlens_k,
            std::optional<int64_t> left, std::optional<int64_t> right, Json params) {
  if (cu_seqlens_q.empty() || cu_seqlens_q.size() != cu_seqlens_k.size()) {
    fail(name, "cu_seqlens_k", std::ssize(cu_seqlens_k),
         fmt::format("as many entries as cu_seqlens_q ({}), at least 1", cu_seqlens_q.size()), "");
  }
  const auto check = [name](const char* argument, Lengths edges) {
    int64_t previous = 0;
    for (size_t i = 0; i < edges.size(); ++i) {
      const int64_t most = i == 0 ? 0 : kMaxLength;
      if (edges[i] < previous || edges[i] > most) {
        fail(name, fmt::format("{}[{}]", argument, i), edges[i],
             fmt::format("{} to {}", previous, most), fmt::to_string(previous));
      }
      previous = edges[i];
    }
  };
  check("cu_seqlens_q", cu_seqlens_q);
  check("cu_seqlens_k", cu_seqlens_k);
  HeadMask head{cu_seqlens_q.back(),
                cu_seqlens_k.back(),
                {},
                breaks_at(cu_seqlens_q),
                breaks_at(cu_seqlens_k)};
  for (size_t i = 0; i + 1 < cu_seqlens_q.size(); ++i) {
    const int64_t q_end = cu_seqlens_q[i + 1], k_end = cu_seqlens_k[i + 1];
    add(head,
        {cu_seqlens_q[i], q_end, cu_seqlens_k[i], k_end, left ? k_end - q_end - *left : kOpenLow,
         right ? k_end - q_end + *right : kOpenHigh});
  }
  params["cu_seqlens_q"] = std::vector<int64_t>(cu_seqlens_q.begin(), cu_seqlens_q.end());
  params["cu_seqlens_k"] = std::vector<int64_t>(cu_seqlens_k.begin(), cu_seqlens_k.end());
  return Mask(name, params.dump(), std::move(head));
}

}  // namespace

Mask from_cu_seqlens(Lengths cu_seqlens_q, Lengths cu_seqlens_k, bool causal) {
  const auto right = causal ? std::optional<int64_t>(0) : std::nullopt;
  return packed("cu_seqlens", cu_seqlens_q, cu_seqlens_k, std::nullopt, right,
                {{"causal", causal}});
}

Mask windows(Lengths cu_seqlens_q, Lengths cu_seqlens_k, std::optional<int64_t> left,
             std::optional<int64_t> right) {
  Json params = Json::object();
  const auto side = [&params](const char* argument, std::optional<int64_t>& width) {
    if (!width) return;
    params[argument] = *width;
    width = clamped("windows", argument, *width, -kMaxLength);
  };
  side("left", left);
  side("right", right);
  return packed("windows", cu_seqlens_q, cu_seqlens_k, left, right, std::move(params));
}

std::span<const char* const> names() {
  static constexpr const char* kNames[] = {
      "full",
      "causal",
      "full_sliding_window",
      "causal_sliding_window",
      "full_document",
      "causal_document",
      "share_question",
      "causal_blockwise",
      "global_sliding",
      "prefix_lm_causal",
      "prefix_lm_document",
      "block_causal_document",
      "uniform_block_sparse",
      "variable_block_sparse",
      "windows",
  };
  return kNames;
}

}  // namespace verbatim::masks
