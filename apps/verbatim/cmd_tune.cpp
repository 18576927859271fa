#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include "bench/attention.h"
#include "cases.h"
#include "core/file.h"
#include "options.h"
#include "report/table.h"
#include "result.h"
#include "tensors.h"

namespace verbatim::app {
namespace {

constexpr double kWorthwhile = 0.99;  // of the time of auto: less than that is noise

/// A row of the result, and "1 of 3": the lists of tasks that its placements are.
struct Tuned {
  Json row;
  std::string lists;
};

struct TuneCommand {
  ProblemOptions problem;
  MaskOptions mask;
  PlanningOptions planning;
  OutputOptions output;
  std::string set, match = ".*", device = "cpu", memo, commit, given;

  int run() const;
  Tuned tune(const Backend& backend, const bench::Device& on, const Case& one, Pass pass,
             PlacementMemo& memo) const;
};

/// Placements that any device can run: free workers take tasks from a list.
std::vector<std::string> candidates(const Problem& problem) {
  std::vector<std::string> names{"queue", "longest_first", "spaced"};
  for (int64_t heads = 1; heads <= std::min<int64_t>(problem.batch * problem.kv_heads, 64);
       heads *= 2) {
    names.push_back(fmt::format("head_swizzled:{}", heads));
    if (heads > 1) names.push_back(fmt::format("staggered:{}", heads));
  }
  return names;
}

/// Whether two plans are one to the device: of a small problem most placements are one list.
bool are_placed_alike(const Plan& a, const Plan& b) {
  return a.placement.worker_begin == b.placement.worker_begin &&
         a.placement.tasks.list() == b.placement.tasks.list();
}

/// Placements to time, each with the names of those that are the same list.
struct Tried {
  std::shared_ptr<const Plan> plan;
  std::vector<std::string> names;
};
void add_to(std::vector<Tried>& all, const std::shared_ptr<const Plan>& plan,
            const std::string& name) {
  const auto same = std::ranges::find_if(
      all, [&](const Tried& tried) { return are_placed_alike(*tried.plan, *plan); });
  if (same == all.end())
    all.push_back({plan, {name}});
  else
    same->names.push_back(name);
}

/// Of each placement, in turn.
std::vector<bench::Timing> time_each(
    const bench::Device& on, const std::vector<Tried>& all,
    const std::function<void(const std::shared_ptr<const Plan>&)>& run) {
  std::vector<std::function<void()>> calls;
  for (const Tried& tried : all) calls.push_back([&run, &plan = tried.plan] { run(plan); });
  for (const auto& call : calls) call();  // what only the first of a plan does
  return bench::measure_in_turn(on, bench::Protocol::rested, calls);
}

Tuned TuneCommand::tune(const Backend& backend, const bench::Device& on, const Case& one, Pass pass,
                        PlacementMemo& known) const {
  const auto [sizes, made] = parse_case(one.words);
  backend.check(sizes);
  if (device == "cpu") require_memory(sizes);
  PlanOptions options = planning.make(pass, device);
  if (options.workers == 0) options.workers = on.facts().workers;
  const bench::Tensors tensors(on, sizes);
  const auto plan_of = [&](const PlanOptions& asked) {
    return std::make_shared<const Plan>(make_plan(sizes, made, asked));
  };
  const auto run = [&](const std::shared_ptr<const Plan>& plan) {
    if (plan->pass == Pass::forward) {
      backend.forward(plan, tensors.forward, {});
    } else {
      backend.backward(plan, tensors.backward, {});
    }
  };
  run(plan_of(planning.make(Pass::forward, device)));  // a backward reads what it writes
  const auto chosen = plan_of(options);
  std::vector<Tried> all{{chosen, {chosen->placement.name}}};
  for (const std::string& name : candidates(sizes)) {
    if (name == chosen->placement.name) continue;
    options.placement = name;
    const auto plan = plan_of(options);
    if (plan->residency > 1) continue;  // might not fit beside another program's kernel
    add_to(all, plan, name);
  }

  const std::vector<bench::Timing> timings = time_each(on, all, run);
  std::string best = chosen->placement.name;
  double best_ms = timings.front().ms * kWorthwhile;
  Json ms;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const std::string& name : all[i].names) ms[name] = timings[i].ms;
    if (timings[i].ms >= best_ms) continue;
    best = all[i].names.front();
    best_ms = timings[i].ms;
  }
  known.placements[memo_key(*chosen, options.workers)] = best;
  return {{{"name", one.name},
           {"pass", to_string(pass)},
           {"order", chosen->orders.front()->name},
           {"fingerprint", chosen->fingerprint()},
           {"auto", chosen->placement.name},
           {"best", best},
           {"ms", ms}},
          fmt::format("{} of {}", all.size(), ms.size())};
}

int TuneCommand::run() const {
  if (memo.empty()) fail("answers need a file", {"--memo", "nothing", "FILE", "memo.json"});
  const std::vector<Case> cases = chosen_cases(set, match, {"given", mask.name, given});
  const auto backend = make_backend(device);
  const auto on = bench::make_device(device);
  PlacementMemo known;
  std::error_code none;
  if (std::filesystem::exists(memo, none)) known = *read_memo(memo);
  known.device = on->facts().name;

  Progress progress;
  Json result = new_result("tune");
  result["device"] = describe(on->facts());
  result["commit"] = commit;
  result["results"] = Json::array();
  using Align = report::Table::Align;
  report::Table table({{"case"},
                       {"pass"},
                       {"order"},
                       {"auto"},
                       {"ms", Align::right},
                       {"best"},
                       {"ms", Align::right},
                       {"lists timed"}});
  for (const Case& one : cases) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      progress.say(fmt::format("{} ...", one.name));
      auto [row, lists] = tune(*backend, *on, one, pass, known);
      const std::string usual = row["auto"], best = row["best"];
      table.row({one.name, row["pass"], row["order"], usual,
                 fmt::format("{:.3f}", row["ms"][usual].get<double>()), best,
                 fmt::format("{:.3f}", row["ms"][best].get<double>()), lists});
      result["results"].push_back(std::move(row));
      write_file(memo, to_json(known) + "\n");
      save(output, result);
    }
  }
  progress.say("");
  fmt::print("{}", table.str());
  return 0;
}

}  // namespace

void add_tune(Command root, Action& action) {
  auto command = std::make_shared<TuneCommand>();
  const Command sub = root.add_subcommand("tune", "Measure placements, keep the fastest in a memo");
  sub.footer(
      "Example: verbatim tune --mask causal --seqlen 256 --memo memo.json\n"
      "Placements change no bit, orders do: tune keeps the order (and the tiles) that is asked "
      "for\n"
      "and measures where its tasks go. Other commands read the memo with --memo: what it says is\n"
      "a function of the problem and the number of workers alone. auto keeps its place unless\n"
      "another placement is 1 % faster. A memo that exists is added to.");
  command->problem.add_to(sub);
  command->mask.add_to(sub);
  command->planning.add_to(sub);
  sub.option("--memo").writes_file();
  add_case_options(sub, command->set, command->match);
  sub.add_option("--device", command->device, "cpu, cuda or cuda:N")
      .group("Tune")
      .type_name("NAME")
      .capture_default_str();
  sub.add_option("--commit", command->commit, "Recorded in the result: what was built")
      .group("Output")
      .type_name("TEXT");
  command->output.add_to(sub, false);
  sub.callback([command, sub, &action] {
    command->given = sub.words_of({"Problem", "Mask"});
    command->memo = std::exchange(command->planning.memo, "");  // written, not followed
    action = [command] { return command->run(); };
  });
}

}  // namespace verbatim::app
