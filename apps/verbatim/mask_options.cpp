#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "core/file.h"
#include "core/json.h"
#include "core/names.h"
#include "options.h"

namespace verbatim::app {
namespace {

using Parameter = std::string MaskOptions::*;

struct Spelling {
  const char* option;
  Parameter value;
};

const Spelling kWindow{"--window", &MaskOptions::window};
const Spelling kDocuments{"--doc-lengths", &MaskOptions::doc_lengths};
const Spelling kPrefix{"--prefix", &MaskOptions::prefix};
const Spelling kBlock{"--block", &MaskOptions::block};
const Spelling kGlobal{"--global", &MaskOptions::global};
const Spelling kDensity{"--density", &MaskOptions::density};
const Spelling kBlockQ{"--block-q", &MaskOptions::block_q};
const Spelling kBlockK{"--block-k", &MaskOptions::block_k};
const Spelling kBlockList{"--block-list", &MaskOptions::block_list};
const Spelling kCuSeqlensQ{"--cu-seqlens-q", &MaskOptions::cu_seqlens_q};
const Spelling kCuSeqlensK{"--cu-seqlens-k", &MaskOptions::cu_seqlens_k};
const Spelling kAll[] = {kWindow, kDocuments, kPrefix,    kBlock,      kGlobal,    kDensity,
                         kBlockQ, kBlockK,    kBlockList, kCuSeqlensQ, kCuSeqlensK};

template <class T>
T parse_number(const std::string& text, const std::string& argument) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail("not a number",
         {argument, "'" + text + "'", std::is_integral_v<T> ? "an integer" : "a number", ""});
  }
  return value;
}

/// Beyond 63 bits: the largest there is, which no length may be.
int64_t sum_of(const std::vector<int64_t>& lengths) {
  int64_t sum = 0;
  for (const int64_t length : lengths)
    if (__builtin_add_overflow(sum, length, &sum)) return INT64_MAX;
  return sum;
}

std::vector<int64_t> integers(const nlohmann::json& value, const std::string& argument) {
  if (!value.is_array()) {
    fail(argument + " is no list", {argument, value.type_name(), "an array of integers", ""});
  }
  std::vector<int64_t> list;
  for (const auto& entry : value) list.push_back(json_int(entry, argument, "verbatim"));
  return list;
}

/// One number or a list, as text on the command line.
class Arguments {
 public:
  Arguments(const MaskOptions& options, std::vector<Spelling> allowed,
            std::vector<Spelling> required)
      : options_(options) {
    for (const Spelling& spelling : required) {
      if ((options.*spelling.value).empty()) {
        fail(fmt::format("mask {} needs {}", options.name, spelling.option),
             {spelling.option, "nothing", fmt::format("{} VALUE", spelling.option), ""});
      }
    }
    allowed.insert(allowed.end(), required.begin(), required.end());
    for (const Spelling& spelling : kAll) {
      const bool known = std::any_of(allowed.begin(), allowed.end(),
                                     [&](auto& a) { return a.value == spelling.value; });
      if (known || (options.*spelling.value).empty()) continue;
      std::vector<std::string> names;
      for (const Spelling& a : allowed) names.emplace_back(a.option);
      fail(fmt::format("mask {} has no parameter {}", options.name, spelling.option),
           {spelling.option, options.*spelling.value,
            names.empty() ? "no parameters" : fmt::format("{}", fmt::join(names, ", ")), ""});
    }
  }

  bool has(const Spelling& s) const { return !(options_.*s.value).empty(); }
  int64_t integer(const Spelling& s) const {
    return parse_number<int64_t>(options_.*s.value, s.option);
  }
  double real(const Spelling& s) const { return parse_number<double>(options_.*s.value, s.option); }
  std::vector<int64_t> list(const Spelling& s) const {
    return parse_list(options_.*s.value, s.option);
  }
  /// Document lengths that add up to `length`.
  std::vector<int64_t> documents(int64_t length) const {
    const std::vector<int64_t> lengths = list(kDocuments);
    const int64_t sum = sum_of(lengths);
    if (sum != length) {
      fail("the documents do not fill the sequence",
           {kDocuments.option, fmt::format("a sum of {}", sum), fmt::format("{}", length),
            fmt::format("--seqlen {}", sum)});
    }
    return lengths;
  }

 private:
  const MaskOptions& options_;
};

