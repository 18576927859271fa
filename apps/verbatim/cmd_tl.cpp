// Attention kernels as text (docs/tl.md): one nested command for each thing done with a program.
#include "verbatim/tl.h"

#include <fmt/format.h>

#include <memory>

#include "backend/backend.h"
#include "core/file.h"
#include "options.h"
#include "tl_tune.h"

namespace verbatim::app {
namespace {

std::string target_names() {
  std::string names;
  for (const tl::Target& target : tl::targets()) names += (names.empty() ? "" : ", ") + target.name;
  return names;
}

/// A program, and what it is examined for.
struct ProgramOptions {
  std::string file, target, level = "invariant";

  Option add_to(Command command, const char* what, const std::string& otherwise);
  tl::Emitted emit() const {
    return tl::emit(read_text(file), file, {.target = target, .level = level_from_string(level)});
  }
};

void add_file(Command command, std::string& file, const char* what) {
  command.add_option("FILE", file, what).required().type_name("");
}

/// Returns --target; `otherwise` says what holds without it.
Option ProgramOptions::add_to(Command command, const char* what, const std::string& otherwise) {
  add_file(command, file, what);
  command
      .add_option("--level", level,
                  "What stays equal between runs: above not_guaranteed every sum has an order")
      .type_name("NAME")
      .capture_default_str();
  return command.add_option("--target", target, "GPU: " + target_names() + otherwise)
      .type_name("NAME");
}

constexpr const char* kOwnTarget = " (default: the program's)";

struct FormatCommand {
  std::string file;
  bool write = false;

  void add_to(Command sub) {
    add_file(sub, file, "A program");
    sub.add_flag("--write", write, "To the file itself, not to stdout");
    sub.footer("Example: verbatim tl fmt kernels/tl/forward.tl");
  }

  int run() const {
    const std::string text = read_text(file), formatted = tl::format(text, file);
    if (!write) {
      fmt::print("{}", formatted);
    } else if (formatted != text) {
      require_writable(file, "FILE");
      write_file(file, formatted);
    }
    return 0;
  }
};

struct CheckCommand {
  ProgramOptions program;
  bool sketch = false, fix = false;

  void add_to(Command sub) {
    program.add_to(sub, "A program", kOwnTarget);
    sub.add_flag("--sketch", sketch, "Sizes, Allocate, Reshape and Wait may be missing");
    sub.add_flag("--fix", fix,
                 "Apply the edits that faults suggest; the file is written when none is left");
    sub.footer(
        "Example: verbatim tl check --sketch kernels/tl/forward.tl\n"
        "Every fault comes with its place, its code (docs/tl.md), and what would be right. Exit\n"
        "code 2 when there is one.");
  }

  int run() const;
};

int CheckCommand::run() const {
  const auto& [file, target, level] = program;
  const tl::CheckOptions options{target, level_from_string(level), sketch};
  std::string text = read_text(file);
  std::vector<tl::Diagnostic> faults = tl::check(text, options);
  if (fix && !faults.empty()) {
    require_writable(file, "FILE");
    text = tl::fix(text, options);
    faults = tl::check(text, options);
    if (faults.empty()) write_file(file, tl::format(text, file));
  }
  if (!faults.empty()) {
    std::string all;
    for (const tl::Diagnostic& fault : faults) all += tl::describe(fault, text, file);
    throw Error(ErrorCode::invalid_argument, "tl.check",
                fmt::format("{} is refused: {} fault{}{}\n{}", file, faults.size(),
                            faults.size() == 1 ? "" : "s",
                            fix ? " left by all edits, none of which was written" : "", all));
  }
  fmt::print("{}: no fault at level {}\n", file, level);
  return 0;
}

struct ReasonCommand {
  ProgramOptions program;
  ProblemOptions problem;
  MaskOptions mask;
  std::string output, memo, device = "cuda";
  int64_t tile_q = 0, tile_kv = 0, stages = 0, warps = 0;
  bool tunes = false;

  void add_to(Command sub) {
    program.add_to(sub, "A sketch", "").required();
    sub.add_option("--output", output, "Where the whole program goes")
        .required()
        .type_name("FILE")
        .writes_file();
    sub.add_option("--tile-q", tile_q, "Queries per tile (default: by target and head dim)")
        .type_name("N");
    sub.add_option("--tile-kv", tile_kv, "Keys per tile (default: by target and head dim)")
        .type_name("N");
    sub.add_option("--stages", stages, "Buffers of what the loop copies (default: as they fit)")
        .type_name("N");
    sub.add_option("--warps", warps, "Warps of a CTA (default: as few as hold the registers)")
        .type_name("N");
    const Option tune = sub.add_flag(
        "--tune", tunes,
        "Measure what these leave open: build each choice with nvcc, take the fastest");
    sub.add_option("--device", device, "With --tune: cuda or cuda:N")
        .type_name("NAME")
        .capture_default_str()
        .needs(tune);
    sub.add_option("--memo", memo,
                   "Sizes that were measured: --tune adds its own, without it they are taken")
        .type_name("FILE");
    problem.add_to(sub);
    mask.add_to(sub);
    sub.footer(
        "Example: verbatim tl reason kernels/tl/forward.tl --target a100 --dtype bf16 --output "
        "f.tl\n"
        "Writes parameters, coordinates, Allocate, Reshape and Wait, each choice with its reason.\n"
        "Of the problem only the dtype (bf16, f16 or e4m3) and the head dims count, with --tune\n"
        "all of it and the mask.");
  }

