#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "report/format.h"
#include "report/gantt.h"
#include "report/mask_picture.h"
#include "report/texts.h"
#include "report/timeline.h"
#include "verbatim/error.h"

namespace verbatim::report {
namespace {

using nlohmann::json;

constexpr std::array kOutputs{"o", "lse", "dq", "dk", "dv"};
constexpr const char* kDot = "&#8202;&middot;&#8202;";

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// A two-column table of facts.
class Facts {
 public:
  void add(std::string_view name, std::string_view value) {
    rows_ +=
        fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), escape(value));
  }
  std::string html() const { return "<table><tbody>\n" + rows_ + "</tbody></table>\n"; }

 private:
  std::string rows_;
};

/// A grid with a header line; cells are HTML.
class Grid {
 public:
  explicit Grid(const std::vector<std::string>& titles) {
    for (const auto& title : titles) head_ += "<th scope=\"col\">" + escape(title) + "</th>";
  }
  void add(const std::vector<std::string>& cells) {
    body_ += "<tr>";
    for (const auto& cell : cells) body_ += "<td>" + cell + "</td>";
    body_ += "</tr>\n";
  }
  std::string html() const {
    return "<table><thead><tr>" + head_ + "</tr></thead><tbody>\n" + body_ + "</tbody></table>\n";
  }

 private:
  std::string head_, body_;
};

std::string code(std::string_view text) { return "<code>" + escape(text) + "</code>"; }

std::string verdict(bool good, std::string_view yes, std::string_view no) {
  return fmt::format("<span class=\"{}\">{}</span>", good ? "good" : "bad",
                     escape(good ? yes : no));
}

std::string section(std::string_view title, std::string_view lead, const std::string& body) {
  return fmt::format("<section>\n<h2>{}</h2>\n<p class=\"lead\">{}</p>\n{}</section>\n", title,
                     lead, body);
}

std::string panel(const std::string& body) { return "<div class=\"panel\">\n" + body + "</div>\n"; }

std::string headline(const json& result) {
  std::string title = escape(text_of(result.at("command")));
  if (!result.contains("problem")) return title;
  const json& p = result.at("problem");
  const auto length = [&](const char* name) { return count(p.at(name).get<int64_t>()); };
  title = result.contains("mask") ? escape(text_of(result["mask"].at("name"))) : title;
  title += " " + std::string(kDot) + " " + length("q_len");
  if (p.at("q_len") != p.at("kv_len")) title += " to " + length("kv_len");
  title += " tokens " + std::string(kDot) + " ";
  title +=
      fmt::format("{}:{} heads of {}", length("q_heads"), length("kv_heads"), length("head_dim"));
  if (p.at("batch") != 1) title += fmt::format(" {} batch {}", kDot, length("batch"));
  return title + " " + kDot + " " + escape(text_of(p.at("dtype")));
}

std::string cards(const json& result) {
  std::string html;
  const auto card = [&](const std::string& value, const std::string& name) {
    html +=
        "<div class=\"card\"><b>" + escape(value) + "</b><span>" + escape(name) + "</span></div>\n";
  };
  if (result.contains("time_ms")) {
    for (const auto& [pass, ms] : result["time_ms"].items()) {
      std::string label = pass;
      if (result.contains("gflops") && result["gflops"].contains(pass)) {
        label += ", " + number(result["gflops"][pass]) + " GFLOP/s";
      }
      card(milliseconds(ms), label);
    }
  }
  if (result.contains("check") && !result["check"].at("error_ratio").empty()) {
    double worst = 0;
    for (const auto& [name, ratio] : result["check"]["error_ratio"].items()) {
      worst = std::max(worst, ratio.get<double>());
    }
    card(fmt::format("{:.2f}", worst), "largest error ratio of finite elements, 2 allowed");
  }
  if (result.contains("workspace_bytes")) {
    card(bytes(result["workspace_bytes"]), "workspace");
  }
  if (result.contains("plan") && result["plan"].is_object()) {
    const json& plan = result["plan"];
    const double bound = plan.value("lower_bound", 0.0);
    if (bound > 0) {
      card(percent(plan.at("makespan").get<double>() / bound - 1), "predicted above lower bound");
    }
  }
  if (result.contains("mask")) {
    card(percent(result["mask"].at("density")), "of all positions visible");
  }
  return "<div class=\"cards\">\n" + html + "</div>\n";
}

