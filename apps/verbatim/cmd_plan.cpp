#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "core/file.h"
#include "options.h"
#include "plan/accept.h"
#include "prediction.h"
#include "processes.h"
#include "report/format.h"
#include "report/gantt.h"
#include "report/table.h"
#include "report/timeline.h"
#include "result.h"
#include "world.h"

namespace verbatim::app {
namespace {

/// Of one device's rate: ranks that have less may gain by another order.
constexpr double kFair = 0.8;

/// Larger plans are not simulated visit by visit: it would take minutes.
constexpr int64_t kMostVisits = int64_t{1} << 28;

/// What the machine makes of a plan, unless it is too large.
std::optional<Simulation> try_simulate(const Plan& plan, const Machine& machine) {
  int64_t visits = 0;
  for (size_t h = 0; h < plan.order_of_head.size(); ++h)
    visits += plan.order(static_cast<int32_t>(h)).visits();
  if (visits > kMostVisits) return {};
  return simulate(plan, machine);
}

/// A plan, and what the machine makes of it.
struct Found {
  Plan plan;
  std::optional<Simulation> simulation{};
  double plan_seconds = 0;
  bool is_auto = false;          // among all orders: the bits that auto has
  std::optional<Trial> ranks{};  // both passes, with the other one's order by rule
};

Json describe(const Found& found, const Machine& machine) {
  Json json = app::describe(found.plan, found.simulation.value_or(Simulation{}), machine,
                            found.plan_seconds);
  if (found.is_auto) json["auto"] = true;
  if (found.ranks) json["ranks"] = app::describe(*found.ranks);
  if (!found.simulation)
    for (const char* time : {"makespan", "lower_bound", "work", "stall", "idle"}) json.erase(time);
  return json;
}

/// Plans of files.
using Given = std::vector<std::shared_ptr<const Plan>>;

struct PlanCommand {
  ProblemOptions problem;
  MaskOptions mask;
  PlanningOptions planning;
  PlanFiles plans;
  WorldOptions world;
  OutputOptions output;
  std::string pass = "backward", measured, gantt, perfetto, dump;

