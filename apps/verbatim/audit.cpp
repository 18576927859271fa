#include "audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "core/threads.h"
#include "mask/slice.h"
#include "prediction.h"

namespace verbatim::app {
namespace {

/// Threads that compute and stream memory until they are told to stop.
class Load {
 public:
  explicit Load(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        std::vector<double> memory(1 << 20, 1.0);
        while (!stop_.load(std::memory_order_relaxed)) {
          for (double& x : memory) x = x * 1.0000001 + 0.5;
        }
      });
    }
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace

void Audit::repeat() {
  Row row{"repeats", "one after the other"};
  for (int i = 0; i < repeats_; ++i) again(attention_, {}, row);
  rows_.push_back(row);
}

void Audit::threads() {
  for (const int count : {1, 2, 3, 8}) {
    Row row{"threads", fmt::format("{}", count)};
    again(attention_, {.threads = count}, row);
    rows_.push_back(row);
  }
}

void Audit::load() {
  const int busy = 2 * core_count();
  Row row{"load", fmt::format("{} busy threads beside it", busy)};
  const Load load(busy);
  for (int i = 0; i < repeats_; ++i) again(attention_, {}, row);
  rows_.push_back(row);
}

void Audit::workers() {
  for (const int32_t count : {1, 5, 16}) {
    // Placed statically, some orders need more workers than this to make progress at all.
    if (count < std::max(attention_.plan(Pass::forward).residency,
                         attention_.plan(Pass::backward).residency)) {
      continue;
    }
    AttentionOptions options = options_;
    options.plan.workers = count;
    Row row{"workers", fmt::format("planned for {}", count)};
    again(Attention(problem_, mask_, options), {}, row);
    rows_.push_back(row);
  }
}

void Audit::batch() {
  if (!movable()) return;
  constexpr int64_t kSlots = 3;
  Problem other = problem_;
  other.batch = kSlots;
  std::vector<HeadMask> heads;
  std::vector<int32_t> variant_of;
  for (int64_t h = 0; h < problem_.kv_heads; ++h) heads.push_back(mask_.head(0, h));
  for (int64_t i = 0; i < kSlots * problem_.kv_heads; ++i) {
    variant_of.push_back(static_cast<int32_t>(i % problem_.kv_heads));
  }
  const Mask mask(mask_.name(), mask_.params_json(), heads, variant_of, kSlots, problem_.kv_heads);
  Part part = Part::all(problem_);
  part.batch_end = 1;
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    Row row{"batch", fmt::format("entry 0 in slot {} of {}", slot, kSlots)};
    row.promised = invariant();
    Part place = part;
    place.batch_begin = slot;
    place.batch_end = slot + 1;
    const uint64_t seed = problem_.seed + 101 + static_cast<uint64_t>(slot);
    elsewhere(part, other, mask, place, Tensors(other, seed), row);
    rows_.push_back(row);
  }
}

void Audit::heads() {
  if (!movable() || problem_.kv_heads * problem_.batch == 1) return;
  const int64_t head = problem_.kv_heads - 1;
  Problem alone = problem_;
  alone.batch = 1;
  alone.kv_heads = 1;
  alone.q_heads = problem_.group();
  Part part = Part::all(problem_);
  part.batch_end = 1;
  part.head_begin = head;
  part.head_end = head + 1;
  Row row{"heads", fmt::format("KV head {} alone", head)};
  row.promised = invariant();
  elsewhere(part, alone, Mask(mask_.name(), mask_.params_json(), mask_.head(0, head)),
            Part::all(alone), Tensors(alone, problem_.seed), row);
  rows_.push_back(row);
}

std::vector<Part> Audit::document_parts() const {
  const HeadMask& first = mask_.head(0, 0);
  std::vector<Part> parts;
  if (first.q_breaks.empty() || first.q_breaks != first.k_breaks) return parts;
  std::vector<int64_t> edges{0};
  edges.insert(edges.end(), first.q_breaks.begin(), first.q_breaks.end());
  edges.push_back(first.q_len);
  for (size_t d = 0; d + 1 < edges.size(); ++d)
    parts.push_back({0, 1, 0, problem_.kv_heads, edges[d], edges[d + 1], edges[d], edges[d + 1]});
  return parts;
}

bool Audit::closed(const Part& d) const {
  for (int64_t h = 0; h < problem_.kv_heads; ++h) {
    const HeadMask& head = mask_.head(0, h);
    const int64_t inside = head.crop(d.q_begin, d.q_end, d.k_begin, d.k_end).area();
    if (inside != head.crop(d.q_begin, d.q_end, 0, head.kv_len).area() ||
        inside != head.crop(0, head.q_len, d.k_begin, d.k_end).area()) {
      return false;
    }
  }
  return true;
}

void Audit::documents() {
  const std::vector<Part> parts = document_parts();
  if (!movable() && sequences(mask_.head(0, 0)).size() != parts.size()) return;
  Row row{"packing", ""};
  row.promised = invariant();
  for (size_t d = 0; d < parts.size(); ++d) {
    const int64_t begin = parts[d].q_begin, end = parts[d].q_end;
    // A document that sees others, or is seen, is not the same problem alone.
    if (begin == end || !closed(parts[d])) continue;
    // Dropout numbers sequences, so it wants the document in the slot of its number.
    const int64_t slot = movable() ? 0 : static_cast<int64_t>(d);
    Problem alone = problem_;
    alone.batch = slot + 1;
    alone.q_len = alone.kv_len = end - begin;
    std::vector<HeadMask> heads;
    for (int64_t h = 0; h < problem_.kv_heads; ++h)
      heads.push_back(mask_.head(0, h).crop(begin, end, begin, end));
    heads.push_back({end - begin, end - begin, {}, {}, {}});  // of the other slots: nothing to do
    std::vector<int32_t> variant_of(slot * problem_.kv_heads,
                                    static_cast<int32_t>(problem_.kv_heads));
    for (int32_t h = 0; h < problem_.kv_heads; ++h) variant_of.push_back(h);
    Part place = Part::all(alone);
    place.batch_begin = slot;
    elsewhere(
        parts[d], alone,
        Mask(mask_.name(), mask_.params_json(), heads, variant_of, alone.batch, problem_.kv_heads),
        place, Tensors(alone, problem_.seed), row);
  }
  if (row.runs == 0) return;
  row.detail = fmt::format("{} documents, each alone", row.runs);
  rows_.push_back(row);
}