  int run() const;
};

int ReasonCommand::run() const {
  const auto& [file, target, level] = program;
  tl::ReasonOptions options{make_problem(problem, mask),
                            {tile_q, tile_kv},
                            target,
                            level_from_string(level),
                            stages,
                            warps};
  for (const auto& [name, value] : {std::pair{"--tile-q", tile_q},
                                    {"--tile-kv", tile_kv},
                                    {"--stages", stages},
                                    {"--warps", warps}})
    require_not_negative(value, name);
  if (tunes && device_index(device) < 0)
    fail("programs are measured on a GPU", {"--device", device, "cuda or cuda:N", "cuda"});
  const std::string sketch = read_text(file);
  require_apart({{"--output", output}, {"--memo", memo}});
  if (!memo.empty() && tunes) require_writable(memo, "--memo");
  tl::ChoiceMemo known;
  std::error_code none;
  if (!memo.empty() && (!tunes || std::filesystem::exists(memo, none)))
    known = parse_file(memo, tl::choice_memo_from_json);
  const std::string key = tl::choice_key(sketch, options);
  const bool open = options.tile == TileShape{0, 0} && stages == 0 && warps == 0;
  if (tunes) {
    options = tune(sketch, file, options, mask.make(options.problem), device);
    known.device = options.measured;
    known.choices[key] = {options.tile, options.stages, options.warps};
  } else if (const auto found = known.choices.find(key); open && found != known.choices.end()) {
    const tl::ChoiceMemo::Sizes& sizes = found->second;
    options.tile = sizes.tile;
    options.stages = sizes.stages;
    options.warps = sizes.warps;
    options.measured = known.device;
  }
  write_file(output, tl::reason(sketch, file, options));
  if (!memo.empty())
    fmt::print("{}: {}\n", key,
               options.measured.empty() ? "not measured" : "measured on " + options.measured);
  if (tunes && !memo.empty()) write_file(memo, to_json(known) + "\n");
  return 0;
}

struct EmitCommand {
  ProgramOptions program;
  std::string output;

  void add_to(Command sub) {
    program.add_to(sub, "TL code", kOwnTarget);
    sub.add_option("--output", output, "Where the file goes, named by pass and target")
        .required()
        .type_name("FOLDER")
        .writes_folder();
    sub.footer(
        "Example: verbatim tl emit f.tl --output generated\n"
        "Writes one file, each block under its line of TL, byte for byte the same every time.");
  }

  int run() const {
    const tl::Emitted emitted = program.emit();
    make_folder(output);
    const std::filesystem::path path = std::filesystem::path(output) / (emitted.name + ".cu");
    require_writable(path.string(), "--output");
    write_file(path, emitted.source);
    fmt::print("{}: arithmetic {}\n", path.string(), emitted.arithmetic);
    return 0;
  }
};

struct BuildCommand {
  ProgramOptions program;
  std::string output;
  std::vector<std::string> archs;

  void add_to(Command sub) {
    program.add_to(sub, "TL code", kOwnTarget);
    sub.add_option("--arch", archs,
                   "What nvcc makes: sm_N (machine code), compute_N (PTX); default: both, the "
                   "target's")
        .type_name("NAME")
        .expected(1, 8);
    sub.add_option("--output", output, "Where source and library go")
        .required()
        .type_name("FOLDER")
        .writes_folder();
    sub.footer(
        "Example: verbatim tl build f.tl --output generated\n"
        "As emit, then nvcc. run, verify and bench take the library, or the program itself, with\n"
        "--device cuda --kernel.");
  }

  int run() const {
    const tl::Emitted emitted = program.emit();
    const std::filesystem::path library = tl::build(emitted, output, archs);
    fmt::print("{}: arithmetic {}\n", library.string(), emitted.arithmetic);
    return 0;
  }
};

template <class Part>
void add_command(Command tl, Action& action, const char* name, const char* what) {
  auto command = std::make_shared<Part>();
  const Command sub = tl.add_subcommand(name, what);
  command->add_to(sub);
  sub.callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace

void add_tl(Command root, Action& action) {
  const Command sub =
      root.add_subcommand("tl", "Attention kernels as text: check, complete, translate, format");
  sub.require_subcommand();
  sub.footer(
      "A sketch is a page of Copy and Compute statements; reason completes it for a GPU; run and\n"
      "verify take the whole program with --kernel. docs/tl.md has the language.");
  add_command<FormatCommand>(sub, action, "fmt", "Write a program in its one layout");
  add_command<CheckCommand>(sub, action, "check",
                            "Say what is wrong with a program, and what is right");
  add_command<ReasonCommand>(sub, action, "reason", "Complete a sketch for a problem and a GPU");
  add_command<EmitCommand>(sub, action, "emit", "Translate TL code to CUDA C++");
  add_command<BuildCommand>(sub, action, "build", "Compile TL code to a library that a GPU runs");
}

}  // namespace verbatim::app
