#include "bench_worlds.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "dist/strategy.h"
#include "prediction.h"
#include "report/format.h"
#include "verbatim/error.h"

namespace verbatim::app {

void check_worlds(const WorldOptions& asked, const Problem& problem) {
  if (!asked.given()) return;
  std::optional<Error> refusal;  // the first
  bool fits = false;
  for (const WorldOptions& one : asked.each()) {
    DistOptions options = one.make();
    try {
      if (one.strategy != WorldOptions::kAuto) dist::make_grid(problem, options);
      fits = true;
    } catch (const Error& error) {
      if (!refusal) refusal = error;
    }
  }
  if (refusal && (!fits || asked.has_processes())) throw *refusal;
}

std::vector<Dealt> run_worlds(const Backend& backend, const bench::Device& on,
                              const WholePlans& plans, const AskedWorlds& asked,
                              dist::Processes* processes) {
  const Problem& problem = plans.forward->problem;
  RunOptions run;
  run.threads = asked.threads ? asked.threads : asked.world.threads();
  const bench::Tensors ranks(on, problem);
  std::optional<bench::Tensors> alone;  // what one device makes of it
  if (!processes || processes->rank() == 0) {
    alone.emplace(on, problem);
    backend.forward(plans.forward, alone->forward, run);
    backend.backward(plans.backward, alone->backward, run);
    backend.synchronize(run);
  }
  const auto run_one = [&](const WorldOptions& one) -> Dealt {
    const Choice choice = choose(one, *plans.forward, *plans.backward, plans.mask);
    auto dealt = std::make_unique<World>(*plans.forward, *plans.backward, plans.mask,
                                         choice.options, one.engine());
    if (processes)
      processes->agree(dealt->specification(
          plans.mask, nullptr, {{"case", app::describe(problem)}, {"repeats", asked.repeats}}));
    int64_t differing = 0;
    for (int i = 0; i < asked.repeats; ++i) {
      for (const auto& output : ranks.outputs) on.poison(output.data, output.bytes);
      for (const Pass pass : {Pass::forward, Pass::backward})
        dealt->run(pass, ranks.forward, ranks.backward, one.device_of(asked.device), run,
                   processes);
      for (size_t o = 0; alone && o < ranks.outputs.size(); ++o)
        differing += on.count_differences(ranks.outputs[o].data, alone->outputs[o].data,
                                          ranks.outputs[o].bytes);
    }
    if (!alone) return {};
    Json found = dealt->describe({Pass::forward, Pass::backward});
    choice.describe(found);
    found["differing_words"] = differing;
    if (one.cluster.empty()) return {std::move(found), std::move(dealt), nullptr};
    auto overlapped = std::make_unique<World>(*plans.forward, *plans.backward, plans.mask,
                                              overlapped_of(choice.options), one.engine());
    return {std::move(found), std::move(dealt), std::move(overlapped)};
  };

  std::vector<Dealt> all;
  std::optional<Error> refusal;  // the first
  for (const WorldOptions& one : asked.world.each()) {
    try {
      all.push_back(run_one(one));
    } catch (const Error& error) {
      if (processes || error.code() != ErrorCode::invalid_argument) throw;
      if (!refusal) refusal = error;
      all.push_back({{{"engine", one.engine()},
                      {"world", one.make().world},
                      {"strategy", one.strategy},
                      {"refused", error.what()}},
                     nullptr,
                     nullptr});
    }
  }
  if (refusal && std::ranges::none_of(all, [](const Dealt& dealt) { return !!dealt.world; }))
    throw *refusal;
  return all;
}

Json describe(const Dealt& dealt, const WorldOptions& world, const Json& row) {
  Json found = dealt.found;
  if (!dealt.world) return found;
  for (Json& pass : found["passes"]) {
    const Pass which = pass["pass"] == "forward" ? Pass::forward : Pass::backward;
    const double ms = row[pass["pass"].get<std::string>()]["ms"];
    pass["of_one_device"] = pass["compute_ms"].get<double>() / ms;
    if (!dealt.overlapped) {
      for (Json& rank : pass["ranks"]) rank.erase("launch_ms");  // nobody plays them
      continue;
    }
    const LaunchTimes times = dealt.world->launches(which);
    Prediction(dealt.world->plan(which), dealt.overlapped->plan(which), world.on(),
               {times, true, ms * 1e-3})
        .describe(pass);
  }
  return found;
}

report::Table dist_table_of(const Json& result) {
  using Align = report::Table::Align;
  report::Table table({{"case"},
                       {"pass"},
                       {"ranks", Align::right},
                       {"strategy"},
                       {"shard"},
                       {"all compute ms", Align::right},
                       {"of one device", Align::right},
                       {"largest rank ms", Align::right},
                       {"wall ms", Align::right},
                       {"sent", Align::right},
                       {"memory", Align::right},
                       {"bits"}});
  const auto add = [&](const Json& row, const Json& dist) {
    if (dist.contains("refused"))
      table.row({row["name"], "-", dist["world"].dump(), dist["strategy"], "-", "-", "-", "-", "-",
                 "-", "-", "refused"});
    for (const Json& pass : dist.value("passes", Json::array())) {
      int64_t sent = 0, memory = 0;
      for (const Json& rank : pass["ranks"]) {
        sent += rank["sent_bytes"].get<int64_t>();
        memory = std::max(memory, rank["memory_bytes"].get<int64_t>());
      }
      table.row({row["name"], pass["pass"], dist["world"].dump(), dist["strategy"], dist["shard"],
                 fmt::format("{:.3f}", pass["compute_ms"].get<double>()),
                 fmt::format("{:.3f}", pass["of_one_device"].get<double>()),
                 fmt::format("{:.3f}", pass["largest_ms"].get<double>()),
                 fmt::format("{:.3f}", pass["ms"].get<double>()), report::bytes(sent),
                 report::bytes(memory), dist["differing_words"] == 0 ? "equal" : "DIFFER"});
    }
  };
  for (const Json& row : result["results"])
    for (const Json& dist : row.value("dist", Json::array())) add(row, dist);
  return table;
}

}  // namespace verbatim::app