/// Selected blocks per KV head, from JSON [[q, k], ...] for all heads or one such list per head.
std::vector<std::vector<masks::Block>> read_blocks(const std::string& text, int64_t kv_heads) {
  if (!text.starts_with('@')) {
    const bool is_json = text.starts_with('[');
    fail("blocks come from a file", {kBlockList.option, text, "@file.json",
                                     is_json ? "@file.json that holds it" : "@" + text});
  }
  const nlohmann::json value = parse_json(read_text(text.substr(1)), kBlockList.option);
  const auto is_pair = [](const nlohmann::json& v) {
    return v.is_array() && v.size() == 2 && v[0].is_number_integer();
  };
  if (!value.is_array()) {
    fail("not a list of blocks", {kBlockList.option, value.type_name(), "[[q, k], ...]", ""});
  }
  const auto blocks = [&](const nlohmann::json& list) {
    std::vector<masks::Block> result;
    for (const auto& pair : list) {
      const std::vector<int64_t> block = integers(pair, kBlockList.option);
      if (block.size() != 2) {
        fail("a block is a pair", {kBlockList.option, pair.dump(), "[q_block, k_block]", ""});
      }
      result.push_back({block[0], block[1]});
    }
    return result;
  };
  const bool shared = value.empty() || is_pair(value[0]);
  if (!shared && std::ssize(value) != kv_heads) {
    fail("one list of blocks per KV head is needed",
         {kBlockList.option, fmt::format("{} lists", value.size()), fmt::format("{}", kv_heads),
          ""});
  }
  std::vector<std::vector<masks::Block>> per_head;
  for (int64_t head = 0; head < kv_heads; ++head) {
    per_head.push_back(blocks(shared ? value : value[head]));
  }
  return per_head;
}

/// Edges 0, ..., length from block lengths; one number is repeated and the last block is cut.
std::vector<int64_t> edges(const std::vector<int64_t>& lengths, int64_t length,
                           const char* argument) {
  std::vector<int64_t> result{0};
  const auto wrong = [&](const std::string& expected) {
    fail("the blocks do not cut the sequence",
         {argument, fmt::format("{}", fmt::join(lengths, ",")), expected, ""});
  };
  if (std::any_of(lengths.begin(), lengths.end(), [](int64_t l) { return l <= 0; })) {
    wrong("positive lengths");
  }
  if (lengths.size() == 1) {
    while (result.back() < length) result.push_back(std::min(length, result.back() + lengths[0]));
    return result;
  }
  if (sum_of(lengths) != length) wrong(fmt::format("a sum of {}", length));
  for (const int64_t block : lengths) result.push_back(result.back() + block);
  return result;
}

Mask block_sparse(const MaskOptions& options, const Problem& problem, bool uniform) {
  const Arguments args(options, {kDensity, kBlockList}, {kBlockQ, kBlockK});
  if (args.has(kDensity) == args.has(kBlockList)) {
    fail("a block-sparse mask is given by a density or by a list",
         {"--density, --block-list", args.has(kDensity) ? "both" : "neither", "one of them",
          "--density 0.25"});
  }
  const double density = args.has(kDensity) ? args.real(kDensity) : 0;
  std::vector<std::vector<masks::Block>> blocks;
  if (args.has(kBlockList)) blocks = read_blocks(options.block_list, problem.kv_heads);
  if (uniform) {
    const int64_t q = args.integer(kBlockQ), k = args.integer(kBlockK);
    return args.has(kDensity)
               ? masks::uniform_block_sparse(problem.q_len, problem.kv_len, q, k, density,
                                             problem.seed, problem.kv_heads)
               : masks::uniform_block_sparse(problem.q_len, problem.kv_len, q, k, blocks);
  }
  const auto q = edges(args.list(kBlockQ), problem.q_len, kBlockQ.option);
  const auto k = edges(args.list(kBlockK), problem.kv_len, kBlockK.option);
  return args.has(kDensity)
             ? masks::variable_block_sparse(q, k, density, problem.seed, problem.kv_heads)
             : masks::variable_block_sparse(q, k, blocks);
}

/// Masks over documents or blocks of one sequence have one length.
int64_t single_length(const MaskOptions& options, const Problem& problem) {
  if (problem.q_len != problem.kv_len) {
    fail(fmt::format("mask {} needs one length", options.name),
         {"--q-len, --kv-len", fmt::format("{} and {}", problem.q_len, problem.kv_len),
          "equal lengths", fmt::format("--seqlen {}", problem.kv_len)});
  }
  return problem.q_len;
}

