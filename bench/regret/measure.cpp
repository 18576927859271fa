// How far `auto` is from the best order of its level, on problems that no rule was fitted to: every
// order and placement that a rule could name is timed on a GPU, and `auto` without each of its
// rules.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <set>

#include "backend/cuda/executor.h"
#include "bench/attention.h"
#include "contract/rules.h"
#include "core/file.h"
#include "core/names.h"
#include "draw.h"

namespace verbatim::regret {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFinalists = 6;  // timed once more, in turn with `auto`

struct Options {
  uint64_t seed = 1;
  int64_t count = 60;
  int calls = 5;
  Range range;
  std::string problems, json = "regret.json", commit;
  std::vector<std::string> orders;
  bool list = false;
};

/// Orders of the level `invariant` that may be told apart for a group of this size.
std::vector<std::string> order_names(int64_t group) {
  std::vector<std::string> names;
  for (const OrderInfo& info : orders()) {
    if (info.pass != Pass::backward || info.level != Level::invariant) continue;
    const std::string name = info.name;
    names.push_back(name);
    if (name != "descending" && name != "right_to_left" && name != "shift") continue;
    for (int64_t parts = 2; parts <= group; ++parts) {
      if (group % parts != 0) continue;
      names.push_back(fmt::format("{}/split:{}", name, parts));
      if (name == "descending") names.push_back(fmt::format("{}/even:{}", name, parts));
    }
  }
  return names;
}

/// What is wrong with the name of an order, of whose suffixes each problem decides; "": nothing.
std::string no_such_order(const std::string& name) {
  std::vector<std::string> known;
  for (const OrderInfo& info : orders())
    if (info.pass == Pass::backward) known.emplace_back(info.name);
  const std::string order = name.substr(0, name.find('/'));
  if (std::ranges::find(known, order) != known.end()) return "";
  return fmt::format("there is no order {}, the nearest is {}", order, nearest_name(order, known));
}

std::vector<std::string> placement_names(int64_t heads) {
  std::vector<std::string> names{"queue", "longest_first", "spaced"};
  for (int64_t n = 2; n / 2 < heads; n *= 2) {
    names.push_back(fmt::format("head_swizzled:{}", n));
    names.push_back(fmt::format("staggered:{}", n));
  }
  return names;
}

/// The order of a head that is one sequence under all rules but number `without`; "" for others.
std::string order_without(const Drawn& drawn, size_t without) {
  const HeadMask& head = drawn.mask.head(0, 0);
  const TileMap tiles(head, default_tile(drawn.problem, Pass::backward));
  if (tiles.parts().size() > 1 || drawn.mask.variants().size() > 1) return "";
  std::vector<contract::OrderRule> rules(contract::order_rules().begin(),
                                         contract::order_rules().end());
  rules.erase(rules.begin() + static_cast<ptrdiff_t>(without));
  return contract::auto_order(Pass::backward, tiles.core(),
                              static_cast<int32_t>(drawn.problem.group()), 0, rules);
}

/// Plans of one problem, made in parallel; nothing where an order or placement cannot be.
std::vector<std::shared_ptr<const Plan>> make_plans(const Drawn& drawn,
                                                    std::span<const PlanOptions> asked) {
  std::counting_semaphore<> cores(14);
  std::vector<std::future<std::shared_ptr<const Plan>>> made;
  for (const PlanOptions& options : asked) {
    made.push_back(std::async(std::launch::async, [&, options]() -> std::shared_ptr<const Plan> {
      cores.acquire();
      std::shared_ptr<const Plan> plan;
      try {
        plan = std::make_shared<const Plan>(make_plan(drawn.problem, drawn.mask, options));
      } catch (const Error&) {
        plan.reset();
      }
      cores.release();
      return plan;
    }));
  }
  std::vector<std::shared_ptr<const Plan>> plans;
  for (auto& one : made) plans.push_back(one.get());
  return plans;
}

class Study {
 public:
  explicit Study(const Options& options) : options_(options), backend_(0) {
    backend_.set_wait_limit(1);
    usual_.machine = make_machine(backend_.machine());
    usual_.residents = backend_.residents();
    usual_.arithmetic = backend_.arithmetic();
  }

