// The audit: the same problem under everything that must not matter.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "audit.h"
#include "core/file.h"
#include "core/json.h"
#include "options.h"
#include "prediction.h"
#include "processes.h"
#include "report/format.h"
#include "result.h"

namespace verbatim::app {
namespace {

struct VerifyCommand {
  ProblemOptions problem;
  MaskOptions mask;
  PlanningOptions planning;
  WorldOptions world;
  KernelOptions kernels;
  OutputOptions output;
  std::string device = "cpu", pass = "both", against;
  int repeats = 20;

  int run(dist::Processes* processes) const;
};

/// The hashes that an earlier verify saved. Throws Error unless it had this problem, mask and
/// outputs, and this plan's fingerprint: what then differs is the machine or the version.
Hashes saved_hashes(const std::string& path, const Json& problem, const Json& mask,
                    const std::string& fingerprint, const Hashes& ours) {
  const nlohmann::json saved = parse_json(read_text(path), path);
  const auto require = [&](const char* key, const nlohmann::json& got,
                           const nlohmann::json& expected) {
    if (got != expected)
      fail(fmt::format("the saved {} is another", key),
           {"--against", got.dump(), expected.dump(), ""});
  };
  require("command", json_member(saved, "command", path), "verify");
  require("problem", json_member(saved, "problem", path), problem);
  const nlohmann::json& saved_mask = json_member(saved, "mask", path);
  for (const char* member : {"name", "params", "area"})
    require("mask", json_member(saved_mask, member, path), mask.at(member));
  require("fingerprint", json_member(saved, "fingerprint", path), fingerprint);
  Hashes found;
  for (const auto& [output, hash] : ours)
    found[output] = json_text(json_member(json_member(saved, "sha256", path), output.c_str(), path),
                              output, path);
  return found;
}

int VerifyCommand::run(dist::Processes* processes) const {
  if (repeats < 1) {
    fail("an audit needs a repeat", {"--repeats", fmt::to_string(repeats), "1 or more", "20"});
  }
  const Problem sizes = make_problem(problem, mask);
  const Passes passes = passes_from_string(pass, sizes);
  const Mask made = mask.make(sizes);
  world.check(!kernels.files.empty(), false);
  require_memory(sizes);  // before plans, which take their time
  const std::string own_device = world.device_of(device);
  const AttentionOptions options = kernels.options_for(own_device, planning);
  if (processes && processes->rank() != 0) {  // rank 0 audits
    Tensors tensors(sizes, sizes.seed);
    const Attention attention(sizes, made, options);
    run_in_world(attention, tensors, passes, own_device, choose(world, attention).options, world,
                 processes);
    return 0;
  }

  Progress progress;
  progress.say("planning ...");
  Audit audit(sizes, made, options, passes, repeats);
  progress.say("auditing world ...");
  audit.world(world, processes);  // first: other processes wait for it
  const std::pair<const char*, void (Audit::*)()> kChecks[] = {
      {"repeats", &Audit::repeat},    {"threads", &Audit::threads},
      {"load", &Audit::load},         {"workers", &Audit::workers},
      {"batch", &Audit::batch},       {"heads", &Audit::heads},
      {"packing", &Audit::documents}, {"neighbours", &Audit::neighbours},
      {"padding", &Audit::padding}};
  for (const auto& [name, check] : kChecks) {
    progress.say(fmt::format("auditing {} ...", name));
    (audit.*check)();
  }
  progress.say("");
  const Plan& plan = audit.attention().plan(Pass::backward);
  const Json described = describe(made, sizes, options.plan.tile);
  if (!against.empty())
    audit.against(against, saved_hashes(against, describe(sizes), described, plan.fingerprint(),
                                        audit.expected()));

  const bool good = std::all_of(audit.rows().begin(), audit.rows().end(),
                                [](const Row& row) { return row.identical || !row.promised; });
  Json result = new_result("verify");
  result["device"] = device;
  result["level"] = planning.level_name();
  result["problem"] = describe(sizes);
  result["mask"] = described;
  result["order"] = plan.orders.front()->name;
  result["fingerprint"] = plan.fingerprint();
  result["sha256"] = audit.expected();
  result["identical"] = good;
  result["audit"] = Json::array();
  using Align = report::Table::Align;
  report::Table table(
      {{"what was changed"}, {""}, {"runs", Align::right}, {"sha256"}, {"verdict"}});
  table.row({"nothing", "the first run", "1", digest(audit.expected()).substr(0, 16), ""});
  for (const Row& row : audit.rows()) {
    result["audit"].push_back({{"check", row.check},
                               {"detail", row.detail},
                               {"runs", row.runs},
                               {"identical", row.identical},
                               {"promised", row.promised},
                               {"sha256", row.hash}});
    table.row({row.check, row.detail, fmt::to_string(row.runs), row.hash.substr(0, 16),
               row.identical  ? "same bits"
               : row.promised ? "DIFFERS"
                              : "differs, not promised"});
  }
  save(output, result);
  fmt::print("{}\nlevel {}, order {}, plan {}\n\n{}\n{}\n", headline(sizes, made),
             planning.level_name(), result["order"].get<std::string>(), plan.fingerprint(),
             table.str(),
             good ? "identical: not one bit depends on any of this"
                  : "NOT identical: a promised bit differs");
  return good ? 0 : 1;
}

}  // namespace

void add_verify(Command root, Action& action) {
  auto command = std::make_shared<VerifyCommand>();
  const Command sub =
      root.add_subcommand("verify", "Audit the bits: what must not matter does not");
  sub.footer(
      "Example: verbatim verify --mask causal_document --doc-lengths 700,324 --q-heads 4 \\\n"
      "  --kv-heads 2 --dtype bf16\n"
      "Each line changes one thing and compares every output with the first run: repeats, "
      "threads,\n"
      "load, planned workers, place in a batch, a head alone, each document alone, NaN and Inf in\n"
      "neighbours (entries of the batch, documents) and in padding of rows and keys (right; left\n"
      "where there are as many of both). Parts are compared with the same part of the first run.\n"
      "On a CPU the problem is also dealt to ranks: as --world says, or to two and four, with "
      "every\n"
      "strategy that fits.\n"
      "What the level does not promise may differ.\n"
      "With dropout, which numbers sequences and heads, the place in a batch and a head alone are\n"
      "left out.\n"
      "--against compares the first run with one of another process, machine or version by the "
      "same\n"
      "plan as well.\n"
      "--order none runs the backward without turns on a GPU, where repeats then differ: the "
      "audit\n"
      "holds it to run_to_run all the same. On a CPU every plan takes its turns, and repeats.\n"
      "Ranks then start sums of their own, and bits follow the world.\n"
      "Exit code 1: a promised bit differs.");
  command->problem.add_to(sub);
  command->mask.add_to(sub);
  command->planning.add_to(sub);
  command->world.add_to(sub, true);
  const char* group = "Audit";
  sub.add_option("--pass", command->pass, "forward, backward or both")
      .group(group)
      .type_name("NAME")
      .capture_default_str();
  sub.add_option("--repeats", command->repeats, "Runs, idle and under load")
      .group(group)
      .type_name("N")
      .capture_default_str();
  sub.add_option("--device", command->device, "cpu, cuda or cuda:N")
      .group(group)
      .type_name("NAME")
      .capture_default_str();
  command->kernels.add_to(sub, group);
  sub.add_option("--against", command->against, "What an earlier verify saved with --json")
      .group(group)
      .type_name("FILE");
  command->output.add_to(sub, true);
  sub.callback([command, &action] { action = action_in_world(command); });
}

}  // namespace verbatim::app
