#include "world.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

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

const char* name_of(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

}  // namespace

void WorldOptions::add_to(CLI::App& command) {
  const char* group = "World";
  std::string strategy_names, shard_names;
  for (const StrategyInfo& info : strategies())
    strategy_names += (strategy_names.empty() ? "" : ", ") + std::string(info.name);
  for (const ShardInfo& info : shards())
    shard_names += (shard_names.empty() ? "" : ", ") + std::string(info.name);
  const auto add = [&](const char* option, auto& value, const std::string& help, const char* type) {
    return command.add_option(option, value, help)->group(group)->type_name(type);
  };
  CLI::Option* dealt = add(
      "--world", world,
      "Deal the problem to N ranks, which this process plays one step after another. Changes no "
      "bit",
      "replay:N");
  add("--strategy", strategy, "How K and V get to the ranks that need them: " + strategy_names,
      "NAME")
      ->capture_default_str()
      ->needs(dealt);
  add("--shard", shard,
      "Which rank holds which positions: " + shard_names +
          " (default: balanced for that strategy, else zigzag)",
      "NAME")
      ->needs(dealt);
  add("--ulysses-size", ulysses_size,
      "Strategies usp and loongtrain: ranks that share the heads (default: at most 8)", "N")
      ->needs(dealt);
  add("--ring-window", ring_window,
      "Strategy loongtrain: ranks of an inner ring (default: at most the root of the ring)", "N")
      ->needs(dealt);
}

DistOptions WorldOptions::make() const {
  constexpr std::string_view kPrefix = "replay:";
  DistOptions options{0, strategy, shard, ulysses_size, ring_window};
  const std::string_view digits =
      std::string_view(world).substr(std::min(kPrefix.size(), world.size()));
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), options.world);
  if (!world.starts_with(kPrefix) || error != std::errc{} || end != digits.data() + digits.size())
    fail("there is no such world", {"--world", "'" + world + "'", "replay:N", "replay:2"});
  return options;
}

World::World(const Plan& forward, const Plan& backward, const Mask& mask,
             const DistOptions& options) {
  dealing_seconds_ = seconds_of([&] {
    const Sharding sharding = make_sharding(forward, backward, mask, options);
    forward_ = make_dist_plan(forward, sharding, options);
    backward_ = make_dist_plan(backward, sharding, options);
  });
  proving_seconds_ = seconds_of([&] {
    verify(forward_);
    verify(backward_);
  });
}

void World::forward(const Tensors& tensors, const std::string& device, const RunOptions& run) {
  reports_[Pass::forward] = replay(forward_, tensors.forward(), device, run);
}

void World::backward(const Tensors& tensors, const std::string& device, const RunOptions& run) {
  reports_[Pass::backward] = replay(backward_, tensors.backward(), device, run);
}

Json World::describe(const std::vector<Pass>& passes) const {
  const DistOptions& options = forward_.options;
  Json json = {{"engine", "replay"},
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
    const auto report = reports_.find(pass);
    for (int32_t r = 0; r < options.world; ++r) {
      const RankPlan& own = plan(pass).ranks[static_cast<size_t>(r)];
      Json rank = {{"rows", own.home_q.size()},
                   {"keys", own.home_kv.size()},
                   {"steps", own.steps.size()},
                   {"predicted_bytes", sent_bytes(plan(pass), r)},
                   {"memory_bytes", memory_bytes(plan(pass), r)}};
      if (report != reports_.end()) {
        rank["sent_bytes"] = report->second[static_cast<size_t>(r)].sent_bytes;
        rank["compute_ms"] = report->second[static_cast<size_t>(r)].compute_seconds * 1e3;
      }
      ranks.push_back(std::move(rank));
    }
    json["passes"].push_back({{"pass", name_of(pass)}, {"ranks", std::move(ranks)}});
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
                       {"computes", Align::right}});
  for (const Pass pass : passes) {
    const auto report = reports_.find(pass);
    for (int32_t r = 0; r < forward_.options.world; ++r) {
      const RankPlan& own = plan(pass).ranks[static_cast<size_t>(r)];
      table.row({r == 0 ? name_of(pass) : "", fmt::to_string(r), report::count(own.home_q.size()),
                 report::count(own.home_kv.size()), report::count(std::ssize(own.steps)),
                 report::bytes(sent_bytes(plan(pass), r)),
                 report::bytes(memory_bytes(plan(pass), r)),
                 report == reports_.end()
                     ? "-"
                     : report::milliseconds(report->second[static_cast<size_t>(r)].compute_seconds *
                                            1e3)});
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

}  // namespace verbatim::app
