// The options that commands share: how they are spelled, what they mean, what they turn into.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "verbatim/verbatim.h"

namespace verbatim::app {

/// What a command does once the whole line is parsed; returns the exit code.
using Action = std::function<int()>;

/// Sizes, types and scalars of a problem; what is not given follows from the rest.
struct ProblemOptions {
  std::optional<int64_t> batch, q_heads, kv_heads, head_dim, head_dim_v, seqlen, q_len, kv_len;
  std::optional<std::string> dtype;
  std::optional<double> scale, softcap, dropout;
  uint64_t seed = 0;

  void add_to(Command command);
};

/// A mask by name; an empty string is a parameter that was not given.
struct MaskOptions {
  std::string name = "causal";
  std::string window, doc_lengths, prefix, block, global, density, block_q, block_k, block_list,
      cu_seqlens_q, cu_seqlens_k, key_lengths, q_lengths, padding;

  void add_to(Command command);
  /// Queries and keys that the lengths of documents or sequences add up to, or that the mask's file
  /// is for.
  std::optional<std::pair<int64_t, int64_t>> implied_lengths() const;
  /// Throws Error naming the parameter that is missing, superfluous or does not fit `problem`.
  Mask make(const Problem& problem) const;
};

/// Sizes not given follow from the mask (its documents or file), else 1024 tokens; one head.
Problem make_problem(const ProblemOptions& options, const MaskOptions& mask);

/// The built-in machine that stands for a device.
std::string machine_of(const std::string& device);

/// How to order and place.
struct PlanningOptions {
  std::string order = "auto", forward_order = "auto", placement = "auto";
  std::string level;       // empty: invariant, or what the order "none" keeps
  std::string machine;     // empty: the device's
  std::string memo;        // a file that tune wrote, or empty
  std::string arithmetic;  // empty: the device's
  int32_t workers = 0;
  int64_t tile_q = 0, tile_kv = 0;

  /// `default_machine` as the field `machine`.
  void add_to(Command command, const std::string& default_machine = "");
  PlanOptions make(Pass pass, const std::string& device = "cpu") const;
  /// Of both passes, to run on `device`.
  AttentionOptions make_both(const std::string& device) const;
  /// The level that was asked for, or follows from the order.
  std::string level_name() const;
};

/// --kernel: programs of TL that run in place of the device's own kernels, at most one a pass.
struct KernelOptions {
  std::vector<std::string> files;

  void add_to(Command command, const char* group);
  /// A program whose blocks an index tensor names, or its library, and what it calls that tensor:
  /// it runs alone, and without a plan.
  struct Selected {
    std::string file, index;
  };
  std::optional<Selected> selected(const std::string& device) const;
  /// What runs of a file on `device`: its text, or on a GPU a library, which is built of a program.
  static std::string runnable(const std::string& file, const std::string& device,
                              const PlanningOptions& planning);
  /// As AttentionOptions::kernels. Beside them plans are of no other arithmetic than theirs.
  std::vector<std::string> read(const std::string& device, const PlanningOptions& planning) const;
  /// make_both() with them.
  AttentionOptions options_for(const std::string& device, const PlanningOptions& planning) const;
};

/// --plan: plans from files, at most one a pass, in place of those by rule.
struct PlanFiles {
  std::vector<std::string> files;

  void add_to(Command command);
  /// As AttentionOptions::plans. Throws Error naming the file.
  std::vector<std::shared_ptr<const Plan>> read() const;
  /// Sizes and scalars that were not given are those of `plans`.
  static ProblemOptions complete(ProblemOptions given,
                                 const std::vector<std::shared_ptr<const Plan>>& plans);
};

/// Where results go besides the terminal.
struct OutputOptions {
  std::string json, report;

  void add_to(Command command, bool with_report);
};

/// "5,9,2", or "@file.json" that holds an array of integers. `argument` is the option's spelling.
std::vector<int64_t> parse_list(const std::string& text, const std::string& argument);
/// The memo that tune wrote.
std::shared_ptr<const PlacementMemo> read_memo(const std::string& path);

/// "" when the file can be written, else why not. So nothing runs, and no other file is written,
/// for a result that has no place.
std::string why_not_writable(const std::string& path);
/// The same of a folder for files.
std::string why_no_folder(const std::string& path);
/// Throws Error for a path that is found only later, unless it can be written.
void require_writable(const std::string& path, const std::string& argument);
/// An option and its value.
using Given = std::pair<std::string, std::string>;
/// Throws Error when two outputs, whose values are paths, are one file, or when one would replace a
/// file that one of `inputs` names: FILE, @FILE or NAME=FILE. "" is none; a device or a pipe takes
/// several.
void require_apart(const std::vector<Given>& outputs, const std::vector<Given>& inputs = {});

/// Throws Error when a count or a size is negative.
void require_not_negative(int64_t value, const std::string& argument);

/// Throws Error naming the nearest of `known` unless `value` is one of them.
void require_one_of(const std::string& value, const std::string& argument,
                    const std::vector<std::string>& known);

/// Names that commas separate; each must be one of `known`.
std::vector<std::string> parse_names(const std::string& text, const std::string& argument,
                                     const std::vector<std::string>& known);

/// Throws Error(invalid_argument) in the tool's own name.
[[noreturn]] void fail(std::string message, Error::Details details);

void add_info(Command root, Action& action);
void add_mask(Command root, Action& action);
void add_plan(Command root, Action& action);
void add_run(Command root, Action& action);
void add_verify(Command root, Action& action);
void add_bench(Command root, Action& action);
void add_calibrate(Command root, Action& action);
void add_tune(Command root, Action& action);
void add_trace(Command root, Action& action);
void add_tl(Command root, Action& action);
void add_report(Command root, Action& action);

}  // namespace verbatim::app
