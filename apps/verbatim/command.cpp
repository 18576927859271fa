#include "command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "options.h"

namespace verbatim::app {
namespace {

constexpr const char* kOutput = "output";  // the validator of what a command writes

template <class T>
struct Within {
  using Type = T;
};
template <class T>
struct Within<std::optional<T>> {
  using Type = T;
};

/// What is wrong with a word as a T; "" when nothing is, and a number then stands in its plain
/// form. The parser alone takes 0100 for 64 and -1 for 2^64 - 1, and clamps what is too large.
template <class T>
std::string read_word(std::string& word) {
  if (word.empty()) return "an option has a value; got '', expected one, or not the option at all";
  if constexpr (std::is_arithmetic_v<T>) {
    T value{};
    const char* const end = word.data() + word.size();
    const auto [next, error] = std::from_chars(word.data(), end, value);
    if (next != end || error != std::errc{})
      return fmt::format("the value does not fit; got '{}', expected {}", word,
                         std::is_integral_v<T> ? fmt::format("a decimal integer, {} to {}",
                                                             std::numeric_limits<T>::min(),
                                                             std::numeric_limits<T>::max())
                                               : "a decimal number");
    if constexpr (std::is_integral_v<T>) word = fmt::to_string(value);
  }
  return "";
}

bool is_output(CLI::Option* option) {
  try {
    option->get_validator(kOutput);
    return true;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

/// A word as a shell reads it, and split().
std::string quoted(const std::string& word) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,:/@+=%";
  if (word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

/// The words of `text` that quoted() made.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false, in_quotes = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ' && !in_quotes) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (text[i] == '\'') {
      in_quotes = !in_quotes;
    } else {
      if (text[i] == '\\' && !in_quotes) ++i;  // quoted() has a quote behind it
      words.back() += text[i];
    }
  }
  return words;
}

void check_outputs(CLI::App& app) {
  std::vector<Given> outputs, inputs;
  for (CLI::Option* option : app.get_options({}))
    for (const std::string& value : option->results())
      (is_output(option) ? outputs : inputs).emplace_back(option->get_name(), value);
  require_apart(outputs, inputs);
}

}  // namespace

Option Option::group(const std::string& name) const { return Option(option_->group(name)); }

Option Option::type_name(const std::string& name) const { return Option(option_->type_name(name)); }

Option Option::capture_default_str() const { return Option(option_->capture_default_str()); }

Option Option::required() const { return Option(option_->required()); }

Option Option::expected(int least, int most) const {
  return Option(option_->expected(least, most));
}

Option Option::excludes(Option other) const { return Option(option_->excludes(other.option_)); }

Option Option::needs(Option other) const { return Option(option_->needs(other.option_)); }

Option Option::writes_file() const { return Option(option_->check(why_not_writable, "", kOutput)); }

Option Option::writes_folder() const { return Option(option_->check(why_no_folder)); }

Option Option::range(int least, int most) const {
  return Option(option_->check(CLI::Range(least, most)));
}

Command Command::add_subcommand(const std::string& name, const std::string& help) const {
  return Command(*app_->add_subcommand(name, help));
}

void Command::require_subcommand() const { app_->require_subcommand(1); }

void Command::footer(const std::string& text) const { app_->footer(text); }

void Command::callback(std::function<void()> f) const {
  app_->callback([app = app_, f = std::move(f)] {
    check_outputs(*app);
    f();
  });
}

template <class T>
Option Command::add_option(const std::string& name, T& value, const std::string& help) const {
  using Type = typename Within<T>::Type;
  return Option(
      app_->add_option(name, value, help)->transform(CLI::Validator(read_word<Type>, "")));
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
    if (option->get_items_expected_max() > 0)
      for (const std::string& value : option->results()) words += " " + quoted(value);
  }
  return words;
}

void parse_words(const std::string& words, const std::function<void(Command)>& add) {
  CLI::App app;
  add(Command(app));
  std::vector<std::string> backwards = split(words);  // as the parser takes them
  std::ranges::reverse(backwards);
  try {
    app.parse(std::move(backwards));
  } catch (const CLI::ParseError& error) {
    fail(error.what(), {"problem", words, "options of a problem and its mask", ""});
  }
}

}  // namespace verbatim::app