std::string mask_section(const json& result) {
  const json& mask = result.at("mask");
  Facts facts;
  facts.add("pattern", text_of(mask.at("name")));
  for (const auto& [name, value] : mask.at("params").items()) {
    std::string shown = text_of(value);
    if (shown.size() > 160) shown = shown.substr(0, 157) + "...";
    facts.add(name, shown);
  }
  facts.add("visible positions", count(mask.at("area")));
  facts.add("density", percent(mask.at("density")));
  const json& tiles = mask.at("tiles");
  facts.add("tile", fmt::format("{} queries x {} keys", tiles.at("q").get<int64_t>(),
                                tiles.at("kv").get<int64_t>()));
  facts.add("full tiles", count(tiles.at("full")));
  facts.add("partial tiles", count(tiles.at("partial")));
  facts.add("empty tiles, skipped", count(tiles.at("empty")));
  std::string body = facts.html();
  if (mask.contains("definition")) {
    const Mask drawn = mask_from_json(mask["definition"].dump());
    const Picture picture = mask_picture(
        drawn.head(0, 0), {tiles.at("q").get<int64_t>(), tiles.at("kv").get<int64_t>()});
    body = "<div class=\"split\"><div>" + picture.inline_svg("The mask and its tiles") +
           "</div><div>" + body + "</div></div>\n";
  }
  return section("The mask",
                 "Which keys each query sees. Full tiles need no masking, partial tiles are cut by "
                 "the mask's edge, empty tiles cost nothing.",
                 panel(body));
}

void add_plan(const json& plan, Grid& grid) {
  const double makespan = plan.value("makespan", 0.0), bound = plan.value("lower_bound", 0.0);
  grid.add({escape(text_of(plan.at("pass"))), code(text_of(plan.at("order"))),
            escape(text_of(plan.at("placement"))), escape(text_of(plan.at("level"))),
            cycles(makespan), cycles(bound),
            bound > 0 ? fmt::format("{:.3f}", makespan / bound) : "",
            cycles(plan.value("stall", 0.0)), bytes(plan.at("bytes")),
            milliseconds(plan.at("planning_ms")), code(text_of(plan.at("fingerprint")))});
}

std::string plan_section(const json& result) {
  Grid grid({"pass", "order", "placement", "level", "makespan", "lower bound", "ratio", "stall",
             "plan", "planned in", "fingerprint"});
  const json& plan = result.at("plan");
  const json& first = plan.is_array() ? plan.at(0) : plan;
  if (plan.is_array()) {
    for (const json& one : plan) add_plan(one, grid);
  } else {
    add_plan(plan, grid);
    if (result.contains("forward_plan")) add_plan(result["forward_plan"], grid);
  }
  std::string body;
  if (result.contains("timelines")) {
    std::vector<Timeline> timelines;
    for (const json& one : result["timelines"]) timelines.push_back(timeline_from_json(one.dump()));
    body += gantt_picture(timelines, first.at("pass") == "backward")
                .inline_svg("The plan over time, one lane per worker");
  }
  body += grid.html();
  return section("The plan",
                 "Each lane is a worker; each bar a chain of tiles whose sums stay in registers. "
                 "The order of the sums fixes the bits, their place in time only the speed.",
                 panel(body));
}

