#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "mask/distinct.h"
#include "mask/slice.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

void require(bool ok, const char* operation, const std::string& message, Error::Details details) {
  if (!ok) throw Error(ErrorCode::invalid_argument, operation, message, std::move(details));
}

nlohmann::json parse_params(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, false);
}

/// Name and parameters of the masks that `mask` is the intersection of.
nlohmann::json factors(const Mask& mask) {
  auto params = parse_params(mask.params_json());
  if (params.size() == 1 && params.contains("masks")) return params["masks"];
  return {{{"name", mask.name()}, {"params", std::move(params)}}};
}

/// The size of a broadcast dimension.
int64_t common(int64_t a, int64_t b, const char* argument) {
  require(a == b || a == 1 || b == 1, "mask.intersect", "the masks differ in size",
          {argument, fmt::to_string(b), fmt::format("1 or {}", a), "1"});
  return std::max(a, b);
}

std::vector<int64_t> to_vector(std::span<const int64_t> values) {
  return {values.begin(), values.end()};
}

/// What `lengths`, one for each batch entry of `mask`, show of an axis.
std::vector<Interval> shown(const char* operation, const char* argument,
                            std::span<const int64_t> lengths, const Mask& mask, int64_t axis,
                            Side side) {
  const int64_t batch = std::ssize(lengths);
  require(batch >= 1 && (mask.batch() == 1 || mask.batch() == batch), operation,
          "there must be one length per batch entry",
          {argument, fmt::format("{} lengths", batch),
           mask.batch() == 1 ? "1 or more" : fmt::to_string(mask.batch()), ""});
  std::vector<Interval> shown;
  for (const int64_t length : lengths) {
    const std::string entry = fmt::format("{}[{}]", argument, shown.size());
    require(0 <= length && length <= axis, operation, entry + " is out of range",
            {entry, fmt::to_string(length), fmt::format("0 to {}", axis),
             length < 0 ? "0" : fmt::to_string(axis)});
    const int64_t begin = side == Side::left ? axis - length : 0;
    shown.push_back({begin, begin + length});
  }
  return shown;
}

/// The part of batch entry b inside rows[b] x keys[b]; `lengths` are the parameters that say so.
Mask cut(const Mask& mask, std::span<const Interval> rows, std::span<const Interval> keys,
         const nlohmann::json& lengths) {
  DistinctHeads heads;
  std::map<std::array<int64_t, 5>, int32_t> made;
  for (size_t b = 0; b < rows.size(); ++b) {
    for (int64_t h = 0; h < mask.kv_heads(); ++h) {
      const int32_t variant = mask.variant(static_cast<int64_t>(b), h);
      const auto [it, is_new] =
          made.try_emplace({rows[b].begin, rows[b].end, keys[b].begin, keys[b].end, variant}, 0);
      if (is_new) {
        HeadMask head = mask.variants()[variant];
        std::vector<Slice> visible;
        for (const Slice& s : head.slices) {
          const auto inside =
              tighten(clip(s, {rows[b].begin, rows[b].end, keys[b].begin, keys[b].end}));
          if (inside) visible.push_back(*inside);
        }
        head.slices = std::move(visible);
        head.q_padding = std::max(head.q_padding, rows[b].begin);
        head.k_padding = std::max(head.k_padding, keys[b].begin);
        it->second = heads.id_of(std::move(head));
      }
      heads.variant_of.push_back(it->second);
    }
  }
  auto params = parse_params(mask.params_json());
  if (params.contains("key_lengths")) params = {{"masks", factors(mask)}};
  params.update(lengths);
  return Mask(mask.name(), params.dump(), std::move(heads.variants), std::move(heads.variant_of),
              std::ssize(rows), mask.kv_heads());
}

}  // namespace

Mask::Mask(std::string name, std::string params_json, HeadMask head)
    : Mask(std::move(name), std::move(params_json), std::vector<HeadMask>{std::move(head)}, {0}, 1,
           1) {}

Mask::Mask(std::string name, std::string params_json, std::vector<HeadMask> variants,
           std::vector<int32_t> variant_of, int64_t batch, int64_t kv_heads)
    : content_(std::make_shared<const Content>(
          Content{std::move(name), params_json.empty() ? "{}" : std::move(params_json),
                  std::move(variants), std::move(variant_of), batch, kv_heads})) {
  require(parse_params(this->params_json()).is_object(), "mask",
          "the parameters are not a JSON object",
          {"params_json", this->params_json(), "an object such as {\"window\":3}", "{}"});
  require(!this->variants().empty(), "mask", "a mask needs a head mask",
          {"variants", "none", "at least 1", "1"});
  require(batch >= 1 && batch <= kMaxHeads && kv_heads >= 1 && kv_heads <= kMaxHeads, "mask",
          "a size is out of range",
          {"batch, kv_heads", fmt::format("{}, {}", batch, kv_heads), "1 to 2^24", "1"});
  const auto& of = content_->variant_of;
  require(std::ssize(of) == batch * kv_heads, "mask",
          "there must be one variant per batch entry and KV head",
          {"variant_of", fmt::format("{} entries", of.size()),
           fmt::format("{} x {} entries", batch, kv_heads), ""});
  for (const int32_t v : of) {
    require(v >= 0 && v < std::ssize(content_->variants), "mask", "no such variant",
            {"variant_of", fmt::to_string(v), fmt::format("0 to {}", content_->variants.size() - 1),
             ""});
  }
  for (const HeadMask& head : content_->variants) {
    require(head.q_len == q_len() && head.kv_len == kv_len(), "mask", "the variants differ in size",
            {"variants", fmt::format("{} x {}", head.q_len, head.kv_len),
             fmt::format("{} x {}", q_len(), kv_len()), ""});
    head.validate();
  }
}