  Json run(const Drawn& drawn) {
    const bench::Tensors tensors(*device_, drawn.problem);
    PlanOptions forward = usual_;
    forward.pass = Pass::forward;
    backend_.forward(std::make_shared<const Plan>(make_plan(drawn.problem, drawn.mask, forward)),
                     tensors.forward, {});
    tensors_ = &tensors;
    ms_ = Json::object();
    asked_.clear();
    best_ = 1e9;

    PlanOptions knowing = asked("auto");
    knowing.level = Level::gpu_to_gpu;
    const std::vector<std::string> autos = take(drawn, {asked("auto"), knowing});
    const std::string &chosen = autos[0], &known = autos[1];
    std::vector<PlanOptions> plain, placed;
    for (const std::string& name :
         options_.orders.empty() ? order_names(drawn.problem.group()) : options_.orders)
      plain.push_back(asked(name));
    const std::vector<std::string> keys = take(drawn, plain);
    plain.push_back(asked("auto"));
    for (size_t k = 0; k < plain.size(); ++k) {
      if (k < keys.size() && (keys[k].empty() || ms_[keys[k]].get<double>() > 2 * best_)) continue;
      for (const std::string& name : placement_names(drawn.problem.kv_heads))
        placed.push_back(asked(plain[k].order, name));
    }
    take(drawn, placed);
    Json without = Json::object();
    for (size_t r = 0; r + 1 < contract::order_rules().size(); ++r) {
      const std::string order = order_without(drawn, r);
      if (order.empty() || chosen.starts_with(order + " |")) continue;
      const std::string key = take(drawn, {asked(order)}).front();
      without[contract::order_rules()[r].name] = {{"choice", key}, {"ms", ms_[key]}};
    }
    PlanOptions unordered = asked("none");
    unordered.level = Level::not_guaranteed;
    asked_["none"] = unordered;
    std::set<std::string> finalists{chosen, known, "none"};
    for (const std::string& of : {std::string(), order_of(chosen), order_of(known)})
      finalists.merge(fastest(of, of.empty() ? kFinalists : 1));
    const std::string best = time_in_turn(drawn, finalists);
    const double free = ms_["none"], best_ms = ms_[best];
    const double mine = ms_[chosen], theirs = ms_[known];
    ms_.erase("none");
    return {
        {"name", drawn.name},
        {"problem", Json::parse(to_json(drawn.problem))},
        {"mask", {{"name", drawn.mask.name()}, {"params", Json::parse(drawn.mask.params_json())}}},
        {"choice", chosen},
        {"ms", mine},
        {"best", best},
        {"best_ms", best_ms},
        {"regret", mine / best_ms - 1},
        {"gpu_to_gpu", {{"choice", known}, {"ms", theirs}, {"regret", theirs / best_ms - 1}}},
        {"without", without},
        {"free_ms", free},
        {"all", ms_}};
  }

  Json facts() const {
    const bench::Facts facts = device_->facts();
    return {{"name", facts.name}, {"driver", facts.driver}};
  }

 private:
  PlanOptions asked(const std::string& order, const std::string& placement = "auto") const {
    PlanOptions options = usual_;
    options.order = order;
    options.placement = placement;
    return options;
  }

  /// Times what is asked for; returns "order | placement" of each, "" where it cannot run.
  std::vector<std::string> take(const Drawn& drawn, const std::vector<PlanOptions>& all) {
    std::vector<std::string> keys;
    const auto plans = make_plans(drawn, all);
    bool rested = true;
    for (size_t k = 0; k < all.size(); ++k) {
      keys.emplace_back();
      if (!plans[k] || plans[k]->residency > usual_.residents) continue;
      const std::shared_ptr<const Plan>& plan = plans[k];
      std::string order = plan->orders.front()->name;
      if (all[k].order == "auto" && order == "auto")
        order = plan->level == Level::invariant ? "each document's" : "each document's, counted";
      const std::string key = order + " | " + plan->placement.name;
      if (!ms_.contains(key)) {
        if (rested) warm_up(plan);
        rested = false;
        ms_[key] = time(plan);
        asked_[key] = all[k];
      }
      keys.back() = key;
    }
    return keys;
  }

  static std::string order_of(const std::string& key) { return key.substr(0, key.find('|') + 1); }

  /// The `most` fastest so far whose names begin with `prefix`.
  std::set<std::string> fastest(const std::string& prefix, size_t most) const {
    std::multimap<double, std::string> keys;
    for (const auto& [key, ms] : ms_.items())
      if (key.starts_with(prefix)) keys.emplace(ms, key);
    std::set<std::string> first;
    for (auto key = keys.begin(); key != keys.end() && first.size() < most; ++key)
      first.insert(key->second);
    return first;
  }

  /// Times these again, a call of each behind the other, so that all have the same clock: what
  /// comes first behind a pause is slow, and so is what comes late, hot. The fastest in an order.
  std::string time_in_turn(const Drawn& drawn, const std::set<std::string>& all) {
    const std::vector<std::string> keys(all.begin(), all.end());
    std::vector<PlanOptions> options;
    for (const std::string& key : keys) options.push_back(asked_.at(key));
    const auto plans = make_plans(drawn, options);
    std::vector<std::vector<double>> ms(keys.size());
    warm_up(plans.front());
    for (int c = 0; c < options_.calls; ++c)
      for (size_t k = 0; k < keys.size(); ++k)
        ms[k].push_back(
            device_->time([&] { backend_.backward(plans[k], tensors_->backward, {}); }));
    backend_.synchronize({});
    std::string best;
    for (size_t k = 0; k < keys.size(); ++k) {
      ms_[keys[k]] = median(ms[k]);
      if (keys[k] != "none" && (best.empty() || ms_[keys[k]] < ms_[best])) best = keys[k];
    }
    return best;
  }

