#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "core/file.h"
#include "core/json.h"
#include "options.h"
#include "report/html.h"

namespace verbatim::app {
namespace {

struct ReportCommand {
  std::string result, output;

  int run() const {
    const std::string text = read_text(result);
    parse_json(text, result);
    const std::string path =
        output.empty() ? std::filesystem::path(result).replace_extension(".html").string() : output;
    write_file(path, report::html_report(text));
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
  sub->add_option("result", command->result, "The JSON of a command")
      ->required()
      ->type_name("FILE");
  sub->add_option("--output", command->output, "The page (default: the result's name with .html)")
      ->type_name("FILE")
      ->check(why_not_writable);
  sub->callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