  int run() const;
  void require_shown(const Given& given) const;
  std::vector<Found> find(const Problem& sizes, const Mask& made, const PlanOptions& options) const;
  std::vector<Found> find_for_ranks(const Problem& sizes, const Mask& made,
                                    const PlanOptions& options, const Plan& beside) const;
  bool draws() const { return !gantt.empty() || !perfetto.empty() || !output.report.empty(); }
};

/// Every order of the level, fastest first, and what `auto` takes, which may be none of them.
std::vector<Found> find_all(const Problem& sizes, const Mask& made, const PlanOptions& options) {
  std::vector<Found> found;
  for (Candidate& each : search(sizes, made, options))
    found.push_back({std::move(each.plan), each.simulation, each.plan_seconds});
  Plan chosen = make_plan(sizes, made, options);
  const auto has_its_bits = [&](const Found& each) {
    return each.plan.fingerprint() == chosen.fingerprint();
  };
  auto own = std::ranges::find_if(found, has_its_bits);
  if (own == found.end()) {
    const Simulation simulation = simulate(chosen, options.machine);
    own = std::ranges::find_if(
        found, [&](const Found& each) { return each.simulation->makespan > simulation.makespan; });
    own = found.insert(own, {std::move(chosen), simulation});
  }
  own->is_auto = true;
  return found;
}

/// The one of a pass, or null.
std::shared_ptr<const Plan> plan_of(const Given& given, Pass pass) {
  const auto own =
      std::ranges::find_if(given, [&](const auto& plan) { return plan->pass == pass; });
  return own == given.end() ? nullptr : *own;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Found find_given(const Plan& plan, const Problem& sizes, const Mask& made,
                 const PlanOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Found one{accept(plan, sizes, made), {}};
  one.plan_seconds = seconds_since(start);  // of the proof
  one.simulation = try_simulate(one.plan, options.machine);
  return one;
}

Found find_one(const Problem& sizes, const Mask& made, const PlanOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Found one{make_plan(sizes, made, options), {}};
  one.plan_seconds = seconds_since(start);
  one.simulation = try_simulate(one.plan, options.machine);
  return one;
}

std::vector<Found> PlanCommand::find(const Problem& sizes, const Mask& made,
                                     const PlanOptions& options) const {
  if (planning.order == "all") return find_all(sizes, made, options);
  std::vector<Found> found;
  found.push_back(find_one(sizes, made, options));
  return found;
}

/// What ranks may take beside `auto`: chunks end chains that would cross ranks. Not parts of tiles,
/// which one rank adds, and not orders that wait for most of a device's workers.
std::vector<std::string> orders_for_ranks(const Problem& sizes, const PlanOptions& options) {
  constexpr int64_t kLeastRows = 2048;
  if (options.pass == Pass::forward) return {"descending", "ascending"};
  std::vector<std::string> names{"descending", "right_to_left", "shift"};
  for (int64_t rows = kLeastRows; rows < sizes.q_len; rows *= 2)
    for (const char* name : {"descending", "right_to_left"})
      names.push_back(fmt::format("{}/rows:{}", name, rows));
  return names;
}

/// Fastest first, those that ranks cannot have last. `beside` is the plan of the other pass.
std::vector<Found> PlanCommand::find_for_ranks(const Problem& sizes, const Mask& made,
                                               const PlanOptions& options,
                                               const Plan& beside) const {
  const auto tried = [&](Found one) {
    const bool backward = options.pass == Pass::backward;
    one.ranks = try_world(world, backward ? beside : one.plan, backward ? one.plan : beside, made);
    return one;
  };
  std::vector<Found> found;
  found.push_back(tried(find_one(sizes, made, options)));
  found.front().is_auto = true;
  for (const std::string& name : orders_for_ranks(sizes, options)) {
    PlanOptions named = options;
    named.order = name;
    Found one = find_one(sizes, made, named);
    const bool known = std::ranges::any_of(found, [&](const Found& other) {
      return other.plan.fingerprint() == one.plan.fingerprint();
    });
    if (!known) found.push_back(tried(std::move(one)));
  }
  std::ranges::stable_sort(found, {}, [](const Found& each) {
    return std::pair(!each.ranks->refused.empty(), each.ranks->in_turn());
  });
  return found;
}

/// Puts into the result, and returns, as much of the timelines as can be drawn.
std::vector<Timeline> drawn(const std::vector<Timeline>& timelines, bool backward, Json& result) {
  std::vector<Timeline> small;
  result["timelines"] = Json::array();
  for (const Timeline& timeline : timelines) {
    small.push_back(report::condense(timeline, backward));
    result["timelines"].push_back(Json::parse(report::to_json(small.back())));
  }
  return small;
}

report::Table table_of(const std::vector<Found>& found, const Json& described) {
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
    const Simulation s = found[i].simulation.value_or(Simulation{});
    const double time = s.makespan * plan.placement.workers;
    const auto cycles = [&](double t) { return found[i].simulation ? report::cycles(t) : "-"; };
    const auto order = described[i]["order"].get<std::string>();
    table.row({found[i].is_auto && order != "auto" ? order + " (auto)" : order, plan.placement.name,
               cycles(s.makespan), cycles(s.lower_bound),
               s.lower_bound > 0 ? fmt::format("{:.3f}", s.makespan / s.lower_bound) : "-",
               time > 0 ? report::percent(s.stall / time) : "-",
               time > 0 ? report::percent(s.idle / time) : "-", report::count(plan.residency),
               report::bytes(plan.bytes()), report::milliseconds(found[i].plan_seconds * 1e3),
               plan.fingerprint()});
  }
  return table;
}

/// Of find_for_ranks().
report::Table table_of_ranks(const std::vector<Found>& found, const Json& described) {
  using Align = report::Table::Align;
  report::Table table({{"order"},
                       {"one device", Align::right},
                       {"strategy"},
                       {"forward", Align::right},
                       {"backward", Align::right},
                       {"both", Align::right},
                       {"overlapped", Align::right},
                       {""}});
  const auto own = std::ranges::find_if(found, &Found::is_auto);
  const auto makespan = [](const Found& each) {
    return each.simulation ? each.simulation->makespan : 0;
  };
  for (size_t i = 0; i < found.size(); ++i) {
    const Trial& t = *found[i].ranks;
    const auto name = described[i]["order"].get<std::string>();
    const auto ms = [&](double seconds) {
      return t.refused.empty() ? report::milliseconds(seconds * 1e3) : "-";
    };
    table.row(
        {found[i].is_auto ? name + " (auto)" : name,
         makespan(*own) > 0 ? fmt::format("{:.3f}", makespan(found[i]) / makespan(*own)) : "-",
         t.options.strategy, ms(t.forward.in_turn), ms(t.backward.in_turn), ms(t.in_turn()),
         ms(t.forward.overlapped + t.backward.overlapped), t.refused});
  }
  return table;
}

/// Both names, also where one pass alone is planned.
void require_orders(const PlanningOptions& planning) {
  const auto tiles = std::make_shared<const TileMap>(HeadMask{}, TileShape{1, 1});
  make_order(Pass::forward, planning.forward_order, tiles, 1);
  make_order(Pass::backward, planning.order, tiles, 1);
}

/// Of plans from files, the one of the pass that is shown, under no other name.
void PlanCommand::require_shown(const Given& given) const {
  if (given.empty()) return;
  const Pass shown = given.front()->pass;
  if (!plan_of(given, pass == "backward" ? Pass::backward : Pass::forward))
    fail("no plan is of the pass", {"--pass", pass, std::string(to_string(shown)),
                                    fmt::format("--pass {}", to_string(shown))});
  // --order is that of the pass; with --forward-order beside it, that of the backward.
  const bool both = planning.forward_order != "auto";
  const auto refuse = [](const char* option, const std::string& order) {
    if (order != "auto")
      fail("a plan from a file has an order of its own",
           {option, order, "--plan without it", fmt::format("{} auto", option)});
  };
  if (!both || plan_of(given, Pass::backward)) refuse("--order", planning.order);
  if (plan_of(given, Pass::forward)) refuse("--forward-order", planning.forward_order);
}

int PlanCommand::run() const {
  require_one_of(pass, "--pass", {"forward", "backward"});
  const Given given = plans.read();
  require_shown(given);
  const Problem sizes = make_problem(PlanFiles::complete(problem, given), mask);
  const Mask made = mask.make(sizes);
  const bool all = planning.order == "all";
  PlanningOptions one = planning;
  if (all) one.order = "auto";
  // Here --order speaks of the pass that is planned, unless both are named.
  const bool both = one.forward_order != "auto";
  if (!both && one.order != "auto") one.forward_order = one.order;
  const PlanOptions options = one.make(pass == "backward" ? Pass::backward : Pass::forward);
  if (both) require_orders(one);

  Progress progress;
  progress.say("planning and simulating ...");
  std::optional<Plan> beside;  // of the other pass
  if (world.given()) {
    const Pass other = options.pass == Pass::forward ? Pass::backward : Pass::forward;
    if (!both) one.order = one.forward_order = "auto";
    const auto own = plan_of(given, other);
    beside = own ? accept(*own, sizes, made) : make_plan(sizes, made, one.make(other));
  }
  const bool for_ranks = all && world.given();
  std::vector<Found> found;
  if (const auto own = plan_of(given, options.pass)) {
    found.push_back(find_given(*own, sizes, made, options));
  } else {
    found = for_ranks ? find_for_ranks(sizes, made, options, *beside) : find(sizes, made, options);
  }
  if (found.empty()) fail("no order keeps this level", {"--level", planning.level_name(), "", ""});

  Json result = new_result("plan");
  result["problem"] = app::describe(sizes);
  result["mask"] =
      app::describe(made, sizes, given.empty() ? options.tile : tile_of(found.front().plan));
  Json described = Json::array();
  for (const Found& each : found) described.push_back(describe(each, options.machine));
  const std::string level(to_string(found.front().plan.level));
  result["level"] = level;
  result["plan"] = all ? described : described[0];
  std::optional<World> dealt, overlapped;
  std::optional<Prediction> predicted;
  Choice choice;
  const std::vector<Pass> passes{options.pass};
  if (world.given()) {
    progress.say("dealing to ranks ...");
    const Plan& own = found.front().plan;
    const bool is_forward = options.pass == Pass::forward;
    const Plan &forward = is_forward ? own : *beside, &backward = is_forward ? *beside : own;
    choice = choose(world, forward, backward, made);
    dealt.emplace(forward, backward, made, choice.options, world.engine());
    overlapped.emplace(forward, backward, made, overlapped_of(choice.options), world.engine());
    const Cluster cluster = world.on();
    const DistPlan& of_ranks = dealt->plan(options.pass);
    predicted.emplace(of_ranks, overlapped->plan(options.pass), cluster,
                      measured.empty() ? predicted_launches(of_ranks, cluster.machine)
                                       : read_launches(measured, of_ranks));
    Json& dist = result["dist"] = dealt->describe(passes);
    choice.describe(dist);
    predicted->describe(dist["passes"][0]);
  }
  if (world.has_processes() && !is_first_process()) return 0;
  progress.say("drawing ...");
  const Plan& fastest = found.front().plan;
  const bool backward = options.pass == Pass::backward;
  std::vector<Timeline> timelines(1), small;
  if (draws()) {
    if (predicted) {
      timelines = predicted->timelines();
    } else {
      simulate(fastest, options.machine, timelines.data());
    }
    small = drawn(timelines, backward, result);
  }
  save(output, result);  // first: it refuses a page that cannot be made
  const std::string title = headline(sizes, made) + ": " + described[0]["order"].get<std::string>();
  if (!gantt.empty()) write_file(gantt, report::gantt_picture(small, backward).document(title));
  if (!perfetto.empty()) write_file(perfetto, to_perfetto_json(timelines));
  if (!dump.empty())
    write_file(dump, (dealt ? to_json(dealt->plan(options.pass)) : to_json(fastest)) + "\n");
  progress.say("");
  fmt::print(
      "{}, {}, level {}, {} x {} workers\n\n{}\nbound: work / workers or the longest task; stall "
      "and idle: share of all workers' time.\n",
      headline(sizes, made), pass, level, options.machine.name, fastest.placement.workers,
      table_of(found, described).str());
  if (for_ranks)
    fmt::print(
        "\nOrders for {} ranks, simulated on {} with predicted launches; one device: of what "
        "auto's takes there:\n\n{}",
        choice.options.world, world.on().name, table_of_ranks(found, described).str());
  if (!choice.trials.empty()) fmt::print("\n{}", choice.text());
  if (dealt) {
    fmt::print("\n{}; {}\n\n{}\n{}", dealt->summary(), dealt->timing(), dealt->table(passes).str(),
               predicted->text());
    const Json& simulated = result["dist"]["passes"][0]["simulated"];
    const bool by_rule = planning.order == "auto" && given.empty() && backward;
    if (by_rule && simulated.value("in_turn_rate", 1.0) < kFair)
      fmt::print("\n--order all plays orders in chunks of rows beside this one.\n");
  }
  return 0;
}

}  // namespace

void add_plan(Command root, Action& action) {
  auto command = std::make_shared<PlanCommand>();
  const Command sub =
      root.add_subcommand("plan", "Plan and predict: orders side by side, Gantt charts");
  sub.footer(
      "Example: verbatim plan --mask causal --seqlen 8192 --q-heads 16 --head-dim 128 --order all\n"
      "An order fixes the bits, a placement only the time. --order all puts every order that "
      "keeps\n"
      "the level side by side and marks what auto takes; files then show the fastest. With "
      "--world\n"
      "these are auto's, descending, right_to_left and shift, the former two also in chunks of "
      "2,048\n"
      "rows and more, by what both passes take on the ranks. "
      "'co-resident' is the number of "
      "workers\n"
      "that must run at once so that no wait can last forever.\n"
      "--order is that of the pass; with --forward-order beside it, that of the backward, whose "
      "chunks\n"
      "have their part in who holds which rows.");
  command->problem.add_to(sub);
  command->mask.add_to(sub);
  command->planning.add_to(sub, "h200");
  command->plans.add_to(sub);
  command->world.add_to(sub, false);
  sub.add_option("--pass", command->pass, "Pass to plan: forward or backward")
      .group("Plan")
      .type_name("NAME")
      .capture_default_str();
  sub.add_option("--measured", command->measured,
                 "A result of run --world, or bench --world --cluster, with the same problem and "
                 "dealing: its times of launches in place of predicted ones")
      .group("World")
      .type_name("JSON")
      .needs(sub.option("--world"));
  sub.add_option("--gantt", command->gantt,
                 "Write the simulated plan as a chart, with --world what each rank does")
      .group("Output")
      .type_name("SVG")
      .writes_file();
  sub.add_option("--perfetto", command->perfetto, "Write it as a trace for ui.perfetto.dev")
      .group("Output")
      .type_name("JSON")
      .writes_file();
  sub.add_option("--dump", command->dump,
                 "Write the plan itself: runs, chains, tasks; with --world also the steps of every "
                 "rank")
      .group("Output")
      .type_name("JSON")
      .writes_file();
  command->output.add_to(sub, true);
  sub.callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
