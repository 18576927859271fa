#include "world.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ranges>
#include <thread>
#include <utility>

#include "backend/reference/compare.h"
#include "core/sha256.h"
#include "core/threads.h"
#include "dist/mpi.h"
#include "dist/sizes.h"
#include "report/format.h"

namespace verbatim::app {
namespace {

/// What `f` takes.
template <class F>
double seconds_of(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void WorldOptions::add_to(Command command, bool runs) {
  const char* group = "World";
  std::string strategy_names, shard_names;
  for (const StrategyInfo& info : strategies())
    strategy_names += (strategy_names.empty() ? "" : ", ") + std::string(info.name);
  for (const ShardInfo& info : shards())
    shard_names += (shard_names.empty() ? "" : ", ") + std::string(info.name);
  const auto add = [&](const char* option, auto& value, const std::string& help, const char* type) {
    return command.add_option(option, value, help).group(group).type_name(type);
  };
  Option dealt = add(
      "--world", world,
      "Deal the problem to ranks. replay:N: this process plays N, one step after another. local:N: "
      "N processes on this machine, which mpirun starts. mpi: those that mpirun started. bench: "
      "several, replay:2,4,8. Changes no bit",
      "NAME");
  add("--strategy", strategy,
      "How K and V get to the ranks that need them: " + strategy_names +
          ", or auto: the fastest of these on --cluster, simulated. bench: A,B,.. or all",
      "NAME")
      .capture_default_str()
      .needs(dealt);
  add("--shard", shard, "Which rank holds which positions: " + shard_names + " (default: balanced)",
      "NAME")
      .needs(dealt);
  add("--ulysses-size", ulysses_size,
      "Strategies usp and loongtrain: ranks that share the heads (default: at most 8)", "N")
      .needs(dealt);
  add("--ring-window", ring_window,
      "Strategy loongtrain: ranks of an inner ring (default: at most the root of the ring)", "N")
      .needs(dealt);
  add("--cluster", cluster,
      "Machines and links for simulated times: h200x8, h200x8-hdr or @file.json (default: "
      "h200x8; in bench for --strategy auto alone). Changes no bit",
      "NAME")
      .needs(dealt);
  if (!runs) return;
  add("--timeout", timeout,
      "Worlds of processes: seconds that a rank waits for another before all end (default: 300)",
      "X")
      .needs(dealt);
}

std::vector<std::string> WorldOptions::strategy_names() {
  std::vector<std::string> names{kAuto};
  for (const StrategyInfo& info : strategies()) names.emplace_back(info.name);
  return names;
}

std::vector<WorldOptions> WorldOptions::each() const {
  const std::vector<std::string> known = strategy_names();
  std::vector<std::string> worlds;
  const std::vector<std::string> named = strategy == "all"
                                             ? std::vector(known.begin() + 1, known.end())
                                             : parse_names(strategy, "--strategy", known);
  if (world.starts_with(kReplay)) {
    for (const auto ranks : std::views::split(world.substr(kReplay.size()), ','))
      worlds.push_back(std::string(kReplay) + std::string(ranks.begin(), ranks.end()));
  } else {
    worlds.push_back(world);
  }
  std::vector<WorldOptions> all;
  for (const std::string& one : worlds)
    for (const std::string& name : named) {
      all.push_back(*this);
      all.back().world = one;
      all.back().strategy = name;
    }
  if (all.empty()) all.push_back(*this);  // a name is empty, which make() or dealing refuses
  return all;
}

int WorldOptions::threads() const {
  const auto launched = dist::launched();
  if (!has_processes() || !launched) return 0;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / launched->beside);
}

DistOptions WorldOptions::make() const {
  DistOptions options{0, strategy, shard, ulysses_size, ring_window};
  const auto launched = dist::launched();
  if (timeout && !has_processes())
    fail("one process waits for nobody", {"--timeout", "--world " + world, "local:N or mpi", ""});
  if (timeout && !(*timeout > 0))
    fail("a wait has no length", {"--timeout", fmt::to_string(*timeout), "seconds above 0", "300"});
  if (world == "mpi") {
    if (!launched)
      fail("mpirun did not start this process",
           {"--world", world, "mpirun -n N verbatim ... --world mpi", "local:2"});
    options.world = launched->size;
    return options;
  }
  const std::string_view prefix = has_processes() ? kLocal : kReplay;
  const std::string_view digits =
      std::string_view(world).substr(std::min(prefix.size(), world.size()));
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), options.world);
  if (!world.starts_with(prefix) || error == std::errc::invalid_argument ||
      end != digits.data() + digits.size())
    fail("there is no such world",
         {"--world", "'" + world + "'", "replay:N, local:N or mpi", "replay:2"});
  if (error == std::errc::result_out_of_range || options.world > kMostRanks)
    fail("there cannot be so many ranks",
         {"--world", world, fmt::format("{}1 to {}", prefix, kMostRanks),
          fmt::format("{}{}", prefix, kMostRanks)});
  if (options.world < 1)
    fail("a world has no rank",
         {"--world", "'" + world + "'", "1 rank or more", std::string(prefix) + "1"});
  if (prefix == kLocal && launched && launched->size != options.world)
    fail("mpirun started another number of processes",
         {"--world", world, fmt::format("local:{}", launched->size), "mpi"});
  return options;
}

