#include "command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <optional>

#include "options.h"

namespace verbatim::app {

Option Option::group(const std::string& name) const { return Option(option_->group(name)); }

Option Option::type_name(const std::string& name) const { return Option(option_->type_name(name)); }

Option Option::capture_default_str() const { return Option(option_->capture_default_str()); }

Option Option::required() const { return Option(option_->required()); }

Option Option::expected(int least, int most) const {
  return Option(option_->expected(least, most));
}

Option Option::excludes(Option other) const { return Option(option_->excludes(other.option_)); }

Option Option::needs(Option other) const { return Option(option_->needs(other.option_)); }

Option Option::check(std::string (*fault)(const std::string&)) const {
  return Option(option_->check(fault));
}

Option Option::positive() const { return Option(option_->check(CLI::PositiveNumber)); }

Option Option::range(int least, int most) const {
  return Option(option_->check(CLI::Range(least, most)));
}

Command Command::add_subcommand(const std::string& name, const std::string& help) const {
  return Command(*app_->add_subcommand(name, help));
}

void Command::require_subcommand() const { app_->require_subcommand(1); }

void Command::footer(const std::string& text) const { app_->footer(text); }

void Command::callback(std::function<void()> f) const { app_->callback(std::move(f)); }

template <class T>
Option Command::add_option(const std::string& name, T& value, const std::string& help) const {
  return Option(app_->add_option(name, value, help));
}

template Option Command::add_option(const std::string&, int32_t&, const std::string&) const;
template Option Command::add_option(const std::string&, int64_t&, const std::string&) const;
template Option Command::add_option(const std::string&, uint64_t&, const std::string&) const;
template Option Command::add_option(const std::string&, double&, const std::string&) const;
template Option Command::add_option(const std::string&, std::string&, const std::string&) const;
template Option Command::add_option(const std::string&, std::optional<int32_t>&,
                                    const std::string&) const;
template Option Command::add_option(const std::string&, std::optional<int64_t>&,
                                    const std::string&) const;
template Option Command::add_option(const std::string&, std::optional<double>&,
                                    const std::string&) const;
template Option Command::add_option(const std::string&, std::optional<std::string>&,
                                    const std::string&) const;
template Option Command::add_option(const std::string&, std::vector<std::string>&,
                                    const std::string&) const;

Option Command::add_flag(const std::string& name, bool& value, const std::string& help) const {
  return Option(app_->add_flag(name, value, help));
}

Option Command::option(const std::string& name) const { return Option(app_->get_option(name)); }

std::string Command::words_of(const std::vector<std::string>& groups) const {
  std::string words;
  for (const CLI::Option* option : app_->get_options()) {
    const bool wanted = std::ranges::find(groups, option->get_group()) != groups.end();
    if (!wanted || option->count() == 0) continue;
    words += (words.empty() ? "" : " ") + option->get_name();
    if (option->get_items_expected_max() > 0) words += " " + option->as<std::string>();
  }
  return words;
}

void parse_words(const std::string& words, const std::function<void(Command)>& add) {
  CLI::App app;
  add(Command(app));
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    fail(error.what(), {"problem", words, "options of a problem and its mask", ""});
  }
}

}  // namespace verbatim::app
