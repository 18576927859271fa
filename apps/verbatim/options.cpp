#include "options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <ranges>
#include <utility>

#include "backend/backend.h"
#include "core/file.h"
#include "core/json.h"
#include "core/names.h"

namespace verbatim::app {
namespace {

constexpr int64_t kDefaultLength = 1024;

}  // namespace

void fail(std::string message, Error::Details details) {
  const std::string argument = details.argument;
  if (!argument.empty()) message = argument + ": " + message;
  throw Error(ErrorCode::invalid_argument, "verbatim", std::move(message), std::move(details));
}

void require_one_of(const std::string& value, const std::string& argument,
                    const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  fail("there is no such name",
       {argument, value, fmt::format("{}", fmt::join(known, ", ")), nearest_name(value, known)});
}

void require_not_negative(int64_t value, const std::string& argument) {
  if (value < 0) fail("a number is negative", {argument, fmt::to_string(value), "0 or more", "0"});
}

std::string why_not_writable(const std::string& path) {
  try {
    check_writable(path);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::string why_no_folder(const std::string& path) {
  try {
    check_folder(path);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

void require_writable(const std::string& path, const std::string& argument) {
  if (const std::string why = why_not_writable(path); !why.empty())
    fail(why, {argument, "", "", ""});
}

void require_apart(const std::vector<Given>& outputs, const std::vector<Given>& inputs) {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> options;
  for (const auto& [option, path] : outputs) {
    std::error_code none;
    const fs::file_status there = fs::status(path, none);
    if (path.empty() || (fs::exists(there) && !fs::is_regular_file(there))) continue;
    const fs::path file = fs::weakly_canonical(fs::absolute(behind_links(path), none), none);
    const auto [first, is_new] = options.emplace(file, option);
    if (is_new) continue;
    fail("two outputs have one file",
         {fmt::format("{}, {}", first->second, option), path, "a file for each", path + ".2"});
  }
  for (const auto& [option, text] : inputs) {
    const size_t mark = text.starts_with('@') ? 0 : text.find('=');
    for (const std::string& path : {text, text.substr(mark + 1)}) {  // npos + 1 is 0
      std::error_code none;
      if (!fs::is_regular_file(path, none)) continue;
      const auto output = options.find(fs::weakly_canonical(fs::absolute(path, none), none));
      if (output == options.end()) continue;
      fail("the output would replace what is read",
           {fmt::format("{}, {}", output->second, option), path, "another file", path + ".2"});
    }
  }
}

std::shared_ptr<const PlacementMemo> read_memo(const std::string& path) {
  return std::make_shared<const PlacementMemo>(parse_file(path, memo_from_json));
}

std::vector<int64_t> parse_list(const std::string& text, const std::string& argument) {
  std::vector<int64_t> list;
  if (text.starts_with('@')) {
    const nlohmann::json value = parse_json(read_text(text.substr(1)), argument);
    for (const auto& entry : json_list(value, argument, "verbatim"))
      list.push_back(json_int(entry, argument, "verbatim"));
    return list;
  }
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || (next != end && *next != ',')) {
      fail("not a list of integers",
           {argument, "'" + text + "'", "A,B,... or @file.json", "5,9,2"});
    }
    list.push_back(value);
    if (next == end) return list;
    at = next + 1;
  }
}

std::vector<std::string> parse_names(const std::string& text, const std::string& argument,
                                     const std::vector<std::string>& known) {
  std::vector<std::string> names;
  for (const auto name : std::views::split(text, ',')) {
    names.emplace_back(name.begin(), name.end());
    require_one_of(names.back().empty() ? "''" : names.back(), argument, known);
  }
  return names;
}

void ProblemOptions::add_to(Command command) {
  const char* group = "Problem";
  const auto add = [&](const char* option, auto& value, const char* help, const char* type) {
    return command.add_option(option, value, help).group(group).type_name(type);
  };
  add("--batch", batch, "Batch entries (default: 1)", "N");
  add("--q-heads", q_heads, "Query heads (default: the KV heads, else 1)", "N");
  add("--kv-heads", kv_heads, "KV heads; must divide the query heads (default: the query heads)",
      "N");
  add("--head-dim", head_dim, "Elements per head of Q and K, 1 to 256 (default: 64)", "N");
  add("--head-dim-v", head_dim_v, "Elements per head of V and O (default: --head-dim)", "N");
  const Option seqlen_option =
      add("--seqlen", seqlen,
          "Queries and keys (default: as the mask's documents or file, else 1024)", "N");
  add("--q-len", q_len, "Queries, when they differ from keys", "N").excludes(seqlen_option);
  add("--kv-len", kv_len, "Keys, when they differ from queries", "N").excludes(seqlen_option);
  add("--dtype", dtype,
      "Type of tensors: f32, bf16 or f16, with sums in f32; e4m3 of Q, K and V, in a forward by "
      "--kernel (default: f32)",
      "NAME");
  add("--scale", scale, "Softmax scale (default: 1 / sqrt(head dim))", "X");
  add("--softcap", softcap, "S = softcap * tanh(scale * QK / softcap); 0: none", "X");
  add("--dropout", dropout, "Probability that an element of P is dropped", "X");
  add("--seed", seed, "Of inputs, dropout and block-sparse selection", "N").capture_default_str();
}

Problem make_problem(const ProblemOptions& options, const MaskOptions& mask) {
  Problem problem;
  problem.batch = options.batch.value_or(1);
  problem.kv_heads = options.kv_heads.value_or(options.q_heads.value_or(1));
  problem.q_heads = options.q_heads.value_or(problem.kv_heads);
  problem.head_dim = options.head_dim.value_or(64);
  problem.head_dim_v = options.head_dim_v.value_or(problem.head_dim);
  std::pair lengths(kDefaultLength, kDefaultLength);
  if (options.seqlen) {
    lengths = {*options.seqlen, *options.seqlen};
  } else if (const auto implied = mask.implied_lengths()) {
    lengths = *implied;
  }
  problem.q_len = options.q_len.value_or(options.kv_len.value_or(lengths.first));
  problem.kv_len = options.kv_len.value_or(options.q_len.value_or(lengths.second));
  const std::string dtype = options.dtype.value_or("f32");
  require_one_of(dtype, "--dtype", {"f32", "bf16", "f16", "e4m3"});
  problem.dtype = dtype_from_string(dtype);
  problem.scale = options.scale;
  problem.softcap = options.softcap.value_or(0);
  problem.dropout = options.dropout.value_or(0);
  problem.seed = options.seed;
  problem.validate();
  return problem;
}

void PlanningOptions::add_to(Command command, const std::string& default_machine) {
  const char* group = "Plan";
  machine = default_machine;
  std::string backward, forward, places = "auto";
  for (const OrderInfo& info : orders()) {
    std::string& names = info.pass == Pass::backward ? backward : forward;
    names += ", " + std::string(info.name);
  }
  for (const PlacementInfo& info : placements()) places += ", " + std::string(info.name);
  const auto add = [&](const char* option, auto& value, const std::string& help, const char* type) {
    return command.add_option(option, value, help).group(group).type_name(type);
  };
  add("--order", order,
      "Order of the backward's sums: auto" + backward +
          "; NAME/split: a task per query head, NAME/split:N: N per group, NAME/even:N: N where "
          "most rows see a KV tile, elsewhere fewer; NAME/rows:N: tasks of their own for each "
          "N rows",
      "NAME")
      .capture_default_str();
  add("--forward-order", forward_order,
      "Order of the forward's sums: auto" + forward + "; NAME/split: long rows in pieces", "NAME")
      .capture_default_str();
  add("--placement", placement, "Who does what when: " + places, "NAME").capture_default_str();
  add("--level", level,
      "What stays equal between runs: not_guaranteed, run_to_run, gpu_to_gpu (on every GPU of its "
      "kind) or invariant (in every batch and packing; the default unless --order none)",
      "NAME");
  add("--arithmetic", arithmetic,
      "Kernels that a plan is for: cpu, sm80 (the portable ones of a GPU) or sm90 (Hopper's, where "
      "they can); part of the fingerprint (default: the device's; of the command plan, which has "
      "none, cpu)",
      "NAME");
  add("--workers", workers, "Workers to plan for (default: the machine's)", "N");
  add("--tile-q", tile_q, "Queries per tile (default: by head dim)", "N");
  add("--tile-kv", tile_kv, "Keys per tile (default: by head dim)", "N");
  const Option machine_option =
      add("--machine", machine,
          std::string("Model for placement and prediction: h200, h200:WORKERS, h200:WORKERS,GHZ, "
                      "cpu, paper:C,R, @file.json") +
              (machine.empty() ? " (default: by device)" : ""),
          "NAME");
  if (!machine.empty()) machine_option.capture_default_str();
  add("--memo", memo, "Placements that tune measured, for --placement auto; changes no bit",
      "FILE");
}

std::string machine_of(const std::string& device) { return make_backend(device)->machine(); }

PlanOptions PlanningOptions::make(Pass pass, const std::string& device) const {
  PlanOptions options;
  options.pass = pass;
  options.order = pass == Pass::backward ? order : forward_order;
  if (options.order == "all") {
    fail("only plan puts all orders side by side", {"--order", "all", "a name or auto", "auto"});
  }
  options.placement = placement;
  require_one_of(level_name(), "--level",
                 {"not_guaranteed", "run_to_run", "gpu_to_gpu", "invariant"});
  options.level = level_from_string(level_name());
  if (!arithmetic.empty()) require_one_of(arithmetic, "--arithmetic", {"cpu", "sm80", "sm90"});
  options.arithmetic = arithmetic;
  if (arithmetic.empty() && device_index(device) >= 0)
    options.arithmetic = make_backend(device)->arithmetic();
  options.workers = workers;
  options.machine = make_machine(machine.empty() ? machine_of(device) : machine);
  require_not_negative(workers, "--workers");
  require_not_negative(tile_q, "--tile-q");
  require_not_negative(tile_kv, "--tile-kv");
  options.tile = {tile_q, tile_kv};
  if (!memo.empty()) options.memo = read_memo(memo);
  return options;
}

AttentionOptions PlanningOptions::make_both(const std::string& device) const {
  return {make(Pass::backward, device), forward_order, device};
}

std::string PlanningOptions::level_name() const {
  return !level.empty() ? level : order == "none" ? "not_guaranteed" : "invariant";
}

void OutputOptions::add_to(Command command, bool with_report) {
  command.add_option("--json", json, "Write the result as JSON (docs/schema.md)")
      .group("Output")
      .type_name("FILE")
      .writes_file();
  if (with_report) {
    command.add_option("--report", report, "Write the result as one HTML page")
        .group("Output")
        .type_name("FILE")
        .writes_file();
  }
}

}  // namespace verbatim::app