std::string WorldOptions::device_of(const std::string& device) const {
  const auto launched = dist::launched();
  if (!has_processes() || !launched || device != "cuda") return device;
  return fmt::format("cuda:{}", launched->place % std::max(1, cuda_devices()));
}

void WorldOptions::check(bool programs, bool simulates) const {
  if (!given()) return;
  for (const WorldOptions& one : each()) one.make();
  on();
  if (!cluster.empty() && !simulates && strategy != kAuto)
    fail("nothing is simulated",
         {"--cluster", cluster, "--strategy auto beside it, or another command", "verbatim plan"});
  if (!shard.empty()) {
    std::vector<std::string> known;
    for (const ShardInfo& info : shards()) known.emplace_back(info.name);
    require_one_of(shard, "--shard", known);
  }
  if (programs)
    fail("programs run whole plans only", {"--world", "--kernel beside it", "one of them", ""});
}

World::World(const Plan& forward, const Plan& backward, const Mask& mask,
             const DistOptions& options, std::string engine)
    : engine_(std::move(engine)) {
  dealing_seconds_ = seconds_of([&] {
    const Sharding sharding = make_sharding(forward, backward, mask, options);
    for_each_in_parallel(core_count(), 2, [&](int64_t pass) {
      (pass == 0 ? forward_ : backward_) =
          make_dist_plan(pass == 0 ? forward : backward, sharding, options);
    });
  });
  proving_seconds_ = seconds_of([&] {
    for_each_in_parallel(core_count(), 2,
                         [&](int64_t pass) { verify(pass == 0 ? forward_ : backward_); });
  });
}

std::string World::specification(const Mask& mask, const Tensors* tensors,
                                 const Json& command) const {
  const auto pass = [&](Pass which) -> Json {
    const Plan& whole = plan(which).whole;
    return {{"order", whole.orders.front()->name}, {"placement", whole.placement.name},
            {"workers", whole.placement.workers},  {"level", to_string(whole.level)},
            {"arithmetic", whole.arithmetic},      {"fingerprint", whole.fingerprint()}};
  };
  const DistOptions& options = forward_.options;
  Json json = {{"version", VERBATIM_VERSION}, {"contract", kContractVersion}};
  json.update(command);
  json["problem"] = app::describe(forward_.whole.problem);
  json["mask"] = {
      {"name", mask.name()}, {"params", mask.params_json()}, {"sha256", sha256(to_json(mask))}};
  json["forward"] = pass(Pass::forward);
  json["backward"] = pass(Pass::backward);
  json["dist"] = {{"world", options.world},
                  {"strategy", options.strategy},
                  {"shard", forward_.shard},
                  {"ulysses_size", options.ulysses_size},
                  {"ring_window", options.ring_window}};
  if (!tensors) return json.dump();
  for (const auto& [name, tensor] : {std::pair{"q", &tensors->q},
                                     {"k", &tensors->k},
                                     {"v", &tensors->v},
                                     {"do", &tensors->dout}})
    json["inputs"][name] = sha256_of(tensor->view());
  return json.dump();
}

double World::run(Pass pass, const ForwardTensors& forward, const BackwardTensors& backward,
                  const std::string& device, const RunOptions& options,
                  dist::Processes* processes) {
  const bool is_forward = pass == Pass::forward;
  dist::Processes::Result result;
  if (processes) {
    const dist::LocalTensors whole =
        is_forward ? dist::whole_tensors(forward) : dist::whole_tensors(backward);
    result = processes->run(plan(pass), whole, *make_backend(device), options);
  } else {
    result.seconds = seconds_of([&] {
      result.reports = is_forward ? replay(forward_, forward, device, options)
                                  : replay(backward_, backward, device, options);
    });
  }
  Runs& runs = runs_[pass];
  runs.seconds.push_back(result.seconds);
  runs.reports.push_back(std::move(result.reports));
  return result.seconds;
}

LaunchTimes World::launches(Pass pass) const {
  LaunchTimes times;
  for (const RankReport& rank : runs_.at(pass).reports.back()) times.push_back(rank.launch_seconds);
  return times;
}

double World::Runs::compute_ms(int32_t rank) const {
  std::vector<double> times;
  for (const auto& run : reports) times.push_back(run[rank].compute_seconds);
  return median(times) * 1e3;
}

double World::Runs::exposed_ms(int32_t rank) const {
  std::vector<double> times;
  for (const auto& run : reports)
    times.push_back(std::max(run[rank].seconds - run[rank].compute_seconds, 0.0));
  return median(times) * 1e3;
}

