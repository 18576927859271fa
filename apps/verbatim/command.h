// Commands and their options as those who declare them see them. The parser behind it takes longer
// to compile than most commands: command.cpp and main.cpp alone read its headers.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace verbatim::app {

/// An option of a command; each call returns the option itself.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  /// The heading that --help puts it under.
  Option group(const std::string& name) const;
  /// What --help says of its value: "N", "FILE".
  Option type_name(const std::string& name) const;
  /// --help shows what the variable holds now.
  Option capture_default_str() const;
  Option required() const;
  /// How many values it takes.
  Option expected(int least, int most) const;
  Option excludes(Option other) const;
  Option needs(Option other) const;
  /// A file or folder that the command makes: it must be one that can be made, and no other
  /// output's.
  Option writes_file() const;
  Option writes_folder() const;
  Option range(int least, int most) const;

 private:
  CLI::Option* option_;
};

/// A command of the tool, or the whole tool: a name for what main() owns.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}
  Command add_subcommand(const std::string& name, const std::string& help) const;
  void require_subcommand() const;
  /// What --help ends with.
  void footer(const std::string& text) const;
  /// Runs when the line is parsed and has this command.
  void callback(std::function<void()> f) const;
  /// "--name", or "name" of what stands without one. T: a number, text, an optional of these, or a
  /// list of texts; `value` keeps what it holds when the option is not given. No word may be empty,
  /// which stands for an option that is not given.
  template <class T>
  Option add_option(const std::string& name, T& value, const std::string& help) const;
  Option add_flag(const std::string& name, bool& value, const std::string& help) const;
  Option option(const std::string& name) const;
  /// The options of `groups` that were given, as a shell and parse_words() take them again.
  std::string words_of(const std::vector<std::string>& groups) const;

 private:
  CLI::App* app_;
};

/// Parses `words` as options that `add` declares. Throws Error with the parser's message.
void parse_words(const std::string& words, const std::function<void(Command)>& add);

}  // namespace verbatim::app
