#include "prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <tuple>

#include "core/file.h"
#include "report/format.h"

namespace verbatim::app {
namespace {

using Align = report::Table::Align;

/// The mean of what ranks have over the most that one has: 1 when all have alike.
template <class F>
double balance(size_t ranks, F&& of) {
  double sum = 0, most = 0;
  for (size_t r = 0; r < ranks; ++r) {
    sum += of(r);
    most = std::max(most, of(r));
  }
  return most > 0 ? sum / static_cast<double>(ranks) / most : 1;
}

Json json_of(const Trial::Makespans& makespans) {
  return {{"in_turn_ms", makespans.in_turn * 1e3}, {"overlapped_ms", makespans.overlapped * 1e3}};
}

/// Times of the launches of `plan` where those of `other` are `times`: what a rank's take in all,
/// each its share as predicted.
LaunchTimes launches_of(const DistPlan& plan, const DistPlan& other, const LaunchTimes& times,
                        const Machine& machine) {
  const auto sum = [](const std::vector<double>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0);
  };
  LaunchTimes found = launch_times(plan, machine);
  const LaunchTimes predicted = launch_times(other, machine);
  for (size_t r = 0; r < std::min(found.size(), times.size()); ++r)
    for (double& time : found[r])
      if (const double all = sum(predicted[r]); all > 0) time *= sum(times[r]) / all;
  return found;
}

constexpr std::string_view kOfSameDealing =
    "a result of run or bench --world with the same problem and dealing";

/// Of a result, all that were dealt to ranks and ran.
std::vector<Json> deals_of(const Json& result) {
  if (result.value("command", "") == "run" && result.contains("dist")) return {result["dist"]};
  std::vector<Json> deals;
  if (result.value("command", "") == "bench")
    for (const Json& row : result.at("results"))
      for (const Json& dist : row.value("dist", Json::array()))
        if (dist.contains("passes")) deals.push_back(dist);
  return deals;
}

/// How much of a deal is as in `plan`, what is not, and where nothing is, its pass.
struct Found {
  int same = 0;
  const char* other = "command";
  const Json* pass = nullptr;
};

Found compare(const Json& dist, const DistPlan& plan) {
  const DistOptions& options = plan.options;
  const std::tuple<const char*, const char*, Json> members[] = {
      {"world", "world", options.world},
      {"strategy", "strategy", options.strategy},
      {"shard", "sharding", plan.shard},
      {"ulysses_size", "Ulysses group", options.ulysses_size},
      {"ring_window", "ring window", options.ring_window}};
  int same = 1;
  for (const auto& [member, what, expected] : members) {
    if (dist.at(member) != expected) return {same, what};
    ++same;
  }
  for (const Json& pass : dist.at("passes")) {
    if (pass.at("pass") != to_string(plan.whole.pass)) continue;
    if (pass.at("fingerprint") != plan.whole.fingerprint()) return {same, "fingerprint"};
    if (pass.at("ranks").size() != plan.ranks.size()) return {same, "list of ranks"};
    return {same + 1, nullptr, &pass};
  }
  return {same, "pass"};
}

}  // namespace

Choice choose(const WorldOptions& asked, const Plan& forward, const Plan& backward,
              const Mask& mask) {
  require_one_of(asked.strategy, "--strategy", WorldOptions::strategy_names());
  Choice choice{asked.make(), {}, {}};
  const Cluster cluster = asked.on();
  if (choice.options.strategy != WorldOptions::kAuto) return choice;
  choice.trials = try_strategies(forward, backward, mask, choice.options, cluster);
  choice.options = fastest(choice.trials).options;
  choice.cluster = cluster.name;
  return choice;
}

Choice choose(const WorldOptions& asked, const Attention& attention) {
  return choose(asked, attention.plan(Pass::forward), attention.plan(Pass::backward),
                attention.mask());
}

Trial try_world(const WorldOptions& asked, const Plan& forward, const Plan& backward,
                const Mask& mask) {
  const Choice choice = choose(asked, forward, backward, mask);
  if (!choice.trials.empty()) return fastest(choice.trials);
  return try_strategy(forward, backward, mask, choice.options, asked.on());
}

Json describe(const Trial& trial) {
  Json json = {{"strategy", trial.options.strategy}, {"shard", trial.options.shard}};
  if (trial.refused.empty()) {
    json["forward"] = json_of(trial.forward);
    json["backward"] = json_of(trial.backward);
  } else {
    json["refused"] = trial.refused;
  }
  return json;
}

void Choice::describe(Json& dist) const {
  for (const Trial& trial : trials) dist["tried"].push_back(app::describe(trial));
}

std::string Choice::text() const {
  if (trials.empty()) return "";
  report::Table table({{"strategy"},
                       {"shard"},
                       {"forward", Align::right},
                       {"backward", Align::right},
                       {"both", Align::right},
                       {""}});
  for (const Trial& trial : trials) {
    if (!trial.refused.empty()) {
      table.row({trial.options.strategy, trial.options.shard, "-", "-", "-", trial.refused});
      continue;
    }
    table.row({trial.options.strategy, trial.options.shard,
               report::milliseconds(trial.forward.in_turn * 1e3),
               report::milliseconds(trial.backward.in_turn * 1e3),
               report::milliseconds(trial.in_turn() * 1e3),
               trial.options == options ? "taken" : ""});
  }
  return fmt::format(
      "Strategies, simulated on {} with predicted launches, transfers in turn:\n\n{}", cluster,
      table.str());
}