Json World::describe(const std::vector<Pass>& passes) const {
  const DistOptions& options = forward_.options;
  Json json = {{"engine", engine_},
               {"world", options.world},
               {"strategy", options.strategy},
               {"shard", forward_.shard},
               {"ulysses_size", options.ulysses_size},
               {"ring_window", options.ring_window},
               {"dealing_ms", dealing_seconds_ * 1e3},
               {"proving_ms", proving_seconds_ * 1e3},
               {"passes", Json::array()}};
  for (const Pass pass : passes) {
    Json ranks = Json::array();
    const auto runs = runs_.find(pass);
    double compute_ms = 0, largest_ms = 0;
    for (int32_t r = 0; r < options.world; ++r) {
      const RankPlan& own = plan(pass).ranks[r];
      Json rank = {{"rows", own.home_q.size()},
                   {"keys", own.home_kv.size()},
                   {"steps", dist::listed_steps(own)},
                   {"predicted_bytes", sent_bytes(plan(pass), r)},
                   {"memory_bytes", memory_bytes(plan(pass), r)},
                   {"peak_bytes", peak_bytes(plan(pass), r)}};
      if (runs != runs_.end()) {
        const double ms = runs->second.compute_ms(r);
        rank["sent_bytes"] = runs->second.reports.back()[r].sent_bytes;
        rank["compute_ms"] = ms;
        if (engine_ != "replay") rank["exposed_ms"] = runs->second.exposed_ms(r);
        compute_ms += ms;
        largest_ms = std::max(largest_ms, ms);
        rank["launch_ms"] = Json::array();
        for (const double seconds : runs->second.reports.back()[r].launch_seconds)
          rank["launch_ms"].push_back(seconds * 1e3);
      }
      ranks.push_back(std::move(rank));
    }
    Json one = {{"pass", to_string(pass)},
                {"fingerprint", plan(pass).whole.fingerprint()},
                {"ranks", std::move(ranks)}};
    if (runs != runs_.end())
      one.update({{"ms", median(runs->second.seconds) * 1e3},
                  {"compute_ms", compute_ms},
                  {"largest_ms", largest_ms}});
    json["passes"].push_back(std::move(one));
  }
  return json;
}

report::Table World::table(const std::vector<Pass>& passes) const {
  using Align = report::Table::Align;
  report::Table table({{"pass"},
                       {"rank", Align::right},
                       {"rows", Align::right},
                       {"keys", Align::right},
                       {"steps", Align::right},
                       {"sends", Align::right},
                       {"memory", Align::right},
                       {"peak", Align::right},
                       {"computes", Align::right}});
  for (const Pass pass : passes) {
    const auto runs = runs_.find(pass);
    for (int32_t r = 0; r < forward_.options.world; ++r) {
      const RankPlan& own = plan(pass).ranks[r];
      table.row({r == 0 ? std::string(to_string(pass)) : "", fmt::to_string(r),
                 report::count(own.home_q.size()), report::count(own.home_kv.size()),
                 report::count(dist::listed_steps(own)), report::bytes(sent_bytes(plan(pass), r)),
                 report::bytes(memory_bytes(plan(pass), r)),
                 report::bytes(peak_bytes(plan(pass), r)),
                 runs == runs_.end() ? "-" : report::milliseconds(runs->second.compute_ms(r))});
    }
  }
  return table;
}

std::string World::summary() const {
  const DistOptions& options = forward_.options;
  std::string text = fmt::format("{} ranks, strategy {}, shard {}", options.world, options.strategy,
                                 forward_.shard);
  if (options.ulysses_size > 1) text += fmt::format(", heads shared by {}", options.ulysses_size);
  if (options.ring_window > 0) text += fmt::format(", windows of {}", options.ring_window);
  return text;
}

std::string World::timing() const {
  return fmt::format("both passes dealt in {}, proved in {}",
                     report::milliseconds(dealing_seconds_ * 1e3),
                     report::milliseconds(proving_seconds_ * 1e3));
}

World run_in_world(const Attention& attention, Tensors& tensors, Passes passes,
                   const std::string& device, const DistOptions& options, const WorldOptions& asked,
                   dist::Processes* processes) {
  World dealt(attention.plan(Pass::forward), attention.plan(Pass::backward), attention.mask(),
              options, asked.engine());
  if (processes)
    processes->agree(
        dealt.specification(attention.mask(), &tensors, {{"backward", passes != Passes::forward}}));
  tensors.poison_outputs(Passes::both);
  RunOptions run;
  run.threads = asked.threads();
  dealt.run(Pass::forward, tensors.forward(), tensors.backward(), device, run, processes);
  if (passes != Passes::forward)
    dealt.run(Pass::backward, tensors.forward(), tensors.backward(), device, run, processes);
  return dealt;
}

}  // namespace verbatim::app
