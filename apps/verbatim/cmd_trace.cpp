#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>

#include "core/file.h"
#include "options.h"
#include "report/format.h"
#include "report/gantt.h"
#include "report/table.h"
#include "report/timeline.h"
#include "result.h"
#include "tensors.h"

namespace verbatim::app {
namespace {

struct TraceCommand {
  ProblemOptions problem;
  MaskOptions mask;
  PlanningOptions planning;
  PlanFiles plans;
  OutputOptions output;
  std::string pass = "backward", device = "cpu", gantt, perfetto;
  int threads = 0;

  int run() const;
};

/// Kinds of events on one device, which come first.
constexpr size_t kKinds = static_cast<size_t>(TimelineEvent::Kind::transfer);

/// When it ended, and the shares of all workers' time until then by kind.
Json summary(const Timeline& timeline) {
  double end = 0;
  std::array<double, kKinds> time{};
  for (const TimelineEvent& event : timeline.events) {
    end = std::max(end, event.end);
    time[static_cast<size_t>(event.kind)] += event.end - event.begin;
  }
  Json json = {{"source", timeline.source},
               {"unit", timeline.unit},
               {"workers", timeline.workers},
               {"end", end},
               {"shares", Json::object()}};
  for (size_t kind = 0; kind < kKinds; ++kind) {
    json["shares"][report::kEventKinds[kind]] =
        end > 0 ? time[kind] / (end * timeline.workers) : 0.0;
  }
  return json;
}

int TraceCommand::run() const {
  require_one_of(pass, "--pass", {"forward", "backward"});
  require_not_negative(threads, "--threads");
  const bool backward = pass == "backward";
  const auto own_plans = plans.read();
  const Problem sizes = make_problem(PlanFiles::complete(problem, own_plans), mask);
  const Mask made = mask.make(sizes);
  if (made.area(sizes.batch, sizes.q_heads, sizes.kv_heads) == 0)
    fail("there is nothing to trace",
         {"--seqlen",
          fmt::format("{} queries and {} keys of which none sees one", sizes.q_len, sizes.kv_len),
          "one visible position", "--seqlen 1024"});
  require_memory(sizes);  // before plans, which take their time
  AttentionOptions options = planning.make_both(device);
  options.plans = own_plans;
  Progress progress;
  progress.say("running ...");
  const auto start = std::chrono::steady_clock::now();
  const Attention attention(sizes, made, options);
  const std::chrono::duration<double> plan_seconds = std::chrono::steady_clock::now() - start;
  const Tensors tensors(sizes, sizes.seed);
  RunOptions run_options;
  run_options.threads = threads;
  attention.forward(tensors.forward(), run_options);
  if (backward) attention.backward(tensors.backward(), run_options);  // warm, and not recorded
  const std::vector<Timeline> timelines =
      record(attention, tensors, options.plan.machine, backward ? Pass::backward : Pass::forward,
             run_options);
  if (timelines.size() < 2) {
    fail("the kernel of this problem keeps no timeline",
         {"--device", device, "cpu, or a Hopper GPU's backward in bf16", "cpu"});
  }

  Json result = new_result("trace");
  result["device"] = device;
  result["problem"] = describe(sizes);
  const Plan& plan = attention.plan(backward ? Pass::backward : Pass::forward);
  result["mask"] = describe(made, sizes, own_plans.empty() ? options.plan.tile : tile_of(plan));
  const Machine& machine = options.plan.machine;
  result["plan"] = describe(plan, simulate(plan, machine), machine, plan_seconds.count());
  result["summary"] = Json::array();
  result["timelines"] = Json::array();
  std::vector<Timeline> small;
  for (const Timeline& timeline : timelines) {
    result["summary"].push_back(summary(timeline));
    small.push_back(report::condense(timeline, backward));
    result["timelines"].push_back(Json::parse(report::to_json(small.back())));
  }
  const std::string title = headline(sizes, made) + ": " + pass;
  save(output, result);  // first: it refuses a page that cannot be made
  if (!gantt.empty()) write_file(gantt, report::gantt_picture(small, backward).document(title));
  if (!perfetto.empty()) write_file(perfetto, to_perfetto_json(timelines));
  progress.say("");

  using Align = report::Table::Align;
  report::Table table({{"timeline"},
                       {"workers", Align::right},
                       {"end", Align::right},
                       {"compute", Align::right},
                       {"wait", Align::right},
                       {"reduce", Align::right},
                       {"start", Align::right},
                       {"finish", Align::right}});
  for (const Json& one : result["summary"]) {
    std::vector<std::string> cells{
        one["source"], one["workers"].dump(),
        report::cycles(one["end"]) + " " + one["unit"].get<std::string>()};
    for (const auto& [kind, share] : one["shares"].items()) {
      cells.push_back(report::percent(share));
    }
    table.row(std::move(cells));
  }
  fmt::print("{}\n\n{}\nShares of all workers' time; a reduction may run behind the compute.\n",
             title, table.str());
  return 0;
}

}  // namespace

void add_trace(Command root, Action& action) {
  auto command = std::make_shared<TraceCommand>();
  const Command sub =
      root.add_subcommand("trace", "What each worker did when, beside the prediction");
  sub.footer(
      "Example: verbatim trace --mask causal --seqlen 512 --dtype bf16\n"
      "Runs a pass once with the recorder on and draws it below what the simulator says of the\n"
      "same plan. On a GPU the backward of the Hopper kernels records itself, in bf16.");
  command->problem.add_to(sub);
  command->mask.add_to(sub);
  command->planning.add_to(sub);
  command->plans.add_to(sub);
  const auto add = [&](const char* group, const char* option, auto& value, const char* help,
                       const char* type) {
    return sub.add_option(option, value, help).group(group).type_name(type);
  };
  add("Trace", "--pass", command->pass, "forward or backward", "NAME").capture_default_str();
  add("Trace", "--device", command->device, "cpu, cuda or cuda:N", "NAME").capture_default_str();
  add("Trace", "--threads", command->threads, "CPU threads; 0: all cores", "N")
      .capture_default_str();
  add("Output", "--gantt", command->gantt, "Write both timelines as a chart", "SVG").writes_file();
  add("Output", "--perfetto", command->perfetto, "Write both as a trace for ui.perfetto.dev",
      "JSON")
      .writes_file();
  command->output.add_to(sub, true);
  sub.callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
