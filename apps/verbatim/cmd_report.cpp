#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "core/file.h"
#include "core/json.h"
#include "options.h"
#include "report/html.h"
#include "result.h"

namespace verbatim::app {
namespace {

struct ReportCommand {
  std::string source, page;
  OutputOptions output;

  int run() const {
    const std::string text = read_text(source);
    parse_json(text, source);
    const std::string path =
        page.empty() ? std::filesystem::path(source).replace_extension(".html").string() : page;
    write_file(path, report::html_report(text));
    Json result = new_result("report");
    result["source"] = source;
    result["page"] = path;
    save(output, result);
    fmt::print("{}\n", path);
    return 0;
  }
};

}  // namespace

void add_report(CLI::App& root, Action& action) {
  auto command = std::make_shared<ReportCommand>();
  CLI::App* sub = root.add_subcommand("report", "Turn a saved result into one HTML page");
  sub->footer(
      "Example: verbatim report run.json --output run.html\n"
      "Reads what run, plan, trace, mask or verify wrote with --json. The page needs no network.");
  sub->add_option("result", command->source, "The JSON of a command")
      ->required()
      ->type_name("FILE");
  sub->add_option("--output", command->page, "The page (default: the result's name with .html)")
      ->type_name("FILE")
      ->check(why_not_writable);
  command->output.add_to(*sub, false);
  sub->callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