void Audit::neighbours() {
  Problem other = problem_;
  other.batch += 2;
  Part place = Part::all(problem_);
  place.batch_begin = movable() ? 1 : 0;
  place.batch_end = place.batch_begin + problem_.batch;
  std::vector<int32_t> variant_of;
  for (int64_t b = 0; b < other.batch; ++b) {
    // Garbage that the neighbours' own masks show, so that they compute with it.
    const int64_t entry = (b - place.batch_begin + problem_.batch) % problem_.batch;
    for (int64_t h = 0; h < problem_.kv_heads; ++h) variant_of.push_back(mask_.variant(entry, h));
  }
  const Mask mask(mask_.name(), mask_.params_json(), mask_.variants(), variant_of, other.batch,
                  problem_.kv_heads);
  Row row{"neighbours", movable() ? "NaN and Inf in an entry before and one behind"
                                  : "NaN and Inf in two entries behind"};
  row.promised = invariant();
  elsewhere(Part::all(problem_), other, mask, place, Tensors::garbage(other), row);
  rows_.push_back(row);
  beside_documents();
}

void Audit::beside_documents() {
  std::vector<Part> parts = document_parts();
  std::erase_if(parts, [](const Part& part) { return part.q_begin == part.q_end; });
  Row row{"neighbours", "NaN and Inf in every other document"};
  for (size_t first = 0; first < 2 && parts.size() > 1; ++first) {
    Tensors tensors = Tensors::garbage(problem_);
    std::vector<Part> kept;
    for (size_t d = first; d < parts.size(); d += 2)
      if (closed(parts[d])) kept.push_back(parts[d]);
    if (kept.empty()) continue;
    for (const Part& part : kept) copy_inputs(tensors_, part, tensors, part);
    run(attention_, tensors, {});
    for (const Part& part : kept)
      note(hash_outputs(tensors, part, passes_), hash_outputs(tensors_, part, passes_), row);
  }
  if (row.runs > 0) rows_.push_back(row);
}

void Audit::padding() {
  // Less than a tile, and several.
  for (const Side side : {Side::right, Side::left})
    for (const int64_t more : {3, 301}) padded(side, more, 2 * more);
}

void Audit::padded(Side side, int64_t rows, int64_t keys) {
  const bool left = side == Side::left;
  const int64_t q = left ? rows : 0, k = left ? keys : 0;
  std::vector<HeadMask> heads;
  for (HeadMask head : mask_.variants()) {
    head.q_len += rows;
    head.kv_len += keys;
    for (Slice& slice : head.slices) slice = shift(slice, -q, -k);
    for (int64_t& edge : head.q_breaks) edge += q;
    for (int64_t& edge : head.k_breaks) edge += k;
    head.q_padding += q;
    head.k_padding += k;
    heads.push_back(std::move(head));
  }
  std::vector<int32_t> variant_of;
  for (int64_t b = 0; b < mask_.batch(); ++b)
    for (int64_t h = 0; h < mask_.kv_heads(); ++h) variant_of.push_back(mask_.variant(b, h));
  Problem other = problem_;
  other.q_len += rows;
  other.kv_len += keys;
  Part place = Part::all(problem_);
  place.q_begin += q;
  place.q_end += q;
  place.k_begin += k;
  place.k_end += k;
  Row row{"padding", fmt::format("NaN and Inf in {} rows, {} keys on the {}", rows, keys,
                                 left ? "left" : "right")};
  row.promised = invariant();
  elsewhere(
      Part::all(problem_), other,
      Mask(mask_.name(), mask_.params_json(), heads, variant_of, mask_.batch(), mask_.kv_heads()),
      place, Tensors::garbage(other), row);
  rows_.push_back(row);
}

void Audit::world(const WorldOptions& asked, dist::Processes* processes) {
  std::vector<DistOptions> worlds;
  if (asked.given()) {
    worlds.push_back(choose(asked, attention_).options);
  } else if (options_.device == "cpu" && options_.kernels.empty()) {  // which run pieces of a plan
    for (const int32_t ranks : {2, 4})
      for (const StrategyInfo& info : strategies())
        if (info.name != std::string("ulysses") || problem_.q_heads % ranks == 0)
          worlds.push_back({.world = ranks, .strategy = info.name});
  }
  if (worlds.empty()) return;
  Row row{"world", "2 and 4 ranks, every strategy"};
  row.promised = options_.plan.level != Level::not_guaranteed;
  for (const DistOptions& options : worlds) {
    const World dealt =
        run_in_world(attention_, tensors_, passes_, options_.device, options, asked, processes);
    note(hash_outputs(tensors_, passes_), expected_, row);
    if (asked.given()) row.detail = dealt.summary();
  }
  rows_.push_back(row);
}

void Audit::against(const std::string& path, const Hashes& saved) {
  Row row{"saved", path};
  note(expected_, saved, row);
  rows_.push_back(row);
}

}  // namespace verbatim::app