/// Packed sequences with windows, in FlashAttention's vocabulary; without lengths one sequence.
Mask windows(const MaskOptions& options, const Problem& problem) {
  const Arguments args(options, {kCuSeqlensQ, kCuSeqlensK}, {kWindow});
  const std::vector<int64_t> sides = args.list(kWindow);  // left, right
  if (sides.size() != 2 || std::min(sides[0], sides[1]) < -1) {
    fail("a window has two sides",
         {kWindow.option, options.window, "LEFT,RIGHT, each 0 or more, or -1: all", "-1,0"});
  }
  if (args.has(kCuSeqlensK) && !args.has(kCuSeqlensQ)) {
    fail("sequences of keys have queries",
         {kCuSeqlensQ.option, "nothing", "as many entries as --cu-seqlens-k", ""});
  }
  const auto side = [](int64_t width) { return width < 0 ? std::nullopt : std::optional(width); };
  const std::vector<int64_t> q =
      args.has(kCuSeqlensQ) ? args.list(kCuSeqlensQ) : std::vector<int64_t>{0, problem.q_len};
  const std::vector<int64_t> k = args.has(kCuSeqlensK)   ? args.list(kCuSeqlensK)
                                 : args.has(kCuSeqlensQ) ? q
                                                         : std::vector<int64_t>{0, problem.kv_len};
  return masks::windows(q, k, side(sides[0]), side(sides[1]));
}

/// A file has all of a mask: no parameter goes beside it.
Mask mask_of_file(const MaskOptions& options) {
  const Arguments none(options, {}, {});
  return parse_file(options.name.substr(1),
                    [](const std::string& text) { return mask_from_json(text); });
}

Mask named_mask(const MaskOptions& options, const Problem& problem) {
  const int64_t q_len = problem.q_len, kv_len = problem.kv_len;
  const auto arguments = [&](std::vector<Spelling> required) {
    return Arguments(options, {}, std::move(required));
  };
  const auto documents = [&](const Arguments& args) {
    return args.documents(single_length(options, problem));
  };
  const std::string& name = options.name;
  if (name == "full") return arguments({}), masks::full(q_len, kv_len);
  if (name == "causal") return arguments({}), masks::causal(q_len, kv_len);
  if (name == "full_sliding_window") {
    return masks::full_sliding_window(q_len, kv_len, arguments({kWindow}).integer(kWindow));
  }
  if (name == "causal_sliding_window") {
    return masks::causal_sliding_window(q_len, kv_len, arguments({kWindow}).integer(kWindow));
  }
  if (name == "full_document") return masks::full_document(documents(arguments({kDocuments})));
  if (name == "causal_document") return masks::causal_document(documents(arguments({kDocuments})));
  if (name == "share_question") return masks::share_question(documents(arguments({kDocuments})));
  if (name == "causal_blockwise") {
    return masks::causal_blockwise(documents(arguments({kDocuments})));
  }
  if (name == "global_sliding") {
    const Arguments args = arguments({kGlobal, kWindow});
    return masks::global_sliding(single_length(options, problem), args.integer(kGlobal),
                                 args.integer(kWindow));
  }
  if (name == "prefix_lm_causal") {
    return masks::prefix_lm_causal(single_length(options, problem),
                                   arguments({kPrefix}).integer(kPrefix));
  }
  if (name == "prefix_lm_document") {
    const Arguments args = arguments({kDocuments, kPrefix});
    return masks::prefix_lm_document(documents(args), args.list(kPrefix));
  }
  if (name == "block_causal_document") {
    const Arguments args = arguments({kDocuments, kBlock});
    return masks::block_causal_document(documents(args), args.integer(kBlock));
  }
  if (name == "uniform_block_sparse") return block_sparse(options, problem, true);
  if (name == "variable_block_sparse") return block_sparse(options, problem, false);
  if (name == "windows") return windows(options, problem);
  std::vector<std::string> known(masks::names().begin(), masks::names().end());
  fail("there is no such mask",
       {"--mask", name, fmt::format("one of {}, or @file.json", fmt::join(known, ", ")),
        name.ends_with(".json") ? "@" + name : nearest_name(name, known)});
}

/// One length for each batch entry.
std::vector<int64_t> lengths_of(const std::string& text, const char* option,
                                const Problem& problem) {
  std::vector<int64_t> lengths = parse_list(text, option);
  if (lengths.size() == 1) lengths.assign(problem.batch, lengths[0]);
  if (std::ssize(lengths) != problem.batch) {
    fail("there is one length per batch entry",
         {option, fmt::format("{} lengths", lengths.size()),
          problem.batch == 1 ? "1" : fmt::format("{}, or 1 for all", problem.batch),
          fmt::format("--batch {}", lengths.size())});
  }
  return lengths;
}

