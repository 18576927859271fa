#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>

#include "core/file.h"
#include "options.h"
#include "processes.h"
#include "report/format.h"
#include "report/gantt.h"
#include "report/table.h"
#include "report/timeline.h"
#include "result.h"
#include "world.h"

namespace verbatim::app {
namespace {

struct PlanCommand {
  ProblemOptions problem;
  MaskOptions mask;
  PlanningOptions planning;
  WorldOptions world;
  OutputOptions output;
  std::string pass = "backward", gantt, perfetto, dump;

  int run() const;
  std::vector<Candidate> candidates(const Problem& sizes, const Mask& made,
                                    const PlanOptions& options) const;
  void draw(const Plan& plan, const Machine& machine, const std::string& title, Json& result) const;
};

std::vector<Candidate> PlanCommand::candidates(const Problem& sizes, const Mask& made,
                                               const PlanOptions& options) const {
  if (planning.order == "all") return search(sizes, made, options);
  const auto start = std::chrono::steady_clock::now();
  Candidate one{make_plan(sizes, made, options), {}, 0};
  one.plan_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  one.simulation = simulate(one.plan, options.machine);
  return {std::move(one)};
}

/// What the first plan does when, in the result and in the files that show it.
void PlanCommand::draw(const Plan& plan, const Machine& machine, const std::string& title,
                       Json& result) const {
  if (gantt.empty() && perfetto.empty() && output.report.empty()) return;
  const bool backward = plan.pass == Pass::backward;
  Timeline timeline;
  simulate(plan, machine, &timeline);
  const Timeline small = report::condense(timeline, backward);
  result["timelines"] = Json::array({Json::parse(report::to_json(small))});
  if (!gantt.empty())
    write_file(gantt, report::gantt_picture({&small, 1}, backward).document(title));
  if (!perfetto.empty()) write_file(perfetto, to_perfetto_json({&timeline, 1}));
}

report::Table table_of(const std::vector<Candidate>& found, const Json& described) {
  using Align = report::Table::Align;
  report::Table table({{"order"},
                       {"placement"},
                       {"makespan", Align::right},
                       {"bound", Align::right},
                       {"ratio", Align::right},
                       {"stall", Align::right},
                       {"idle", Align::right},
                       {"co-resident", Align::right},
                       {"plan", Align::right},
                       {"planned in", Align::right},
                       {"fingerprint"}});
  for (size_t i = 0; i < found.size(); ++i) {
    const Plan& plan = found[i].plan;
    const Simulation& s = found[i].simulation;
    const double time = s.makespan * plan.placement.workers;
    table.row({described[i]["order"], plan.placement.name, report::cycles(s.makespan),
               report::cycles(s.lower_bound),
               s.lower_bound > 0 ? fmt::format("{:.3f}", s.makespan / s.lower_bound) : "-",
               time > 0 ? report::percent(s.stall / time) : "-",
               time > 0 ? report::percent(s.idle / time) : "-", report::count(plan.residency),
               report::bytes(plan.bytes()), report::milliseconds(found[i].plan_seconds * 1e3),
               plan.fingerprint()});
  }
  return table;
}

int PlanCommand::run() const {
  require_one_of(pass, "--pass", {"forward", "backward"});
  const Problem sizes = make_problem(problem, mask);
  const Mask made = mask.make(sizes);
  const bool all = planning.order == "all";
  PlanningOptions one = planning;
  if (all) one.order = "auto";
  // Here --order speaks of the pass that is planned.
  if (one.order != "auto") one.forward_order = one.order;
  const PlanOptions options = one.make(pass == "backward" ? Pass::backward : Pass::forward);

  Progress progress;
  progress.say("planning and simulating ...");
  const std::vector<Candidate> found = candidates(sizes, made, options);
  if (found.empty()) fail("no order keeps this level", {"--level", planning.level_name(), "", ""});

  Json result = new_result("plan");
  result["problem"] = describe(sizes);
  result["mask"] = describe(made, sizes, options.tile);
  Json plans = Json::array();
  for (const Candidate& each : found) {
    plans.push_back(describe(each.plan, each.simulation, options.machine, each.plan_seconds));
  }
  result["level"] = planning.level_name();
  result["plan"] = all ? plans : plans[0];
  std::optional<World> dealt;
  const std::vector<Pass> passes{options.pass};
  if (world.given()) {
    progress.say("dealing to ranks ...");
    const Pass other = options.pass == Pass::forward ? Pass::backward : Pass::forward;
    PlanningOptions plain = planning;
    plain.order = plain.forward_order = "auto";
    const Plan beside = make_plan(sizes, made, plain.make(other));
    const Plan& own = found.front().plan;
    dealt.emplace(other == Pass::forward ? beside : own, other == Pass::forward ? own : beside,
                  made, world.make(), world.engine());
    result["dist"] = dealt->describe(passes);
  }
  if (world.has_processes() && !is_first_process()) return 0;
  progress.say("drawing ...");
  const Plan& fastest = found.front().plan;
  draw(fastest, options.machine,
       headline(sizes, made) + ": " + plans[0]["order"].get<std::string>(), result);
  if (!dump.empty()) write_file(dump, to_json(fastest) + "\n");
  save(output, result);
  progress.say("");
  fmt::print(
      "{}, {}, level {}, {} x {} workers\n\n{}\nbound: work / workers or the longest task; stall "
      "and idle: share of all workers' time.\n",
      headline(sizes, made), pass, planning.level_name(), options.machine.name,
      fastest.placement.workers, table_of(found, plans).str());
  if (dealt)
    fmt::print("\n{}; {}\n\n{}", dealt->summary(), dealt->timing(), dealt->table(passes).str());
  return 0;
}

}  // namespace

void add_plan(CLI::App& root, Action& action) {
  auto command = std::make_shared<PlanCommand>();
  CLI::App* sub =
      root.add_subcommand("plan", "Plan and predict: orders side by side, Gantt charts");
  sub->footer(
      "Example: verbatim plan --mask causal --seqlen 8192 --q-heads 16 --head-dim 128 --order all\n"
      "An order fixes the bits, a placement only the time. --order all puts every order that "
      "keeps\n"
      "the level side by side; files then show the fastest. 'co-resident' is the number of "
      "workers\n"
      "that must run at once so that no wait can last forever.");
  command->problem.add_to(*sub);
  command->mask.add_to(*sub);
  command->planning.add_to(*sub, "h200");
  command->world.add_to(*sub, false);
  sub->add_option("--pass", command->pass, "Pass to plan: forward or backward")
      ->group("Plan")
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--gantt", command->gantt, "Write the simulated plan as a chart")
      ->group("Output")
      ->type_name("SVG")
      ->check(why_not_writable);
  sub->add_option("--perfetto", command->perfetto, "Write it as a trace for ui.perfetto.dev")
      ->group("Output")
      ->type_name("JSON")
      ->check(why_not_writable);
  sub->add_option("--dump", command->dump, "Write the plan itself: runs, chains, tasks")
      ->group("Output")
      ->type_name("JSON")
      ->check(why_not_writable);
  command->output.add_to(*sub, true);
  sub->callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