int32_t Mask::variant(int64_t b, int64_t kv_head) const {
  const int64_t batch = content_->batch, kv_heads = content_->kv_heads;
  const int64_t row = batch == 1 ? 0 : b, column = kv_heads == 1 ? 0 : kv_head;
  if (b < 0 || row >= batch || kv_head < 0 || column >= kv_heads)
    throw Error(ErrorCode::invalid_argument, "mask.variant", "the mask has no such head",
                {"b, kv_head", fmt::format("{}, {}", b, kv_head),
                 fmt::format("inside {} x {} (1 fits any number)", batch, kv_heads), ""});
  return content_->variant_of[row * kv_heads + column];
}

std::shared_ptr<const std::vector<Slice>> Mask::slices(size_t variant) const {
  return {content_, &content_->variants.at(variant).slices};
}

int64_t Mask::bytes() const {
  size_t bytes = content_->name.size() + content_->params_json.size() +
                 content_->variant_of.size() * sizeof(int32_t);
  for (const HeadMask& head : variants())
    bytes += head.slices.size() * sizeof(Slice) +
             (head.q_breaks.size() + head.k_breaks.size()) * sizeof(int64_t);
  return static_cast<int64_t>(bytes);
}

int64_t Mask::area(int64_t batch, int64_t q_heads, int64_t kv_heads) const {
  require(batch >= 1 && kv_heads >= 1 && q_heads >= kv_heads && q_heads % kv_heads == 0,
          "mask.area", "KV heads do not divide query heads",
          {"batch, q_heads, kv_heads", fmt::format("{}, {}, {}", batch, q_heads, kv_heads),
           "positive numbers, q_heads a multiple of kv_heads", ""});
  require((this->batch() == 1 || this->batch() == batch) &&
              (this->kv_heads() == 1 || this->kv_heads() == kv_heads),
          "mask.area", "the mask was made for other sizes",
          {"batch, kv_heads", fmt::format("{}, {}", batch, kv_heads),
           fmt::format("{}, {} (1 fits any number)", this->batch(), this->kv_heads()), ""});
  // Each entry stands for this many (batch, query head) pairs.
  int64_t copies = 0, sum = 0;
  bool fits = !__builtin_mul_overflow(batch / this->batch(), q_heads / this->kv_heads(), &copies);
  std::vector<int64_t> areas;
  for (const HeadMask& head : variants()) areas.push_back(head.area());
  for (const int32_t v : content_->variant_of) {
    int64_t part = 0;
    fits = fits && !__builtin_mul_overflow(areas[v], copies, &part) &&
           !__builtin_add_overflow(sum, part, &sum);
  }
  require(fits, "mask.area", "the area exceeds 63 bits",
          {"batch, q_heads", fmt::format("{}, {}", batch, q_heads), "fewer heads", ""});
  return sum;
}

Mask Mask::intersect(const Mask& other) const {
  const int64_t batch = common(this->batch(), other.batch(), "batch");
  const int64_t kv_heads = common(this->kv_heads(), other.kv_heads(), "kv_heads");
  DistinctHeads heads;
  std::map<std::pair<int32_t, int32_t>, int32_t> made;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < kv_heads; ++h) {
      const std::pair pair(variant(b, h), other.variant(b, h));
      auto it = made.find(pair);
      if (it == made.end()) {
        const int32_t id =
            heads.id_of(variants()[pair.first].intersect(other.variants()[pair.second]));
        it = made.emplace(pair, id).first;
      }
      heads.variant_of.push_back(it->second);
    }
  }
  auto all = factors(*this);
  for (auto& factor : factors(other)) all.push_back(std::move(factor));
  const nlohmann::json params = {{"masks", std::move(all)}};
  return Mask(name() + "&" + other.name(), params.dump(), std::move(heads.variants),
              std::move(heads.variant_of), batch, kv_heads);
}

Mask Mask::with_key_lengths(std::span<const int64_t> key_lengths) const {
  const char* operation = "mask.with_key_lengths";
  const auto keys = shown(operation, "key_lengths", key_lengths, *this, kv_len(), Side::right);
  const std::vector<Interval> rows(keys.size(), {0, q_len()});
  return cut(*this, rows, keys, {{"key_lengths", to_vector(key_lengths)}});
}

Mask Mask::with_lengths(std::span<const int64_t> q_lengths, std::span<const int64_t> key_lengths,
                        Side side) const {
  const char* operation = "mask.with_lengths";
  const auto keys = shown(operation, "key_lengths", key_lengths, *this, kv_len(), side);
  const auto rows = shown(operation, "q_lengths", q_lengths, *this, q_len(), side);
  require(rows.size() == keys.size(), operation, "the lists differ in size",
          {"key_lengths", fmt::format("{} lengths", keys.size()),
           fmt::format("{}, as q_lengths", rows.size()), fmt::to_string(rows.size())});
  return cut(*this, rows, keys,
             {{"q_lengths", to_vector(q_lengths)},
              {"key_lengths", to_vector(key_lengths)},
              {"side", side == Side::left ? "left" : "right"}});
}

}  // namespace verbatim
