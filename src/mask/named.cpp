// Masks from their names and parameters, as Mask::name() and params_json() give them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/json.h"
#include "core/names.h"
#include "mask/kept.h"
#include "verbatim/error.h"
#include "verbatim/mask.h"

namespace verbatim::masks {
namespace {

using Json = nlohmann::json;

constexpr const char* kOperation = "masks.make";

/// Reads a mask's parameters; finish() refuses those that nobody asked for.
class Params {
 public:
  Params(const std::string& mask, const Json& json)
      : mask_(mask), operation_("mask." + mask), json_(json_object(json, "params", operation_)) {}

  bool has(const char* key) const { return json_.contains(key); }
  const Json& value(const char* key) {
    read_.insert(key);
    return json_member(json_, key, operation_);
  }
  int64_t integer(const char* key) { return json_int(value(key), key, operation_); }
  bool flag(const char* key) { return json_bool(value(key), key, operation_); }
  const Json& list(const char* key) { return json_list(value(key), key, operation_); }
  std::vector<int64_t> integers(const char* key) {
    std::vector<int64_t> values;
    for (const Json& entry : list(key)) values.push_back(json_int(entry, key, operation_));
    return values;
  }
  /// The mask of this name and these parameters whose blocks came as arrays, if "blocks" is the
  /// name of such.
  std::optional<Mask> kept(const char* key) {
    const Json& found = value(key);
    if (!found.is_string()) return std::nullopt;
    if (auto mask = find_kept(found.get<std::string>()); mask && is_meant(*mask)) return mask;
    throw Error(ErrorCode::invalid_argument, operation_, "nobody keeps these blocks",
                {key, found.get<std::string>(),
                 "the blocks of a mask that was made of arrays in this process and still lives",
                 "lists of [q_block, k_block] per KV head"});
  }
  /// One list of [q_block, k_block] pairs per KV head.
  std::vector<std::vector<Block>> blocks(const char* key) {
    std::vector<std::vector<Block>> heads;
    for (const Json& pairs : list(key)) {
      std::vector<Block>& head = heads.emplace_back();
      if (!pairs.is_array()) wrong(key, pairs, "a list of [q_block, k_block] per KV head");
      for (const Json& pair : pairs) {
        if (pair.is_number())
          wrong(key, pair, "a list of [q_block, k_block] per KV head", "[[[0, 0]]] of one block");
        if (!pair.is_array() || pair.size() != 2) wrong(key, pair, "[q_block, k_block]");
        head.push_back({json_int(pair[0], key, operation_), json_int(pair[1], key, operation_)});
      }
    }
    return heads;
  }
  std::string text(const char* key) { return json_text(value(key), key, operation_); }
  double number(const char* key) { return json_number(value(key), key, operation_); }
  uint64_t seed(const char* key) { return json_uint(value(key), key, operation_); }

  void finish() const {
    for (const auto& [key, unused] : json_.items()) {
      if (read_.contains(key)) continue;
      throw Error(
          ErrorCode::invalid_argument, operation_, "the mask has no such parameter",
          {key, key, read_.empty() ? "none" : fmt::format("{}", fmt::join(read_, ", ")), ""});
    }
  }

 private:
  /// These parameters may say more: what of the mask is cut off.
  bool is_meant(const Mask& kept) const {
    const Json own = Json::parse(kept.params_json());
    return kept.name() == mask_ && std::ranges::all_of(own.items(), [&](const auto& item) {
             return json_.contains(item.key()) && json_[item.key()] == item.value();
           });
  }
  [[noreturn]] void wrong(const char* key, const Json& got, const char* expected,
                          const char* nearest = "") const {
    throw Error(ErrorCode::invalid_argument, operation_, fmt::format("'{}' is malformed", key),
                {key, got.type_name(), expected, nearest});
  }

