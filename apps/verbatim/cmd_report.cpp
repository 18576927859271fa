#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string_view>

#include "core/file.h"
#include "core/json.h"
#include "options.h"
#include "report/html.h"
#include "result.h"

namespace verbatim::app {
namespace {

constexpr std::array<std::string_view, 5> kDrawn{"run", "plan", "trace", "mask", "verify"};

struct ReportCommand {
  std::string source, page;
  OutputOptions output;

  int run() const;
  void check_kind(const Json& result) const;
  std::string page_of(const std::string& text) const;
};

/// A page of a result that has nothing to draw would be empty.
void ReportCommand::check_kind(const Json& result) const {
  const auto command = result.find("command");
  const bool named = command != result.end() && command->is_string();
  const std::string kind = named ? command->get<std::string>() : "";
  if (std::ranges::find(kDrawn, kind) != kDrawn.end()) return;
  fail("there is no page of such a result",
       {"result", kind.empty() ? source + " without a command" : "what " + kind + " wrote",
        fmt::format("what {} wrote", fmt::join(kDrawn, ", ")),
        kind == "bench" ? fmt::format("python -m verbatim_attn.bench --from {} --html PAGE", source)
                        : "verbatim run --json FILE"});
}

/// Of a result that lacks what is drawn, says which file that is.
std::string ReportCommand::page_of(const std::string& text) const try {
  return report::html_report(text);
} catch (const Error& error) {
  fail(error.what(), {"result", source, fmt::format("what {} wrote", fmt::join(kDrawn, ", ")),
                      "verbatim run --json FILE"});
}

int ReportCommand::run() const {
  const std::string text = read_text(source);
  check_kind(parse_json(text, source));
  const std::string path =
      page.empty() ? std::filesystem::path(source).replace_extension(".html").string() : page;
  require_writable(path, "--output");
  std::error_code none;
  if (std::filesystem::equivalent(source, path, none))
    fail("the page would replace the result", {"--output", path, "another file", path + ".html"});
  require_apart({{"--output", path}, {"--json", output.json}});
  write_file(path, page_of(text));
  Json result = new_result("report");
  result["source"] = source;
  result["page"] = path;
  save(output, result);
  fmt::print("{}\n", path);
  return 0;
}

}  // namespace

void add_report(Command root, Action& action) {
  auto command = std::make_shared<ReportCommand>();
  const Command sub = root.add_subcommand("report", "Turn a saved result into one HTML page");
  sub.footer(
      "Example: verbatim report run.json --output run.html\n"
      "Reads what run, plan, trace, mask or verify wrote with --json. The page needs no network.");
  sub.add_option("result", command->source, "The JSON of a command").required().type_name("FILE");
  sub.add_option("--output", command->page, "The page (default: the result's name with .html)")
      .type_name("FILE")
      .writes_file();
  command->output.add_to(sub, false);
  sub.callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
