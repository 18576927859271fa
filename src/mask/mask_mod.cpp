// Masks as Python predicates in the vocabulary of FlexAttention: expressions of & and | only, since
// the arguments may be tensors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "mask/slice.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr size_t kMaxWrittenSlices = 8;    // with more, the function looks its bounds up in tables
constexpr int64_t kWideOpen = kMaxLength;  // a band this wide cuts nothing
constexpr size_t kMaxParams = 200;         // bytes of parameters worth a comment

std::string title(const Mask& mask) {
  const auto quoted = [](const std::string& text) {
    const nlohmann::json json = text;  // escapes line ends
    return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  };
  std::string text =
      fmt::format("# {}: {} queries x {} keys", quoted(mask.name()), mask.q_len(), mask.kv_len());
  const auto params = nlohmann::json::parse(mask.params_json());
  const std::string shown = params.dump(-1, ' ', true);
  if (!params.empty() && shown.size() <= kMaxParams) text += ", " + shown;
  return text + "\n";
}

/// The bounds that the plane does not imply, joined by &.
std::string condition(const Slice& s, int64_t q_len, int64_t kv_len) {
  std::vector<std::string> bounds;
  if (s.q_begin > 0) bounds.push_back(fmt::format("(q_idx >= {})", s.q_begin));
  if (s.q_end < q_len) bounds.push_back(fmt::format("(q_idx < {})", s.q_end));
  if (s.k_begin > 0) bounds.push_back(fmt::format("(kv_idx >= {})", s.k_begin));
  if (s.k_end < kv_len) bounds.push_back(fmt::format("(kv_idx < {})", s.k_end));
  if (s.lo != Slice::kNoLow) bounds.push_back(fmt::format("(kv_idx - q_idx >= {})", s.lo));
  if (s.hi != Slice::kNoHigh) bounds.push_back(fmt::format("(kv_idx - q_idx <= {})", s.hi));
  if (bounds.empty()) return "(q_idx >= 0)";
  const std::string all = fmt::format("{}", fmt::join(bounds, " & "));
  return bounds.size() == 1 ? all : "(" + all + ")";
}

std::string any_of(const std::vector<std::string>& conditions) {
  if (conditions.empty()) return "    return q_idx < 0\n";
  return fmt::format("    return (\n        {}\n    )\n", fmt::join(conditions, "\n        | "));
}

std::string written_out(const HeadMask& head) {
  std::vector<std::string> conditions;
  for (const Slice& slice : head.slices) {
    const auto s = tighten(slice);
    if (s) conditions.push_back(condition(*s, head.q_len, head.kv_len));
  }
  return "def mask_mod(b, h, q_idx, kv_idx):\n" + any_of(conditions);
}

/// Consecutive queries under the same slices.
struct Segment {
  int64_t queries;
  std::vector<Slice> slices;
};

std::vector<Segment> segments(const HeadMask& head) {
  std::vector<Slice> slices;
  std::vector<int64_t> edges{0, head.q_len};
  for (const Slice& slice : head.slices) {
    const auto s = tighten(slice);
    if (!s) continue;
    slices.push_back(*s);
    edges.push_back(s->q_begin);
    edges.push_back(s->q_end);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::sort(slices.begin(), slices.end(),
            [](const Slice& a, const Slice& b) { return a.q_begin < b.q_begin; });
  std::vector<Segment> found;
  std::vector<Slice> alive;
  size_t next = 0;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    std::erase_if(alive, [&](const Slice& s) { return s.q_end <= edges[i]; });
    while (next < slices.size() && slices[next].q_begin == edges[i]) {
      alive.push_back(slices[next++]);
    }
    found.push_back({edges[i + 1] - edges[i], alive});
  }
  return found;
}

std::string with_tables(const Mask& mask) {
  std::string queries, bounds, variant_of;
  std::vector<std::vector<Segment>> of_variant;
  size_t width = 1;  // most slices that a query meets
  for (const HeadMask& head : mask.variants()) {
    of_variant.push_back(segments(head));
    for (const Segment& s : of_variant.back()) width = std::max(width, s.slices.size());
  }
  for (const auto& list : of_variant) {
    std::vector<int64_t> lengths;
    for (const Segment& segment : list) {
      lengths.push_back(segment.queries);
      std::vector<std::string> cells;
      for (const Slice& s : segment.slices) {
        cells.push_back(fmt::format("[{}, {}, {}, {}]", s.k_begin, s.k_end,
                                    std::max(s.lo, -kWideOpen), std::min(s.hi, kWideOpen)));
      }
      cells.resize(width, "[0, 0, 0, 0]");
      bounds += fmt::format("    [{}],\n", fmt::join(cells, ", "));
    }
    queries += fmt::format("    [{}],\n", fmt::join(lengths, ", "));
  }
  for (int64_t b = 0; b < mask.batch(); ++b) {
    std::vector<int32_t> row;
    for (int64_t h = 0; h < mask.kv_heads(); ++h) row.push_back(mask.variant(b, h));
    variant_of += fmt::format("    [{}],\n", fmt::join(row, ", "));
  }
  std::vector<std::string> conditions;
  for (size_t i = 0; i < width; ++i) {
    conditions.push_back(fmt::format("inside(s, {}, kv_idx, kv_idx - q_idx)", i));
  }
  return fmt::format(
             "# The tables must be on the device of the attention: see torch.set_default_device.\n"
             "import itertools\n\n"
             "import torch\n\n"
             "GROUP = 1  # query heads per KV head\n\n"
             "# Queries of every segment; the queries of a segment are under the same slices.\n"
             "QUERIES = [  # one list per variant\n{}]\n"
             "segment = itertools.count()\n"
             "SEGMENT = torch.tensor(  # [variant, query]\n"
             "    [[s for n in queries for s in itertools.repeat(next(segment), n)]"
             " for queries in QUERIES])\n"
             "# kv_begin, kv_end and the least and greatest kv_idx - q_idx of every slice.\n"
             "BOUNDS = torch.tensor([  # [segment, slice, 4]\n{}])\n"
             "VARIANT = torch.tensor([  # [batch, KV head]\n{}])\n\n\n"
             "def inside(s, i, k, d):\n"
             "    return ((k >= BOUNDS[s, i, 0]) & (k < BOUNDS[s, i, 1])\n"
             "            & (d >= BOUNDS[s, i, 2]) & (d <= BOUNDS[s, i, 3]))\n\n\n"
             "def mask_mod(b, h, q_idx, kv_idx):\n"
             "    s = SEGMENT[VARIANT[{}, {}], q_idx]\n",
             queries, bounds, variant_of, mask.batch() == 1 ? "0" : "b",
             mask.kv_heads() == 1 ? "0" : "h // GROUP") +
         any_of(conditions);
}

}  // namespace

std::string to_mask_mod(const Mask& mask) {
  const bool small =
      mask.variants().size() == 1 && mask.variants()[0].slices.size() <= kMaxWrittenSlices;
  return title(mask) + (small ? written_out(mask.variants()[0]) : with_tables(mask));
}

}  // namespace verbatim