std::string bits_section(const json& result) {
  const json& bits = result.at("bits");
  const json none = json::object();
  const bool checked = result.contains("check");
  const json& outputs = checked ? result["check"].at("outputs") : none;
  Grid grid({"output", "sha256 of its bytes", "error ratio"});
  for (const char* name : kOutputs) {
    if (!bits.at("sha256").contains(name)) continue;
    std::string ratio;
    if (outputs.contains(name)) {
      const double value = outputs[name].at("ratio");
      const int64_t wrong = outputs[name].at("nonfinite_mismatches");
      const std::string text = error_ratio(value, wrong);
      ratio = verdict(value <= 2 && wrong == 0, text, text);
    }
    grid.add({code(name), code(text_of(bits["sha256"][name])), ratio});
  }
  return section("The bits",
                 fmt::format("{} runs of the same plan, compared byte by byte. The error ratio is "
                             "our largest error over that of the plain computation in the same "
                             "type, both against double precision, or over what rounding alone may "
                             "do to the row, where that is more; up to 2 passes.",
                             bits.at("repeats").get<int64_t>()),
                 panel(grid.html()));
}

std::string audit_section(const json& result) {
  Grid grid({"what was changed", "", "runs", "sha256 over all outputs", "verdict"});
  for (const json& row : result.at("audit")) {
    const bool same = row.at("identical");
    grid.add(
        {escape(text_of(row.at("check"))), escape(text_of(row.at("detail"))), count(row.at("runs")),
         code(text_of(row.at("sha256")).substr(0, 16)),
         verdict(same, "same bits", row.at("promised") ? "DIFFERS" : "differs, not promised")});
  }
  return section("The audit",
                 "The same problem under everything that must not matter. Each line is compared "
                 "with the first run, byte by byte.",
                 panel(grid.html()));
}

std::string banner(const json& result) {
  const auto pill = [](bool good, const std::string& text) {
    return fmt::format("<span class=\"verdict{}\">{}</span>\n", good ? "" : " bad", escape(text));
  };
  if (result.contains("identical")) {
    const bool same = result["identical"];
    return pill(same, same ? "audit passed: identical bits" : "audit failed: bits differ");
  }
  if (!result.contains("bits")) return {};
  const bool same = result["bits"].at("identical");
  const auto runs = result["bits"].at("repeats").get<int64_t>();
  std::string pills =
      pill(same, fmt::format("{} runs, {}", runs, same ? "identical bits" : "bits differ"));
  if (result.contains("check") && result["check"].contains("correct")) {
    const bool correct = result["check"]["correct"];
    pills += pill(correct, correct ? "correct" : "WRONG");
  }
  return pills;
}

/// `text` with each {{name}} replaced by what `slots` hold.
std::string fill(std::string_view text, const std::map<std::string_view, std::string>& slots) {
  std::string filled;
  for (size_t begin; (begin = text.find("{{")) != std::string_view::npos;) {
    const size_t end = text.find("}}", begin);
    filled += text.substr(0, begin);
    filled += slots.at(text.substr(begin + 2, end - begin - 2));
    text.remove_prefix(end + 2);
  }
  return filled.append(text);
}

std::string page(const json& result) {
  std::string line;
  const auto add = [&](const std::string& part) { line += (line.empty() ? "" : ", ") + part; };
  if (result.contains("level")) add("level " + text_of(result["level"]));
  if (result.contains("device")) add("on " + text_of(result["device"]));
  if (result.contains("threads")) add(text_of(result["threads"]) + " threads");
  std::string body = cards(result);
  if (result.contains("mask")) body += mask_section(result);
  if (result.contains("plan")) body += plan_section(result);
  if (result.contains("bits")) body += bits_section(result);
  if (result.contains("audit")) body += audit_section(result);
  if (result.contains("arguments")) {
    std::string command = "verbatim";
    for (const json& argument : result["arguments"]) command += " " + text_of(argument);
    body += section("Again", "The command that made these numbers.",
                    "<code class=\"command\">" + escape(command) + "</code>\n");
  }
  return fill(kPage, {{"palette", std::string(kPalette)},
                      {"title", headline(result)},
                      {"lead", "<p>" + escape(line) + "</p>\n" + banner(result)},
                      {"body", body},
                      {"version", escape(text_of(result.at("version")))}});
}

}  // namespace

std::string html_report(const std::string& result_json) {
  try {
    return page(json::parse(result_json));
  } catch (const json::exception& error) {
    throw Error(ErrorCode::invalid_argument, "report",
                std::string("not a saved result of this tool: ") + error.what());
  }
}

}  // namespace verbatim::report