/// `mask` without what --key-lengths, --q-lengths and --padding hide.
Mask padded(const MaskOptions& options, const Problem& problem, const Mask& mask) {
  const bool both = !options.q_lengths.empty() || !options.padding.empty();
  if (options.key_lengths.empty()) {
    if (both)
      fail("padding needs the lengths of the keys",
           {"--key-lengths", "none", "one per batch entry, or one for all",
            fmt::format("--key-lengths {}", problem.kv_len)});
    return mask;
  }
  const auto keys = lengths_of(options.key_lengths, "--key-lengths", problem);
  if (!both) return mask.with_key_lengths(keys);
  const std::string side = options.padding.empty() ? "right" : options.padding;
  require_one_of(side, "--padding", {"right", "left"});
  const int64_t longest = std::ranges::max(keys);
  if (options.q_lengths.empty() && problem.q_len < longest && longest <= problem.kv_len)
    fail("padding needs the lengths of the queries, which are fewer than keys",
         {"--q-lengths", "none", "one per batch entry, or one for all",
          fmt::format("--q-lengths {}", problem.q_len)});
  const auto queries =
      options.q_lengths.empty() ? keys : lengths_of(options.q_lengths, "--q-lengths", problem);
  return mask.with_lengths(queries, keys, side == "left" ? Side::left : Side::right);
}

}  // namespace

void MaskOptions::add_to(Command command) {
  const char* group = "Mask";
  std::string known;
  for (const char* each : masks::names()) known += (known.empty() ? "" : ", ") + std::string(each);
  const auto add = [&](const char* option, std::string& value, const std::string& help,
                       const char* type) {
    command.add_option(option, value, help).group(group).type_name(type);
  };
  command
      .add_option("--mask", name, "Pattern: " + known + "; or @file.json as mask --to json writes")
      .group(group)
      .type_name("NAME")
      .capture_default_str();
  add("--window", window,
      "Sliding windows, global_sliding: positions to each visible side; windows: keys before and "
      "after, -1: all",
      "N|LEFT,RIGHT");
  add("--cu-seqlens-q", cu_seqlens_q,
      "windows: where packed sequences begin, then their end: 0,..,queries (default: one sequence)",
      "A,B,..|@FILE");
  add("--cu-seqlens-k", cu_seqlens_k, "windows: the same of keys (default: as queries)",
      "A,B,..|@FILE");
  add("--doc-lengths", doc_lengths, "Document lengths, in order; they sum to the length",
      "A,B,..|@FILE");
  add("--prefix", prefix, "Prefix length, or one per document for prefix_lm_document",
      "N|A,B,..|@FILE");
  add("--block", block, "block_causal_document: tokens per block", "N");
  add("--global", global, "global_sliding: tokens that see and are seen by all", "N");
  add("--density", density, "Block-sparse masks: share of key blocks each query block sees", "X");
  add("--block-q", block_q, "Block-sparse masks: queries per block; a list for the variable mask",
      "N|A,B,..|@FILE");
  add("--block-k", block_k, "Block-sparse masks: keys per block; a list for the variable mask",
      "N|A,B,..|@FILE");
  add("--block-list", block_list,
      "Block-sparse masks: JSON [[q, k], ...] of visible blocks, or one such list per KV head",
      "@FILE");
  add("--key-lengths", key_lengths, "Any mask: keys from this length on are padding, per batch",
      "A,B,..|@FILE");
  add("--q-lengths", q_lengths,
      "Any mask: queries from this length on are padding too (default for --padding: as the keys)",
      "A,B,..|@FILE");
  add("--padding", padding, "The side of the padding of queries and keys: right or left", "SIDE");
}

std::optional<std::pair<int64_t, int64_t>> MaskOptions::implied_lengths() const {
  if (name.starts_with('@')) {
    const Mask mask = mask_of_file(*this);
    return std::pair(mask.q_len(), mask.kv_len());
  }
  if (!cu_seqlens_q.empty()) {
    const auto end_of = [](const std::string& text, const Spelling& spelling) {
      const std::vector<int64_t> starts = parse_list(text, spelling.option);
      return starts.empty() ? 0 : starts.back();
    };
    const int64_t q_len = end_of(cu_seqlens_q, kCuSeqlensQ);
    return std::pair(q_len, cu_seqlens_k.empty() ? q_len : end_of(cu_seqlens_k, kCuSeqlensK));
  }
  if (doc_lengths.empty()) return std::nullopt;
  const int64_t length = sum_of(parse_list(doc_lengths, kDocuments.option));
  return std::pair(length, length);
}

Mask MaskOptions::make(const Problem& problem) const {
  Mask mask = name.starts_with('@') ? mask_of_file(*this) : named_mask(*this, problem);
  if (mask.q_len() != problem.q_len || mask.kv_len() != problem.kv_len) {
    fail("the mask has another size than the problem",
         {"--mask", fmt::format("{} x {}", mask.q_len(), mask.kv_len()),
          fmt::format("{} x {}", problem.q_len, problem.kv_len),
          fmt::format("--q-len {} --kv-len {}", mask.q_len(), mask.kv_len())});
  }
  return padded(*this, problem, mask);
}

}  // namespace verbatim::app
