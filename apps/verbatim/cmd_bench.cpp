#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "bench/attention.h"
#include "bench/cuda/cudnn.h"
#include "bench_worlds.h"
#include "cases.h"
#include "core/file.h"
#include "options.h"
#include "plan/accept.h"
#include "processes.h"
#include "report/format.h"
#include "report/table.h"
#include "result.h"
#include "world.h"

namespace verbatim::app {
namespace {

struct BenchCommand {
  ProblemOptions problem;
  MaskOptions mask;
  PlanningOptions planning;
  WorldOptions world;
  KernelOptions kernels;
  PlanFiles own_plans;
  OutputOptions output;
  std::string set, match = ".*", device = "cpu", protocol = "rested", check = "sampled", commit;
  std::string providers = "verbatim";
  std::string csv, markdown;
  int repeats = 10, threads = 0;
  bool repro = false;
  std::string given, settings;  // options of the problem and of this command, as typed

  int run(dist::Processes* processes) const;
  using SharedPlan = std::shared_ptr<const Plan>;
  struct Plans {
    SharedPlan forward, backward;
    double backward_ms;               // to make it, or to prove one's own
    std::optional<double> cached_us;  // to find it again
  };
  using Own = std::vector<SharedPlan>;  // of --plan
  Own read_own() const;
  PlanOptions options_of(const Backend& backend, Pass pass) const;
  void check_cases(const Backend& backend, const std::vector<Case>& cases, const Own& own) const;
  Plans plans_of(const Backend& backend, const CaseProblem& problem, const Own& own) const;
  Json run_case(const Backend& backend, const bench::Device& on, const Case& one, const Own& own,
                dist::Processes* processes) const;
  Json run_peer(const std::string& provider, const bench::Device& on, const Case& one,
                const Own& own) const;
  Json describe(const Case& one, const CaseProblem& made) const;
  bench::Protocol timing() const {
    return protocol == "rested" ? bench::Protocol::rested : bench::Protocol::sustained;
  }
};

Json describe_timing(const bench::Timing& timing, double flops) {
  return {{"ms", timing.ms},
          {"noise", timing.noise},
          {"tflops", timing.ms > 0 ? flops / timing.ms * 1e-9 : 0.0},
          {"clock_mhz", timing.clock_mhz}};
}

/// What a row says about its case, whoever ran it.
Json BenchCommand::describe(const Case& one, const CaseProblem& made) const {
  const Problem& p = made.problem;
  const std::string& params = made.mask.params_json();
  return {{"set", one.set},
          {"name", one.name},
          {"repro", "verbatim bench" + settings + " " + one.words},
          {"problem", app::describe(p)},
          {"mask",
           {{"name", made.mask.name()},
            {"params", Json::parse(params.empty() ? "{}" : params)},
            {"area", made.mask.area(p.batch, p.q_heads, p.kv_heads)}}}};
}

PlanOptions BenchCommand::options_of(const Backend& backend, Pass pass) const {
  PlanOptions chosen = planning.make(pass, device);
  chosen.residents = backend.residents();
  chosen.arithmetic = planning.arithmetic;
  complete(chosen, backend);
  return chosen;
}

BenchCommand::Own BenchCommand::read_own() const {
  Own own = own_plans.read();
  if (own.empty()) return own;
  if (!set.empty())
    fail("the problems of a set have plans by rule",
         {"--plan", own_plans.files.front(), "a problem without --set", ""});
  for (const SharedPlan& plan : own)
    if (const std::string order = planning.make(plan->pass, device).order; order != "auto")
      fail("the plan has an order of its own",
           {plan->pass == Pass::forward ? "--forward-order" : "--order", order,
            fmt::format("auto, where the {} has a plan", to_string(plan->pass)), "auto"});
  return own;
}

/// Refuses what cannot be planned, before the cases in front of it are measured and saved: the
/// first has none, but plans of one's own to prove.
void BenchCommand::check_cases(const Backend& backend, const std::vector<Case>& cases,
                               const Own& own) const {
  for (const Case& one : cases) {
    const auto [sizes, made] = parse_case(one.words, own);
    passes_from_string("both", sizes);
    backend.check(sizes);
    if (device == "cpu") require_memory(sizes);
    backend.check_mask(made);
    check_worlds(world, sizes);
    for (const SharedPlan& plan : own) backend.check_plan(accept(*plan, sizes, made));
    if (&one == &cases.front()) continue;
    for (const Pass pass : {Pass::forward, Pass::backward})
      make_plan(sizes, made, options_of(backend, pass));
  }
}

BenchCommand::Plans BenchCommand::plans_of(const Backend& backend, const CaseProblem& problem,
                                           const Own& own) const {
  const auto& [sizes, made] = problem;
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto own_of = [&](Pass pass) {
    return std::ranges::find(own, pass, [](const SharedPlan& plan) { return plan->pass; });
  };
  const auto plan = [&](Pass pass) {
    const auto mine = own_of(pass);
    return std::make_shared<const Plan>(mine != own.end()
                                            ? accept(**mine, sizes, made)
                                            : make_plan(sizes, made, options_of(backend, pass)));
  };
  auto backward = plan(Pass::backward);
  const std::chrono::duration<double, std::milli> planned = Clock::now() - start;
  std::optional<double> cached_us;
  if (own_of(Pass::backward) == own.end()) {
    const PlanOptions again = options_of(backend, Pass::backward);
    cached_plan(sizes, made, again);
    const auto asked = Clock::now();
    cached_plan(sizes, made, again);
    cached_us = std::chrono::duration<double, std::micro>(Clock::now() - asked).count();
  }
  return {plan(Pass::forward), std::move(backward), planned.count(), cached_us};
}

Json BenchCommand::run_case(const Backend& backend, const bench::Device& on, const Case& one,
                            const Own& own, dist::Processes* processes) const {
  const CaseProblem problem = parse_case(one.words, own);
  const auto& [sizes, made] = problem;
  const Plans plans = plans_of(backend, problem, own);
  std::vector<Dealt> dealt;
  if (world.given())
    dealt = run_worlds(backend, on, {plans.forward, plans.backward, made},
                       {world, device, repeats, threads}, processes);
  if (processes && processes->rank() != 0) return nullptr;
  const Plan& backward = *plans.backward;
  const bench::Result found = bench::run_case(backend, on, made, plans.forward, plans.backward,
                                              {.protocol = timing(),
                                               .repeats = repeats,
                                               .check = check == "sampled",
                                               .run = {.threads = threads}});
  const double work = flops(sizes, made, Pass::backward);
  Json row = describe(one, problem);
  row.update(Json{
      {"plan",
       {{"order", backward.orders.front()->name},
        {"placement", backward.placement.name},
        {"level", to_string(backward.level)},
        {"arithmetic", backward.arithmetic},
        {"fingerprint", backward.fingerprint()},
        {"residency", backward.residency},
        {"bytes", backward.bytes()},
        {"ms", plans.backward_ms},
        {"new_call_us", found.new_plan_us},
        {"known_call_us", found.known_plan_us}}},
      {"forward", describe_timing(found.forward, flops(sizes, made, Pass::forward))},
      {"unordered", found.unordered ? describe_timing(*found.unordered, work) : Json(nullptr)},
      {"order_ratio", found.unordered ? Json(bench::ratio_in_turn(*found.unordered, found.backward))
                                      : Json(nullptr)},
      {"backward", describe_timing(found.backward, work)},
      {"check", {{"correct", found.correct}, {"error_ratio", found.error_ratio}}},
      {"bits",
       {{"repeats", repeats},
        {"differing_words", found.differing_words},
        {"sha256", found.sha256}}},
      {"workspace_bytes", backend.workspace_bytes(backward)},
      {"memory_bytes", {{"forward", found.forward_bytes}, {"backward", found.backward_bytes}}}});
  if (plans.cached_us) row["plan"]["cached_us"] = *plans.cached_us;
  for (const Dealt& one : dealt) row["dist"].push_back(app::describe(one, world, row));
  return row;
}

/// A row of cuDNN's, whose members that only a plan has are null; so are all that follow `status`
/// where it did not run.
Json BenchCommand::run_peer(const std::string& provider, const bench::Device& on, const Case& one,
                            const Own& own) const {
  const CaseProblem problem = parse_case(one.words, own);
  const auto& [sizes, made] = problem;
  Json row = describe(one, problem);
  const auto end = [&](const char* status, const std::string& reason) {
    row["status"] = status;
    row["reason"] = reason;
    return row;
  };
  row["provider"] = provider;
  end("ok", "");
  for (const char* member : {"plan", "forward", "unordered", "order_ratio", "backward", "check",
                             "bits", "workspace_bytes", "memory_bytes"})
    row[member] = nullptr;
  if (!bench::cudnn_facts().missing.empty())
    return end("not installed", bench::cudnn_facts().missing);
  if (device == "cpu") return end("unsupported", "cuDNN runs on GPUs alone");
  try {
    const bench::Tensors tensors(on, sizes);
    const bench::Passes passes =
        bench::make_cudnn(on, sizes, made, tensors, provider == "cudnn:deterministic");
    const bench::Result found = bench::run_peer(
        passes, on, sizes, made, tensors,
        {.protocol = timing(), .repeats = repeats, .check = check == "sampled", .run = {}});
    row["check"] = {{"correct", found.correct}, {"error_ratio", found.error_ratio}};
    if (!found.correct) return end("wrong", "samples differ from the reference");
    row["forward"] = describe_timing(found.forward, flops(sizes, made, Pass::forward));
    row["backward"] = describe_timing(found.backward, flops(sizes, made, Pass::backward));
    row["bits"] = {
        {"repeats", repeats}, {"differing_words", found.differing_words}, {"sha256", found.sha256}};
    row["workspace_bytes"] = passes.backward_workspace;
    row["memory_bytes"] = {{"forward", found.forward_bytes}, {"backward", found.backward_bytes}};
    return row;
  } catch (const Error& error) {
    return end(error.code() == ErrorCode::unsupported ? "unsupported" : "error", error.what());
  } catch (const std::exception& error) {  // what is not ours throws what it likes
    return end("error", error.what());
  }
}

/// A line a row; those of peers say whose they are.
report::Table table_of(const Json& result) {
  using Align = report::Table::Align;
  const Json& matmul = result["matmul_tflops"];
  const double yardstick =
      matmul.is_null() ? 0 : (matmul["before"].get<double>() + matmul["after"].get<double>()) / 2;
  report::Table table({{"case"},
                       {"forward TFLOP/s", Align::right},
                       {"backward ms", Align::right},
                       {"TFLOP/s", Align::right},
                       {"of matmul", Align::right},
                       {"without order ms", Align::right},
                       {"ratio", Align::right},
                       {"order"},
                       {"noise", Align::right},
                       {"MHz", Align::right},
                       {"memory", Align::right},
                       {"bits"}});
  for (const Json& row : result["results"]) {
    const std::string provider = row.value("provider", "");
    const std::string name =
        row["name"].get<std::string>() + (provider.empty() ? "" : ", ") + provider;
    const Json& backward = row["backward"];
    if (backward.is_null()) {
      table.row({name, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", row["status"]});
      continue;
    }
    const double ms = backward["ms"], rate = backward["tflops"];
    const Json& free = row["unordered"];
    const bool equal = row["bits"]["differing_words"] == 0;
    table.row({name, report::number(row["forward"]["tflops"]), fmt::format("{:.3f}", ms),
               report::number(rate), yardstick > 0 ? fmt::format("{:.2f}", rate / yardstick) : "-",
               free.is_null() ? "-" : fmt::format("{:.3f}", free["ms"].get<double>()),
               free.is_null() ? "-" : fmt::format("{:.2f}", row["order_ratio"].get<double>()),
               row["plan"].is_null() ? "-" : row["plan"]["order"].get<std::string>(),
               fmt::format("{:.1f}%", backward["noise"].get<double>() * 100),
               backward["clock_mhz"] > 0.0
                   ? fmt::format("{:.0f}", backward["clock_mhz"].get<double>())
                   : "-",
               report::bytes(row["memory_bytes"]["backward"]),
               !row["check"]["correct"] ? "WRONG"
               : equal                  ? "equal"
                                        : "DIFFER"});
  }
  return table;
}

int BenchCommand::run(dist::Processes* processes) const {
  require_one_of(protocol, "--protocol", {"rested", "sustained"});
  require_one_of(check, "--check", {"sampled", "none"});
  if (repeats < 1)
    fail("bits are compared with a repeat",
         {"--repeats", fmt::to_string(repeats), "1 or more", "10"});
  require_not_negative(threads, "--threads");
  const std::vector<std::string> chosen_providers =
      parse_names(providers, "--providers", {"verbatim", "cudnn", "cudnn:deterministic"});
  const Own own = read_own();
  if (!own.empty() && std::ranges::find(chosen_providers, "verbatim") == chosen_providers.end())
    fail("others have no plans", {"--plan", providers, "verbatim among --providers", "verbatim"});
  const std::vector<Case> chosen = chosen_cases(set, match, {"given", mask.name, given});
  world.check(!kernels.files.empty(), true);
  const std::string own_device = world.device_of(device);
  const auto backend = make_backend(own_device, kernels.read(own_device, planning),
                                    level_from_string(planning.level_name()));
  const auto on = bench::make_device(own_device);
  check_cases(*backend, chosen, own);
  if (processes && processes->rank() != 0) {  // which rank 0 times
    for (const Case& one : chosen) run_case(*backend, *on, one, own, processes);
    return 0;
  }

  Json result = new_result("bench");
  result["device"] = app::describe(on->facts());
  result["commit"] = commit;
  if (const std::string& version = bench::cudnn_facts().version;
      !version.empty() && providers != "verbatim")
    result["software"] = {{"cudnn", version}};
  result["protocol"] = protocol;
  Progress progress;
  progress.say("measuring what the device can do ...");
  const std::pair<const char*, std::optional<bench::Yardstick>> yardsticks[] = {
      {"matmul_tflops", on->matmul()}, {"copy_tb_per_s", on->large_copy()}};
  const auto note_rates = [&](const char* when) {  // 10^12 per second, in the heat of this run
    for (const auto& [name, yardstick] : yardsticks) {
      if (!yardstick) continue;
      result[name][when] =
          yardstick->amount / bench::measure(*on, timing(), yardstick->call).ms * 1e-9;
    }
  };
  for (const auto& [name, yardstick] : yardsticks) {
    result[name] = yardstick ? Json{{"before", nullptr}, {"after", nullptr}} : Json(nullptr);
  }
  note_rates("before");
  result["results"] = Json::array();
  bool good = true;
  for (const Case& one : chosen) {
    progress.say(
        fmt::format("{} ({} of {}) ...", one.name, result["results"].size() + 1, chosen.size()));
    for (const std::string& provider : chosen_providers) {
      const bool ours = provider == "verbatim";
      Json row =
          ours ? run_case(*backend, *on, one, own, processes) : run_peer(provider, *on, one, own);
      if (ours) good &= row["bits"]["differing_words"] == 0 && row["check"]["correct"].get<bool>();
      for (const Json& dist : row.value("dist", Json::array()))
        good &= dist.value("differing_words", 0) == 0;
      result["results"].push_back(std::move(row));
      save(output, result);
    }
  }
  note_rates("after");
  progress.say("");

  const report::Table table = table_of(result);
  save(output, result);
  if (!csv.empty()) write_file(csv, table.csv());
  if (!markdown.empty()) write_file(markdown, table.markdown());
  fmt::print("{}, {} protocol\n\n{}", result["device"]["name"].get<std::string>(), protocol,
             table.str());
  if (world.given()) fmt::print("\n{}", dist_table_of(result).str());
  for (const auto& [name, what] :
       {std::pair{"matmul_tflops", "bf16 matmul, TFLOP/s"}, {"copy_tb_per_s", "copy, TB/s"}}) {
    const Json& value = result[name];
    if (value.is_null()) continue;
    fmt::print("{}: {} before, {} after\n", what, report::number(value["before"]),
               report::number(value["after"]));
  }
  if (repro) {
    for (const Json& row : result["results"]) fmt::print("{}\n", row["repro"].get<std::string>());
  }
  return good ? 0 : 1;
}

}  // namespace

void add_bench(Command root, Action& action) {
  auto command = std::make_shared<BenchCommand>();
  const Command sub =
      root.add_subcommand("bench", "Time both passes beside what the device can do");
  sub.footer(
      "Example: verbatim bench --mask causal --seqlen 256 --dtype bf16 --repeats 2\n"
      "On a GPU: verbatim bench --device cuda --set dense --json dense.json --markdown dense.md\n"
      "Nothing is timed before samples agree with the reference. Repeats, on outputs filled with\n"
      "NaN, and the last timed call are compared bit by bit. 'without order' is the same backward\n"
      "without turns, timed in turn with it; the ratio says what order costs (GPU only). rested:\n"
      "0.5 s idle, 3 calls to warm up, the median of 10. sustained: 0.6 s of the same work, then\n"
      "the median over 0.3 s.\n"
      "noise: the spread of the middle half. MHz: right after the last call. memory: outputs and\n"
      "workspace of the backward. Exit code 1: our bits differ or are wrong.\n"
      "With --world each case is also dealt to ranks, as often as its bits are compared, and has "
      "to\n"
      "have those of one device: what all ranks computed and what the largest did are medians, of "
      "a\n"
      "replay on a GPU by events; wall is the time of a whole pass, transfers among them. Several\n"
      "deals: --world replay:2,4,8 --strategy ring,usp, or all. With --cluster these launches are\n"
      "played there.\n"
      "Beside cuDNN: verbatim bench --device cuda --set dense --providers\n"
      "verbatim,cudnn,cudnn:deterministic, where the build found cudnn-frontend's and cuDNN's\n"
      "headers. libcudnn.so.9 ($VERBATIM_CUDNN) and libcudart are loaded when it runs.");
  command->problem.add_to(sub);
  command->mask.add_to(sub);
  command->planning.add_to(sub);
  command->own_plans.add_to(sub);
  command->world.add_to(sub, true);
  const auto add = [&](const char* group, const char* option, auto& value, const char* help,
                       const char* type) {
    return sub.add_option(option, value, help).group(group).type_name(type);
  };
  add_case_options(sub, command->set, command->match);
  const char* group = "Bench";
  add(group, "--device", command->device, "cpu, cuda or cuda:N", "NAME").capture_default_str();
  command->kernels.add_to(sub, group);
  add(group, "--providers", command->providers,
      "Whose attention: of verbatim, cudnn, cudnn:deterministic", "A,B,...")
      .capture_default_str();
  add(group, "--protocol", command->protocol, "rested or sustained", "NAME").capture_default_str();
  add(group, "--repeats", command->repeats, "Runs whose bits are compared before timing", "N")
      .capture_default_str();
  add(group, "--check", command->check, "Against the reference: sampled or none", "NAME")
      .capture_default_str();
  add(group, "--threads", command->threads, "CPU threads; 0: all cores", "N").capture_default_str();
  add("Output", "--commit", command->commit, "Recorded in the result: what was built", "TEXT");
  add("Output", "--csv", command->csv, "Write the table as CSV", "FILE").writes_file();
  add("Output", "--markdown", command->markdown, "Write the table as Markdown", "FILE")
      .writes_file();
  sub.add_flag("--repro", command->repro, "Print the line that runs each row alone")
      .group("Output");
  command->output.add_to(sub, false);
  sub.callback([command, sub, &action] {
    command->given = sub.words_of({"Problem", "Mask"});
    const std::string settings = sub.words_of({"Plan", "World", "Bench"});
    command->settings = settings.empty() ? "" : " " + settings;
    action = action_in_world(command);
  });
}

}  // namespace verbatim::app
