#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "report/format.h"
#include "report/gantt.h"
#include "report/mask_picture.h"
#include "report/timeline.h"
#include "verbatim/error.h"

namespace verbatim::report {
namespace {

using nlohmann::json;

constexpr std::string_view kPageStyle = R"(
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 ui-sans-serif,system-ui,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:36px 24px 64px}
header p{margin:0;color:var(--muted)}
h1{font-size:30px;line-height:1.2;letter-spacing:-.01em;margin:6px 0 8px}
h2{font-size:19px;margin:44px 0 4px}
.lead{color:var(--muted);max-width:46em;margin:0 0 16px}
.mark{font-size:13px;letter-spacing:.14em;text-transform:uppercase}
.verdict{display:inline-block;margin-top:14px;padding:5px 14px;border-radius:999px;color:#fff;
font-weight:600;background:var(--good)}
.verdict.bad{background:var(--bad)}
@media (prefers-color-scheme:dark){.verdict{color:#12161a}}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(148px,1fr));gap:12px;margin-top:24px}
.card,.panel{background:var(--card);border:1px solid var(--faint);border-radius:12px}
.card{padding:12px 16px}.panel{padding:16px}
.card b{display:block;font-size:22px;line-height:1.25;font-weight:650;
font-variant-numeric:tabular-nums}
.card span{color:var(--muted);font-size:13px}
.split{display:grid;grid-template-columns:minmax(0,1.15fr) minmax(0,1fr);gap:20px;align-items:start}
@media (max-width:760px){.split{grid-template-columns:1fr}}
svg{display:block;width:100%;height:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
td,th{padding:6px 14px 6px 0;border-bottom:1px solid var(--faint);text-align:left;
vertical-align:top;font-weight:400}
thead th{color:var(--muted);font-size:13px;white-space:nowrap}
td:last-child,th:last-child{padding-right:0}tbody tr:last-child>*{border-bottom:0}
tbody th{color:var(--muted);white-space:nowrap}
code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.command{display:block;padding:12px 16px;background:var(--empty);border-radius:10px}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
footer{margin-top:48px;color:var(--muted);font-size:13px}
)";

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
    return "<div class=\"scroll\"><table><thead><tr>" + head_ + "</tr></thead><tbody>\n" + body_ +
           "</tbody></table></div>\n";
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
    card(fmt::format("{:.2f}", worst), "largest error ratio, 2 allowed");
  }
  if (result.contains("workspace_bytes")) {
    card(bytes(result["workspace_bytes"]), "workspace");
  }
  if (result.contains("plan") && result["plan"].is_object()) {
    const json& plan = result["plan"];
    const double bound = plan.at("lower_bound");
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
  const double makespan = plan.at("makespan"), bound = plan.at("lower_bound");
  grid.add({escape(text_of(plan.at("pass"))), code(text_of(plan.at("order"))),
            escape(text_of(plan.at("placement"))), escape(text_of(plan.at("level"))),
            cycles(makespan), cycles(bound),
            bound > 0 ? fmt::format("{:.3f}", makespan / bound) : "", cycles(plan.at("stall")),
            bytes(plan.at("bytes")), milliseconds(plan.at("planning_ms")),
            code(text_of(plan.at("fingerprint")))});
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
  const json& ratios = checked ? result["check"].at("error_ratio") : none;
  Grid grid({"output", "sha256 of its bytes", "error ratio"});
  for (const char* name : kOutputs) {
    if (!bits.at("sha256").contains(name)) continue;
    std::string ratio;
    if (ratios.contains(name)) {
      const double value = ratios[name];
      ratio = verdict(value <= 2, fmt::format("{:.3f}", value), fmt::format("{:.3f}", value));
    }
    grid.add({code(name), code(text_of(bits["sha256"][name])), ratio});
  }
  return section("The bits",
                 fmt::format("{} runs of the same plan, compared byte by byte. The error ratio is "
                             "our largest error over that of the plain computation in the same "
                             "type, both against double precision; up to 2 passes.",
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
  return pill(same, fmt::format("{} runs, {}", runs, same ? "identical bits" : "bits differ"));
}

std::string page(const json& result) {
  const std::string title = headline(result);
  std::string body = "<header>\n<p class=\"mark\">Verbatim</p>\n<h1>" + title + "</h1>\n<p>";
  std::string line;
  const auto add = [&](const std::string& part) { line += (line.empty() ? "" : ", ") + part; };
  if (result.contains("level")) add("level " + text_of(result["level"]));
  if (result.contains("device")) add("on " + text_of(result["device"]));
  if (result.contains("threads")) add(text_of(result["threads"]) + " threads");
  body += escape(line) + "</p>\n" + banner(result) + "</header>\n" + cards(result);
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
  body += "<footer>verbatim " + escape(text_of(result.at("version"))) + "</footer>\n";

  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
         "style-src 'unsafe-inline'\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         title + "</title>\n<style>" + std::string(kPalette) + std::string(kPageStyle) +
         "</style>\n</head>\n<body>\n<main>\n" + body + "</main>\n</body>\n</html>\n";
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
