#include "result.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "core/file.h"
#include "report/format.h"
#include "report/html.h"
#include "report/mask_picture.h"

namespace verbatim::app {
namespace {

/// More slices than this are not worth a picture: the page then shows numbers only.
constexpr size_t kMaxSavedSlices = 20000;

std::vector<std::string>& remembered() {
  static std::vector<std::string> list;
  return list;
}

}  // namespace

void remember_arguments(int count, const char* const* list) {
  remembered().assign(list + 1, list + count);
}

const std::vector<std::string>& arguments() { return remembered(); }

Json new_result(const std::string& command) {
  return {{"command", command},
          {"version", VERBATIM_VERSION},
          {"contract", kContractVersion},
          {"arguments", arguments()}};
}

Json describe(const Problem& problem) { return Json::parse(to_json(problem)); }

Json describe(const Mask& mask, const Problem& problem, TileShape tile) {
  const HeadMask& first = mask.head(0, 0);
  const TileShape usual = default_tile(problem, Pass::backward);
  if (tile.q == 0) tile.q = usual.q;
  if (tile.kv == 0) tile.kv = usual.kv;
  const report::TileClasses classes = report::tile_classes(TileMap(first, tile));
  const int64_t total = mask.area(problem.batch, problem.q_heads, problem.kv_heads);
  const double positions = static_cast<double>(problem.batch * problem.q_heads) *
                           static_cast<double>(problem.q_len) * static_cast<double>(problem.kv_len);
  Json json = {{"name", mask.name()},
               {"params", Json::parse(mask.params_json().empty() ? "{}" : mask.params_json())},
               {"area", first.area()},
               {"total_area", total},
               {"density", positions > 0 ? static_cast<double>(total) / positions : 0.0},
               {"variants", mask.variants().size()},
               {"tiles",
                {{"q", tile.q},
                 {"kv", tile.kv},
                 {"full", classes.full},
                 {"partial", classes.partial},
                 {"empty", classes.empty}}}};
  size_t slices = 0;
  for (const HeadMask& head : mask.variants()) slices += head.slices.size();
  if (slices <= kMaxSavedSlices) json["definition"] = Json::parse(to_json(mask));
  return json;
}

Json describe(const Plan& plan, const Simulation& simulation, const Machine& machine,
              double plan_seconds) {
  const TileShape tile = tile_of(plan);
  // Sums of rounded differences: what is left of nothing is nothing.
  const auto time = [&](double t) { return std::abs(t) < 1e-9 * simulation.work ? 0.0 : t; };
  return {{"pass", to_string(plan.pass)},
          {"order", plan.orders.front()->name},
          {"placement", plan.placement.name},
          {"level", to_string(plan.level)},
          {"arithmetic", plan.arithmetic},
          {"fingerprint", plan.fingerprint()},
          {"workers", plan.placement.workers},
          {"residency", plan.residency},
          {"tile", {{"q", tile.q}, {"kv", tile.kv}}},
          {"machine", machine.name},
          {"makespan", simulation.makespan},
          {"lower_bound", simulation.lower_bound},
          {"work", simulation.work},
          {"stall", time(simulation.stall)},
          {"idle", time(simulation.idle)},
          {"bytes", plan.bytes()},
          {"planning_ms", plan_seconds * 1e3}};
}

Json describe(const bench::Facts& facts) {
  return {{"name", facts.name},
          {"multiprocessors", facts.workers},
          {"l2_bytes", facts.l2_bytes},
          {"max_clock_mhz", facts.max_clock_mhz},
          {"driver", facts.driver}};
}

double flops(const Problem& problem, const Mask& mask, Pass pass) {
  const auto area =
      static_cast<double>(mask.area(problem.batch, problem.q_heads, problem.kv_heads));
  const double dims = static_cast<double>(problem.head_dim + problem.head_dim_v);
  const double forward = 2 * area * dims;
  return pass == Pass::forward ? forward : 2.5 * forward;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void save(const OutputOptions& output, const Json& result) {
  // The page is made first: when it cannot be, nothing is written.
  const std::string page = output.report.empty() ? "" : report::html_report(result.dump());
  if (!output.json.empty()) write_file(output.json, result.dump(2) + "\n");
  if (!output.report.empty()) write_file(output.report, page);
}

Progress::Progress() : on_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { say(""); }

void Progress::say(const std::string& what) {
  if (!on_) return;
  std::fputs(("\r\033[K" + what).c_str(), stderr);  // fmt::print() throws where it is lost
  std::fflush(stderr);
}

std::string headline(const Problem& p, const Mask& mask) {
  std::string text = fmt::format("{}, {}", mask.name(), report::count(p.q_len));
  if (p.q_len != p.kv_len) text += " to " + report::count(p.kv_len);
  text += " tokens";
  if (p.batch != 1) text += fmt::format(", batch {}", p.batch);
  text += fmt::format(", {}:{} heads of {}", p.q_heads, p.kv_heads, p.head_dim);
  if (p.head_dim_v != p.head_dim) text += fmt::format(" and {}", p.head_dim_v);
  return text + fmt::format(", {}", to_string(p.dtype));
}

}  // namespace verbatim::app
