// The tool: one command a file, one table a command. Only apps write to the terminal.
#include <fcntl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/names.h"
#include "options.h"
#include "processes.h"
#include "result.h"

namespace verbatim::app {
namespace {

/// The parser's message, with what it expected or, for an unknown option, probably meant.
int usage_error(const CLI::App& root, const CLI::ParseError& error) {
  std::string message = error.what();
  const std::vector<std::string> unknown = root.remaining(true);
  if (!unknown.empty()) {
    std::vector<std::string> known;
    for (const CLI::App* command = &root; !command->get_subcommands().empty();) {
      command = command->get_subcommands().front();
      for (const CLI::Option* option : command->get_options()) known.push_back(option->get_name());
    }
    message += fmt::format(" (nearest: {})", nearest_name(unknown.front(), known));
  }
  return refuse_usage(Error(ErrorCode::invalid_argument, "verbatim", message));
}

/// An unknown command is named with the nearest one; the parser would only miss a command.
void require_command(const CLI::App& root, int argc, const char* const* argv) {
  const CLI::App* app = &root;
  for (int i = 1; i < argc && argv[i][0] != '-' && !app->get_subcommands({}).empty(); ++i) {
    std::vector<std::string> known;
    for (const CLI::App* command : app->get_subcommands({})) known.push_back(command->get_name());
    require_one_of(argv[i], "command", known);
    app = app->get_subcommand(argv[i]);
  }
}

/// Refuses what is no UTF-8, as results and pages hold the arguments as JSON, and --option= without
/// a value, for which the parser would take the next word.
void check_words(const std::vector<std::string>& words) {
  using Invalid = Json::error_handler_t;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string option = words[i].substr(0, words[i].find('='));
    if (option.starts_with("--") && words[i] == option + "=")
      fail("an option has a value", {option, "''", "one, or not the option at all", ""});
    const std::string shown = Json(words[i]).dump(-1, ' ', false, Invalid::replace);
    if (shown == Json(words[i]).dump(-1, ' ', false, Invalid::ignore)) continue;
    const bool value = i > 0 && words[i - 1].starts_with("--");
    fail("not UTF-8",
         {value ? words[i - 1] : fmt::format("argument {}", i + 1), shown, "text in UTF-8", ""});
  }
}

/// Where one of the standard streams is closed, the next file would take its number, and what is
/// printed would land there: this takes it first, opened so that to print fails.
void occupy_standard_streams() {
  for (const int fd : {0, 1, 2})
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

/// The exit code, which is no success where what was printed is lost.
int flush_stdout(int code) {
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost || code >= kBadInput) return code;
  const int broken = explain(
      std::runtime_error(fmt::format("stdout: could not write all of it: {}", strerror(errno))));
  return code == 0 ? broken : code;
}

int main_program(int argc, const char* const* argv) {
  CLI::App root("Exact attention whose gradients are the same bits every time");
  root.name("verbatim");
  root.set_version_flag("--version", std::string("verbatim ") + VERBATIM_VERSION);
  root.require_subcommand(1);
  root.footer(
      "Exit codes: 0 done; 1 a bit differs or a result is wrong; 2 bad input, nothing was "
      "written;\n"
      "3 the device or the system failed.");
  const Command command(root);
  Action action;
  add_info(command, action);
  add_mask(command, action);
  add_plan(command, action);
  add_run(command, action);
  add_verify(command, action);
  add_trace(command, action);
  add_bench(command, action);
  add_calibrate(command, action);
  add_tune(command, action);
  add_tl(command, action);
  add_report(command, action);
  remember_arguments(argc, argv);
  try {
    check_words(arguments());
    require_command(root, argc, argv);
    root.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return root.exit(help);
  } catch (const CLI::ParseError& error) {
    return usage_error(root, error);
  } catch (const Error& error) {
    return refuse_usage(error);
  } catch (const std::exception& error) {
    return explain(error);
  }
  try {
    return action();
  } catch (const std::exception& error) {
    return explain(error);
  }
}

}  // namespace
}  // namespace verbatim::app

int main(int argc, char** argv) {
  verbatim::app::occupy_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of its write, as any is
  return verbatim::app::flush_stdout(verbatim::app::main_program(argc, argv));
}