  /// A GPU that waited for plans needs a while for its clock.
  void warm_up(const std::shared_ptr<const Plan>& plan) {
    constexpr double kMs = 30;
    const auto call = [&] { backend_.backward(plan, tensors_->backward, {}); };
    for (double ms = 0; ms < kMs;) ms += device_->time(call);
  }

  /// The median of some calls; of one alone where that is far behind the best.
  double time(const std::shared_ptr<const Plan>& plan) {
    const auto call = [&] { backend_.backward(plan, tensors_->backward, {}); };
    device_->time(call);
    std::vector<double> ms;
    for (int c = 0; c < options_.calls; ++c) {
      ms.push_back(device_->time(call));
      if (ms.back() > 1.4 * best_) break;
    }
    backend_.synchronize({});
    best_ = std::min(best_, median(ms));
    return median(ms);
  }

  static double median(std::vector<double> ms) {
    std::ranges::sort(ms);
    return ms[ms.size() / 2];
  }

  const Options& options_;
  cuda::CudaBackend backend_;
  std::unique_ptr<bench::Device> device_ = bench::make_device("cuda");
  PlanOptions usual_;
  const bench::Tensors* tensors_ = nullptr;
  Json ms_;                                   // by "order | placement"
  std::map<std::string, PlanOptions> asked_;  // for each of these
  double best_ = 0;
};

/// Those of a file, a list of rows as results have them, or as many as asked for from the seed.
std::vector<Drawn> problems(const Options& options) {
  std::vector<Drawn> found;
  if (!options.problems.empty()) {
    const Json rows = Json::parse(read_text(options.problems));
    if (!rows.is_array())
      throw Error(ErrorCode::invalid_argument, "regret", "no list of problems",
                  {"--problems", rows.type_name(), "a list as a result's \"results\"", ""});
    for (const Json& row : rows) {
      const Problem p = problem_from_json(row.at("problem").dump());
      found.push_back(
          {row.at("name"), p, masks::make(row.at("mask").dump(), p.q_len, p.kv_len, p.kv_heads)});
    }
    return found;
  }
  for (int64_t i = 0; i < options.count; ++i) found.push_back(draw(options.seed, i, options.range));
  return found;
}

int run(const Options& options) {
  const std::vector<Drawn> all = problems(options);
  if (options.list) {
    for (const Drawn& drawn : all) fmt::print("{}\n", drawn.name);
    return 0;
  }
  Study study(options);
  Json result{{"seed", options.seed},
              {"commit", options.commit},
              {"device", study.facts()},
              {"contract", kContractVersion}};
  for (const Drawn& drawn : all) {
    const Json& row = result["results"].emplace_back(study.run(drawn));
    fmt::print("{:44} {:8.3f} ms +{:5.1f} %  {} -> {}\n", row["name"].get<std::string>(),
               row["ms"].get<double>(), 100 * row["regret"].get<double>(),
               row["choice"].get<std::string>(), row["best"].get<std::string>());
    std::fflush(stdout);
    write_file(options.json, result.dump() + "\n");
  }
  return 0;
}

}  // namespace
}  // namespace verbatim::regret

int main(int argc, char** argv) {
  verbatim::regret::Options options;
  CLI::App app("Times every order on problems drawn from a seed, beside auto's");
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--count", options.count, "Problems")->capture_default_str();
  double tflop = options.range.flops / 1e12;
  app.add_option("--tflop", tflop, "Most work of a backward")->capture_default_str();
  app.add_option("--kv-heads", options.range.kv_heads, "Most KV heads")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--group", options.range.group, "Most query heads of a KV head")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--problems", options.problems,
                 "A list of {\"name\", \"problem\", \"mask\"} instead of drawn ones")
      ->check(CLI::ExistingFile);
  app.add_option("--orders", options.orders, "Those timed, besides auto's (default: all)")
      ->delimiter(',')
      ->check(verbatim::regret::no_such_order);
  app.add_option("--calls", options.calls, "Timed calls, after one")->capture_default_str();
  app.add_option("--json", options.json, "Where results go")->capture_default_str();
  app.add_option("--commit", options.commit, "Recorded: what was built");
  app.add_flag("--list", options.list, "Only name the problems");
  CLI11_PARSE(app, argc, argv);
  options.range.flops = tflop * 1e12;
  try {
    return verbatim::regret::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
