#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/reference/compare.h"
#include "core/threads.h"
#include "input.h"
#include "options.h"
#include "prediction.h"
#include "processes.h"
#include "report/format.h"
#include "report/timeline.h"
#include "result.h"
#include "selected.h"
#include "tensors.h"
#include "world.h"

namespace verbatim::app {
namespace {

constexpr double kAllowedRatio = 2;      // FlashAttention's rule
constexpr double kFullCheckFlops = 2e9;  // above this a check samples rows by default
using Clock = std::chrono::steady_clock;

struct RunCommand {
  ProblemOptions problem;
  MaskOptions mask;
  PlanningOptions planning;
  PlanFiles plans;
  WorldOptions world;
  KernelOptions kernels;
  OutputOptions output;
  std::string pass = "both", check, device = "cpu";
  std::vector<std::string> input;
  std::string output_file;
  std::optional<int64_t> selected;
  int repeats = 3, threads = 0;

  int run(dist::Processes* processes) const;
  int run_selected(const KernelOptions::Selected& program) const;
  void check_counts() const;
  std::string check_mode(const Problem& sizes, const Mask& mask) const;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Times and bits of the repeats.
struct Repeats {
  std::vector<double> forward_ms, backward_ms;
  Hashes hashes;  // of the first
  bool identical = true;
};

/// One pass over the tensors; returns seconds.
using RunPass = std::function<double(Pass, const Tensors&)>;

Repeats repeat(const RunPass& run, Tensors& tensors, Passes passes, int count, Progress& progress) {
  Repeats result;
  if (passes == Passes::backward) run(Pass::forward, tensors);
  for (int i = 0; i < count; ++i) {
    progress.say(fmt::format("run {} of {} ...", i + 1, count));
    tensors.poison_outputs(passes);
    if (passes != Passes::backward) result.forward_ms.push_back(run(Pass::forward, tensors) * 1e3);
    if (passes != Passes::forward) result.backward_ms.push_back(run(Pass::backward, tensors) * 1e3);
    Hashes hashes = hash_outputs(tensors, passes);
    if (i == 0) {
      result.hashes = std::move(hashes);
    } else if (hashes != result.hashes) {
      result.identical = false;
    }
  }
  return result;
}

Json describe(const Comparison& c) {
  return {{"ratio", c.ratio},
          {"error", c.error},
          {"baseline_error", c.baseline_error},
          {"floor", c.floor},
          {"worst", c.worst},
          {"got", c.got},
          {"expected", c.expected},
          {"nonfinite_mismatches", c.nonfinite_mismatches},
          {"elements", c.elements}};
}

/// Compares the outputs with the reference; false when one is too far off.
bool check_outputs(const std::string& mode, const Problem& sizes, const Mask& made,
                   const Tensors& tensors, Passes passes, Json& json) {
  json["mode"] = mode;
  json["error_ratio"] = Json::object();
  json["outputs"] = Json::object();
  if (mode == "none") return true;
  const Selection selection =
      mode == "full" ? Selection::all(sizes) : Selection::sample(sizes, made, sizes.seed);
  const Check found = passes == Passes::forward
                          ? check_forward(sizes, made, tensors.forward(), selection)
                          : check_backward(sizes, made, tensors.backward(), selection);
  const auto add = [&](const char* name, const Comparison& c) {
    json["error_ratio"][name] = c.ratio;
    json["outputs"][name] = describe(c);
  };
  add("o", found.o);
  add("lse", found.lse);
  if (found.dq) add("dq", *found.dq);
  if (found.dk) add("dk", *found.dk);
  if (found.dv) add("dv", *found.dv);
  json["correct"] = found.within(kAllowedRatio);
  return json["correct"];
}

void add_plan_rows(const Json& plan, report::Table& facts) {
  facts.row({"order", plan["order"],
             fmt::format("placement {}, {} workers, predicted {:.3f} of the lower bound",
                         plan["placement"].get<std::string>(), plan["workers"].get<int>(),
                         plan["lower_bound"] > 0.0
                             ? plan["makespan"].get<double>() / plan["lower_bound"].get<double>()
                             : 1.0)});
  facts.row({"level", plan["level"], "plan " + plan["fingerprint"].get<std::string>()});
}

void add_selection_rows(const Json& result, report::Table& facts) {
  const Json& selection = result["selection"];
  const auto queries = selection["tile"]["q"].get<int64_t>();
  facts.row(
      {"selection", report::count(selection["blocks"].get<int64_t>()),
       fmt::format("blocks of {} keys, {}, for {}", selection["tile"]["kv"].get<int64_t>(),
                   selection["source"] == "file" ? "from a file" : "at random",
                   queries == 1 ? "each query" : fmt::format("tiles of {} queries", queries))});
  facts.row({"level", result["level"], "arithmetic " + selection["arithmetic"].get<std::string>()});
}

void print(const Json& result, const Repeats& repeats, bool correct) {
  using Align = report::Table::Align;
  report::Table facts({{""}, {"", Align::right}, {""}});
  for (const auto& [name, ms] : result["time_ms"].items()) {
    facts.row({name, report::milliseconds(ms),
               fmt::format("{} GFLOP/s by exact area{}", report::number(result["gflops"][name]),
                           result["device"] == "cpu" ? "" : ", with copies to the GPU and back")});
  }
  facts.row({"workspace", report::bytes(result["workspace_bytes"]), "besides the tensors"});
  result.contains("plan") ? add_plan_rows(result["plan"], facts)
                          : add_selection_rows(result, facts);
  if (result["check"]["mode"] != "none") {
    double worst = 0;
    for (const auto& [name, ratio] : result["check"]["error_ratio"].items()) {
      worst = std::max(worst, ratio.get<double>());
    }
    facts.row(
        {"error ratio", fmt::format("{:.3f}", worst),
         fmt::format("{}, {} check against double precision, 2 allowed",
                     correct ? "correct" : "WRONG", result["check"]["mode"].get<std::string>())});
  }
  facts.row({"bits", repeats.identical ? "identical" : "DIFFER",
             fmt::format("{} runs, outputs filled with NaN before each",
                         result["bits"]["repeats"].get<int>())});
  fmt::print("{}\n", facts.str());

  report::Table outputs({{"output"}, {"error ratio", Align::right}, {"sha256"}});
  const Json& checked = result["check"]["outputs"];
  for (const char* name : {"o", "lse", "dq", "dk", "dv"}) {
    if (!repeats.hashes.contains(name)) continue;
    std::string ratio = "-";
    if (checked.contains(name))
      ratio = report::error_ratio(checked[name]["ratio"], checked[name]["nonfinite_mismatches"]);
    outputs.row({name, ratio, repeats.hashes.at(name)});
  }
  fmt::print("{}", outputs.str());
}

/// How long the passes took, and how fast that was by the exact area of `mask`.
void add_times(const Problem& problem, const Mask& mask, const Repeats& repeats, Json& result) {
  result["time_ms"] = Json::object();
  result["gflops"] = Json::object();
  const auto add = [&](const char* name, Pass pass, const std::vector<double>& times) {
    if (times.empty()) return;
    const double ms = median(times);
    result["time_ms"][name] = ms;
    result["gflops"][name] = ms > 0 ? flops(problem, mask, pass) / ms / 1e6 : 0.0;
  };
  add("forward", Pass::forward, repeats.forward_ms);
  add("backward", Pass::backward, repeats.backward_ms);
}

void RunCommand::check_counts() const {
  if (repeats < 1)
    fail("a run needs a repeat", {"--repeats", fmt::to_string(repeats), "1 or more", "1"});
  require_not_negative(threads, "--threads");
}

std::string RunCommand::check_mode(const Problem& sizes, const Mask& mask) const {
  const std::string mode = !check.empty()                                          ? check
                           : flops(sizes, mask, Pass::backward) <= kFullCheckFlops ? "full"
                                                                                   : "sampled";
  require_one_of(mode, "--check", {"full", "sampled", "none"});
  return mode;
}

int RunCommand::run(dist::Processes* processes) const {
  check_counts();
  if (const auto program = kernels.selected(device)) return run_selected(*program);
  if (selected)
    fail("blocks are selected for a program that has an index tensor",
         {"--selected", fmt::to_string(*selected), "a --kernel with `param sel = index`", ""});
  InputFiles files(input);
  const auto own_plans = plans.read();
  const Problem sizes = make_problem(PlanFiles::complete(files.complete(problem), own_plans), mask);
  const Passes passes = passes_from_string(pass, sizes);
  const Mask made = mask.make(sizes);
  const std::string mode = check_mode(sizes, made);
  check_output_file(output_file, sizes.dtype, passes, output, input);

  Progress progress;
  progress.say("planning ...");
  world.check(!kernels.files.empty(), false);
  const std::string own_device = world.device_of(device);
  AttentionOptions options = kernels.options_for(own_device, planning);
  options.plans = own_plans;
  require_memory(sizes);  // before plans, which take their time
  const auto start = Clock::now();
  const Attention attention(sizes, made, options);
  const double plan_seconds = seconds_since(start);
  if (passes != Passes::forward) attention.kernel(Pass::backward);  // or refused before all work

  Tensors tensors(sizes, sizes.seed);
  files.load(tensors);
  RunOptions run_options;
  run_options.threads = threads ? threads : world.threads();
  std::optional<World> dealt;
  Choice choice;
  if (world.given()) {
    choice = choose(world, attention);
    dealt.emplace(attention.plan(Pass::forward), attention.plan(Pass::backward), made,
                  choice.options, world.engine());
  }
  if (processes)
    processes->agree(dealt->specification(made, &tensors, {{"pass", pass}, {"repeats", repeats}}));
  const RunPass run_pass = [&](Pass which, const Tensors& all) {
    if (dealt)
      return dealt->run(which, all.forward(), all.backward(), own_device, run_options, processes);
    const auto begin = Clock::now();
    which == Pass::forward ? attention.forward(all.forward(), run_options)
                           : attention.backward(all.backward(), run_options);
    return seconds_since(begin);
  };
  const Repeats results = repeat(run_pass, tensors, passes, repeats, progress);
  if (processes && processes->rank() != 0) return 0;  // whose outputs are not whole

  Json result = new_result("run");
  result["device"] = device;
  result["threads"] = run_options.threads ? run_options.threads : core_count();
  const Pass main_pass = passes == Passes::forward ? Pass::forward : Pass::backward;
  result["level"] = to_string(attention.plan(main_pass).level);
  result["problem"] = app::describe(sizes);
  const Machine& machine = options.plan.machine;
  const auto plan_of = [&](Pass which) {
    const Plan& plan = attention.plan(which);
    return app::describe(plan, simulate(plan, machine), machine, plan_seconds);
  };
  progress.say("simulating ...");
  result["mask"] = app::describe(
      made, sizes, own_plans.empty() ? options.plan.tile : tile_of(attention.plan(main_pass)));
  result["plan"] = plan_of(main_pass);
  if (passes != Passes::forward) result["forward_plan"] = plan_of(Pass::forward);

  progress.say("comparing with the reference ...");
  const bool correct = check_outputs(mode, sizes, made, tensors, passes, result["check"]);
  result["bits"] = {
      {"repeats", repeats}, {"identical", results.identical}, {"sha256", results.hashes}};
  add_times(sizes, made, results, result);
  const std::vector<Pass> ran =
      passes == Passes::both ? std::vector{Pass::forward, Pass::backward} : std::vector{main_pass};
  int64_t workspace = 0;
  for (const Pass which : ran) workspace = std::max(workspace, attention.workspace_bytes(which));
  result["workspace_bytes"] = workspace;
  if (dealt) {
    result["dist"] = dealt->describe(ran);
    choice.describe(result["dist"]);
  }
  if (!output.report.empty()) {
    progress.say("recording a timeline ...");
    result["timelines"] = Json::array();
    for (const Timeline& timeline : record(attention, tensors, machine, main_pass, run_options)) {
      const Timeline small = report::condense(timeline, main_pass == Pass::backward);
      result["timelines"].push_back(Json::parse(report::to_json(small)));
    }
  }
  save(output, result);  // first: it refuses a page that cannot be made
  if (!output_file.empty()) save_outputs(output_file, tensors, passes);
  progress.say("");
  fmt::print("{}\n\n", headline(sizes, made));
  print(result, results, correct);
  if (!choice.trials.empty()) fmt::print("\n{}", choice.text());
  if (dealt) fmt::print("\n{}\n\n{}", dealt->summary(), dealt->table(ran).str());
  return results.identical && correct ? 0 : 1;
}

/// A forward by a program whose blocks an index tensor names: no plan is made.
int RunCommand::run_selected(const KernelOptions::Selected& program) const {
  constexpr int64_t kBlocks = 16;  // of native sparse attention
  if (pass != "forward")
    fail("a program whose blocks an index tensor names runs without a plan, forward",
         {"--pass", pass, "forward", "--pass forward"});
  if (!plans.files.empty())
    fail("a program whose blocks an index tensor names runs without a plan",
         {"--plan", plans.files.front(), "--kernel without it", ""});
  if (world.given())
    fail("a program whose blocks an index tensor names runs on one device",
         {"--world", world.world, "--kernel without it", ""});
  if (!output.report.empty())
    fail("a page shows a plan, and there is none", {"--report", output.report, "--json", ""});
  InputFiles files(input, program.index);
  const Problem sizes = make_problem(files.complete(problem), mask);
  const Mask made = mask.make(sizes);
  check_output_file(output_file, sizes.dtype, Passes::forward, output, input);
  const SelectedAttention attention(sizes, made,
                                    KernelOptions::runnable(program.file, device, planning),
                                    level_from_string(planning.level_name()), device);
  refuse_planning(planning, attention.tiles());
  std::optional<Lists> given = files.lists();
  if (given && selected)
    fail("the index tensor is given", {"--selected", fmt::to_string(*selected), "one of both", ""});
  const int64_t count = selected.value_or(kBlocks);
  require_not_negative(count, "--selected");
  const Lists lists = given ? *std::move(given) : draw_lists(sizes, attention.tiles(), count);
  attention.check(lists.blocks());
  const Mask seen = selected_mask(made, attention.tiles(), lists);
  const std::string mode = check_mode(sizes, seen);

  Tensors tensors(sizes, sizes.seed);
  files.load(tensors);
  RunOptions run_options;
  run_options.threads = threads;
  Progress progress;
  const Repeats results = repeat(
      [&](Pass, const Tensors& all) {
        const auto begin = Clock::now();
        attention.forward(all.forward(), lists.blocks(), run_options);
        return seconds_since(begin);
      },
      tensors, Passes::forward, repeats, progress);
  Json result = new_result("run");
  result["device"] = device;
  result["threads"] = threads ? threads : core_count();
  result["level"] = planning.level_name();
  result["problem"] = app::describe(sizes);
  result["mask"] = app::describe(made, sizes, attention.tiles().shape);
  result["selection"] = app::describe(attention, lists, sizes, seen);
  progress.say("comparing with the reference ...");
  const bool correct = check_outputs(mode, sizes, seen, tensors, Passes::forward, result["check"]);
  result["bits"] = {
      {"repeats", repeats}, {"identical", results.identical}, {"sha256", results.hashes}};
  add_times(sizes, seen, results, result);
  result["workspace_bytes"] = attention.workspace_bytes(lists.blocks(), run_options);
  if (!output_file.empty()) save_outputs(output_file, tensors, Passes::forward);
  save(output, result);
  progress.say("");
  fmt::print("{}\n\n", headline(sizes, made));
  print(result, results, correct);
  return results.identical && correct ? 0 : 1;
}

}  // namespace

void add_run(Command root, Action& action) {
  auto command = std::make_shared<RunCommand>();
  const Command sub =
      root.add_subcommand("run", "Run a problem: time, check, compare bits, report");
  sub.footer(
      "Example: verbatim run --mask causal_document --doc-lengths 900,124,1024 --q-heads 8 \\\n"
      "  --kv-heads 2 --dtype bf16 --report report.html\n"
      "Times are medians of the repeats, on a GPU with copies of the tensors to it and back;\n"
      "bench times kernels. The error ratio is the largest error over that of the plain formula\n"
      "in the same dtype, both against double precision, or over what rounding alone may do to\n"
      "that row, where this is more; more than 2 is wrong.\n"
      "Exit code 1: bits differ between repeats, or a result is wrong.");
  command->problem.add_to(sub);
  command->mask.add_to(sub);
  command->planning.add_to(sub);
  command->plans.add_to(sub);
  command->world.add_to(sub, true);
  const char* group = "Run";
  sub.add_option("--pass", command->pass, "forward, backward or both")
      .group(group)
      .type_name("NAME")
      .capture_default_str();
  sub.add_option("--repeats", command->repeats, "Runs whose bits are compared")
      .group(group)
      .type_name("N")
      .capture_default_str();
  sub.add_option("--threads", command->threads, "CPU threads; 0: all cores. Changes no bit")
      .group(group)
      .type_name("N")
      .capture_default_str();
  sub.add_option("--check", command->check,
                 "Against the reference: full, sampled or none (default: full when it is quick)")
      .group(group)
      .type_name("NAME");
  sub.add_option("--device", command->device, "cpu, cuda or cuda:N")
      .group(group)
      .type_name("NAME")
      .capture_default_str();
  command->kernels.add_to(sub, group);
  sub.add_option("--selected", command->selected,
                 "Blocks that a tile of queries visits, by a program with an index tensor: the "
                 "last that it sees, and others at random (default: 16)")
      .group(group)
      .type_name("N");
  sub.add_option(
         "--input", command->input,
         "Tensors q, k, v, do (batch, length, heads, dim): a .safetensors file, or .npy "
         "files as q=FILE k=FILE ...; what is missing is random. Of e4m3 also q_scale, k_scale, "
         "v_scale (heads), in f32; what is missing is 1. An index tensor by its name in the "
         "program (batch, KV heads, tiles of queries, blocks), in int32 or int64")
      .group(group)
      .type_name("FILE")
      .expected(1, 8);
  sub.add_option("--output", command->output_file,
                 "Write o, lse (batch, heads, length), dq, dk, dv to FILE.safetensors, or for "
                 "FILE.npy to FILE.o.npy, ...")
      .group("Output")
      .type_name("FILE")
      .writes_file();
  command->output.add_to(sub, true);
  sub.callback([command, &action] { action = action_in_world(command); });
}

}  // namespace verbatim::app