  std::string mask_, operation_;
  const Json& json_;
  std::set<std::string> read_;
};

struct Sizes {
  int64_t q_len, kv_len, kv_heads;
};

Mask uniform_blocks(Params& params, const Sizes& size) {
  const int64_t q = params.integer("block_q"), k = params.integer("block_k");
  if (params.has("blocks")) {
    if (const auto kept = params.kept("blocks")) return *kept;
    return uniform_block_sparse(size.q_len, size.kv_len, q, k, params.blocks("blocks"));
  }
  const double density = params.number("density");
  return uniform_block_sparse(size.q_len, size.kv_len, q, k, density, params.seed("seed"),
                              size.kv_heads);
}

Mask variable_blocks(Params& params, const Sizes& size) {
  const std::vector<int64_t> q = params.integers("q_edges"), k = params.integers("k_edges");
  if (params.has("blocks")) {
    if (const auto kept = params.kept("blocks")) return *kept;
    return variable_block_sparse(q, k, params.blocks("blocks"));
  }
  const double density = params.number("density");
  return variable_block_sparse(q, k, density, params.seed("seed"), size.kv_heads);
}

Mask pattern(const std::string& name, Params& params, const Sizes& size) {
  const auto documents = [&] { return params.integers("doc_lengths"); };
  if (name == "full") return full(size.q_len, size.kv_len);
  if (name == "causal") return causal(size.q_len, size.kv_len);
  if (name == "full_sliding_window") {
    return full_sliding_window(size.q_len, size.kv_len, params.integer("window"));
  }
  if (name == "causal_sliding_window") {
    return causal_sliding_window(size.q_len, size.kv_len, params.integer("window"));
  }
  if (name == "full_document") return full_document(documents());
  if (name == "causal_document") return causal_document(documents());
  if (name == "share_question") return share_question(documents());
  if (name == "causal_blockwise") return causal_blockwise(documents());
  if (name == "global_sliding") {
    const int64_t global = params.integer("global");
    return global_sliding(size.q_len, global, params.integer("window"));
  }
  if (name == "prefix_lm_causal") return prefix_lm_causal(size.q_len, params.integer("prefix"));
  if (name == "prefix_lm_document") {
    return prefix_lm_document(documents(), params.integers("prefix"));
  }
  if (name == "block_causal_document") {
    return block_causal_document(documents(), params.integer("block"));
  }
  if (name == "uniform_block_sparse") return uniform_blocks(params, size);
  if (name == "variable_block_sparse") return variable_blocks(params, size);
  if (name == "cu_seqlens") {
    const std::vector<int64_t> q = params.integers("cu_seqlens_q");
    const std::vector<int64_t> k = params.integers("cu_seqlens_k");
    return from_cu_seqlens(q, k, params.flag("causal"));
  }
  if (name == "windows") {
    const std::vector<int64_t> q = params.integers("cu_seqlens_q");
    const std::vector<int64_t> k = params.integers("cu_seqlens_k");
    const auto width = [&](const char* side) {
      return params.has(side) ? std::optional(params.integer(side)) : std::nullopt;
    };
    return windows(q, k, width("left"), width("right"));
  }
  const std::vector<std::string> known(names().begin(), names().end());
  throw Error(ErrorCode::invalid_argument, kOperation, "there is no mask of this name",
              {"name", "'" + name + "'",
               fmt::format("{}, cu_seqlens, or a mask's slices", fmt::join(known, ", ")),
               nearest_name(name, known)});
}

Mask described(const Json& json, const Sizes& size);

/// The parameters of an intersection describe the masks it consists of.
Mask intersection(Params& params, const Sizes& size) {
  std::optional<Mask> all;
  for (const Json& factor : params.list("masks")) {
    const Mask mask = described(factor, size);
    all = all ? all->intersect(mask) : mask;
  }
  if (all) return *all;
  throw Error(ErrorCode::invalid_argument, kOperation, "an intersection of nothing",
              {"masks", "no mask", "one or more", "full"});
}

Side side_of(Params& params) {
  if (!params.has("side")) return Side::right;
  const std::string side = params.text("side");
  if (side == "left" || side == "right") return side == "left" ? Side::left : Side::right;
  throw Error(ErrorCode::invalid_argument, kOperation, "there is no such side",
              {"side", side, "left or right", "right"});
}

Mask described(const Json& json, const Sizes& size) {
  if (json.contains("variants") || json.contains("variant_of")) return mask_from_json(json.dump());
  require_known_members(json, {"name", "params"}, kOperation);
  const std::string name = json_text(json_member(json, "name", kOperation), "name", kOperation);
  Params params(name, json_member(json, "params", kOperation));
  Mask mask = params.has("masks") ? intersection(params, size) : pattern(name, params, size);
  if (params.has("q_lengths")) {
    const auto q_lengths = params.integers("q_lengths");
    mask = mask.with_lengths(q_lengths, params.integers("key_lengths"), side_of(params));
  } else if (params.has("key_lengths")) {
    mask = mask.with_key_lengths(params.integers("key_lengths"));
  }
  params.finish();
  return mask;
}

}  // namespace

Mask make(const std::string& json, int64_t q_len, int64_t kv_len, int64_t kv_heads) {
  return described(parse_json(json, kOperation), {q_len, kv_len, kv_heads});
}

}  // namespace verbatim::masks
