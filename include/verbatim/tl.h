// TL: attention kernels as a page of text (docs/tl.md). After LLM-TL of QiMeng-Attention (Zhou et
// al. 2025): a sketch of Copy and Compute statements is completed with sizes, coordinates,
// Allocate and Reshape for a GPU, and checked before it runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim::tl {

/// Bytes [begin, end) of a program, and what to put in their place.
struct Edit {
  int64_t begin = 0, end = 0;
  std::string text;
  bool operator==(const Edit&) const = default;
};

/// One fault of a program. Codes, with what each means, are in docs/tl.md.
struct Diagnostic {
  std::string code;            // "transpose"
  int64_t begin = 0, end = 0;  // the bytes at fault
  std::string reason;          // why it is refused
  std::string right;           // what would be right
  std::optional<Edit> edit{};  // makes it right
  bool operator==(const Diagnostic&) const = default;
};

/// Line and column of a byte, both from 1; columns count characters.
struct Place {
  int64_t line = 1, column = 1;
  bool operator==(const Place&) const = default;
};
Place place_of(std::string_view text, int64_t at);

/// "FILE:LINE:COLUMN: CODE: reason", the line, a caret under the fault, and what would be right.
std::string describe(const Diagnostic& diagnostic, std::string_view text, std::string_view file);

/// A GPU as the checker and the reasoning see it (docs/tl-targets.md).
struct Target {
  std::string name;     // "a100"
  std::string summary;  // "A100, sm_80: mma.sync m16n8k16, cp.async"
  int64_t multiprocessors;
  int64_t shared_bytes;          // most of one CTA
  int64_t registers;             // 32-bit, of a multiprocessor
  int64_t registers_per_thread;  // most
  struct {
    int64_t m, n, k, warps;
  } mma;              // rows, columns and depth of one matrix instruction of 16-bit elements, and
                      // whose it is; of 8-bit ones it is twice as deep
  bool async_copies;  // global to shared in the background: cp.async or TMA
  std::map<Dtype, double> tflops;  // peak, by the dtypes that its matrix instructions take
  double memory_gb_per_s;          // peak

  bool takes(Dtype dtype) const { return tflops.contains(dtype); }
  /// The dtypes of programs that it takes, "f16, bf16".
  std::string dtypes() const;
  int64_t depth_of(Dtype dtype) const { return mma.k * 2 / size_of(dtype); }
};
std::span<const Target> targets();
/// Throws Error naming the nearest when there is none.
const Target& find_target(std::string_view name);

struct CheckOptions {
  std::string target;              // empty: the program's own
  Level level = Level::invariant;  // above not_guaranteed every sum needs an order
  bool sketch = false;             // sizes, Allocate, Reshape and Wait may be missing
};
/// The faults of a program in the order of its text, 100 at most; of one that does not parse, the
/// first.
/// Throws Error when there is no such target.
std::vector<Diagnostic> check(std::string_view text, const CheckOptions& options);

/// `text` with the edits of all `faults` that have one; of edits that overlap, the first.
std::string apply_edits(std::string_view text, std::span<const Diagnostic> faults);
/// `text` edited until check() finds nothing more that it can edit.
std::string fix(std::string_view text, const CheckOptions& options);

/// The program in its one layout, comments included. Throws Error(invalid_argument) with the
/// described fault when it does not parse.
std::string format(std::string_view text, std::string_view file);

/// What a sketch is completed for. Sizes of 0 are chosen.
struct ReasonOptions {
  Problem problem;
  TileShape tile{0, 0};
  std::string target;
  Level level = Level::invariant;
  int64_t stages = 0, warps = 0;
  std::string measured{};  // where the sizes were measured, for the comments: "NVIDIA H200"
};
/// The whole TL code of a sketch: parameters, coordinates, Allocate, Reshape and Wait, each choice
/// with its reason in a comment. The same text for the same arguments. Throws Error with the
/// described faults of a sketch that is refused, and naming what the target cannot do.
std::string reason(std::string_view sketch, std::string_view file, const ReasonOptions& options);

/// `options` with what it leaves at 0 as reason() sets it, then in every other way that the target
/// can do and emit() translates: tiles of 64 or 128 queries and 32 to 128 keys, one buffer, two or
/// four, four warps or eight.
std::vector<ReasonOptions> choices(std::string_view sketch, std::string_view file,
                                   const ReasonOptions& options);

/// Sizes that were measured, by what they were measured for (choice_key).
struct ChoiceMemo {
  struct Sizes {
    TileShape tile;
    int64_t stages, warps;
  };
  std::string device;
  std::map<std::string, Sizes> choices;
};
/// Pass, a hash of the sketch, target, dtype and head dims.
std::string choice_key(std::string_view sketch, const ReasonOptions& options);
std::string to_json(const ChoiceMemo& memo);
/// Throws Error naming what is wrong.
ChoiceMemo choice_memo_from_json(const std::string& text);

/// A program in CUDA C++ (docs/tl.md): one file, to be compiled with the headers of this library.
struct Emitted {
  std::string name;        // of its file: the pass and the target, "forward_a100"
  std::string source;      // the same text for the same program, target and version
  std::string arithmetic;  // of the plans that it runs: "tl.1:" and a hash of all that
  std::string arch;        // of the target, as nvcc names it: "80", "90a"
};
/// Translates TL code. Throws Error with the described faults of a program that is refused, and
/// Error(unsupported) naming what is not translated.
Emitted emit(std::string_view text, std::string_view file, const CheckOptions& options);

/// Writes what emit() has made to `folder` and compiles it there with the nvcc of the PATH; the
/// library (AttentionOptions::kernels). `archs` are nvcc's, sm_80 for machine code, compute_80 for
/// PTX; none: both of the target. Throws Error(unsupported), before anything is written, without
/// nvcc or the headers, and with nvcc's words when it refuses.
std::filesystem::path build(const Emitted& emitted, const std::filesystem::path& folder,
                            std::vector<std::string> archs = {});

}  // namespace verbatim::tl