Launches predicted_launches(const DistPlan& plan, const Machine& machine) {
  return {launch_times(plan, machine), false, device_seconds(plan.whole, machine)};
}

Launches read_launches(const std::string& path, const DistPlan& plan) try {
  constexpr double kLongest = 1e9;  // seconds
  const std::vector<Json> deals = deals_of(Json::parse(read_text(path)));
  Found found;
  for (const Json& dist : deals)
    if (const Found one = compare(dist, plan); one.same > found.same) found = one;
  if (!found.pass)
    fail(fmt::format("its {} is another", found.other),
         {"--measured", path, std::string(kOfSameDealing), ""});
  LaunchTimes launches;
  for (const Json& rank : found.pass->at("ranks")) {
    auto& times = launches.emplace_back();
    for (const Json& ms : rank.at("launch_ms")) {
      times.push_back(ms.get<double>() * 1e-3);
      if (!(times.back() >= 0 && times.back() <= kLongest))
        fail("a launch takes no such time",
             {"--measured", fmt::format("{} ms", ms.dump()), "launch_ms of 0 to 1e12", ""});
    }
  }
  double device_ms = 0;
  if (found.pass->contains("simulated"))
    device_ms = (*found.pass)["simulated"].value("device_ms", 0.0);
  return {std::move(launches), true, device_ms * 1e-3};
} catch (const Json::exception& error) {
  fail(error.what(), {"--measured", path, std::string(kOfSameDealing), ""});
}

Prediction::Prediction(const DistPlan& plan, const DistPlan& overlapped, const Cluster& cluster,
                       Launches launches)
    : plan_(plan),
      overlapped_plan_(overlapped),
      cluster_(cluster),
      launches_(std::move(launches)),
      overlapped_launches_(launches_of(overlapped_plan_, plan_, launches_.times, cluster.machine)),
      in_turn_(simulate(plan_, cluster_, launches_.times, Transfers::in_turn)),
      overlapped_(
          simulate(overlapped_plan_, cluster_, overlapped_launches_, Transfers::overlapped)) {}

double Prediction::rate(const DistSimulation& simulation) const {
  const double all = simulation.makespan * static_cast<double>(simulation.ranks.size());
  return all > 0 ? launches_.device_seconds / all : 1;
}

double Prediction::compute_balance() const {
  return balance(in_turn_.ranks.size(), [&](size_t r) { return in_turn_.ranks[r].compute; });
}

double Prediction::bytes_balance() const {
  return balance(in_turn_.ranks.size(), [&](size_t r) {
    return static_cast<double>(sent_bytes(plan_, static_cast<int32_t>(r)));
  });
}

void Prediction::describe(Json& pass) const {
  pass["simulated"] = {{"cluster", cluster_.name},
                       {"launches", launches_.measured ? "measured" : "predicted"},
                       {"in_turn_ms", in_turn_.makespan * 1e3},
                       {"overlapped_ms", overlapped_.makespan * 1e3},
                       {"compute_balance", compute_balance()},
                       {"bytes_balance", bytes_balance()}};
  if (launches_.device_seconds > 0) {
    pass["simulated"]["device_ms"] = launches_.device_seconds * 1e3;
    pass["simulated"]["in_turn_rate"] = rate(in_turn_);
    pass["simulated"]["overlapped_rate"] = rate(overlapped_);
  }
  for (size_t r = 0; r < in_turn_.ranks.size(); ++r) {
    const RankTime &in_turn = in_turn_.ranks[r], &overlapped = overlapped_.ranks[r];
    pass["ranks"][r]["simulated"] = {
        {"compute_ms", in_turn.compute * 1e3},
        {"sends_ms", in_turn.sends * 1e3},
        {"in_turn_exposed_ms", in_turn.exposed * 1e3},
        {"overlapped_exposed_ms", overlapped.exposed * 1e3},
        {"overlapped_memory_bytes", memory_bytes(overlapped_plan_, static_cast<int32_t>(r))}};
  }
}

std::vector<Timeline> Prediction::timelines() const {
  std::vector<Timeline> both(2);
  simulate(plan_, cluster_, launches_.times, Transfers::in_turn, &both[0]);
  simulate(overlapped_plan_, cluster_, overlapped_launches_, Transfers::overlapped, &both[1]);
  return both;
}

std::string Prediction::text() const {
  report::Table table({{"rank", Align::right},
                       {"computes", Align::right},
                       {"link out", Align::right},
                       {"exposed", Align::right},
                       {"exposed if overlapped", Align::right}});
  for (size_t r = 0; r < in_turn_.ranks.size(); ++r) {
    const RankTime& time = in_turn_.ranks[r];
    table.row({fmt::to_string(r), report::milliseconds(time.compute * 1e3),
               report::milliseconds(time.sends * 1e3), report::milliseconds(time.exposed * 1e3),
               report::milliseconds(overlapped_.ranks[r].exposed * 1e3)});
  }
  const auto ended = [&](const DistSimulation& simulation) {
    const std::string rate =
        launches_.device_seconds == 0
            ? ""
            : fmt::format(" ({} of one device's rate)", report::percent(this->rate(simulation)));
    return report::milliseconds(simulation.makespan * 1e3) + rate;
  };
  return fmt::format(
      "Simulated on {}, {} times of launches:\n\n{}\nall ranks done: transfers in turn {}, "
      "overlapped {}; mean over most: compute {:.3f}, bytes {:.3f}\n",
      cluster_.name, launches_.measured ? "measured" : "predicted", table.str(), ended(in_turn_),
      ended(overlapped_), compute_balance(), bytes_balance());
}

}  // namespace verbatim::app
