#include <fmt/format.h>

#include <algorithm>

#include "tl/kernel.h"
#include "verbatim/error.h"

namespace verbatim::tl {
namespace {

/// Whether a byte starts a character of UTF-8.
bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

/// The line around byte `at`, with its first byte, at most some characters of it.
std::string_view line_around(std::string_view text, int64_t at, int64_t& begin) {
  const size_t place = std::min(static_cast<size_t>(at), text.size());
  const size_t before = place == 0 ? std::string_view::npos : text.rfind('\n', place - 1);
  begin = before == std::string_view::npos ? 0 : static_cast<int64_t>(before) + 1;
  return text.substr(begin, text.find('\n', place) - static_cast<size_t>(begin));
}

}  // namespace

Place place_of(std::string_view text, int64_t at) {
  int64_t begin = 0;
  line_around(text, at, begin);
  Place place;
  place.line += std::count(text.begin(), text.begin() + begin, '\n');
  place.column +=
      std::count_if(text.begin() + begin, text.begin() + std::min<int64_t>(at, std::ssize(text)),
                    starts_character);
  return place;
}

std::string describe(const Diagnostic& d, std::string_view text, std::string_view file) {
  constexpr int64_t kShown = 120;  // characters of a line
  const Place place = place_of(text, d.begin);
  int64_t begin = 0;
  const std::string_view line = line_around(text, d.begin, begin);
  std::string shown, caret;
  for (int64_t i = 0; i < std::ssize(line) && i < kShown; ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    shown += byte < ' ' || byte == 0x7f ? ' ' : line[i];
  }
  const int64_t length = std::max<int64_t>(1, std::min(d.end - d.begin, begin + kShown - d.begin));
  if (place.column <= kShown) {
    caret = std::string(place.column - 1, ' ') + "^";
    caret += std::string(
        std::max<int64_t>(0, std::min(length, begin + std::ssize(line) - d.begin) - 1), '~');
  }
  std::string message = fmt::format("{}:{}:{}: {}: {}\n  {}\n", file, place.line, place.column,
                                    d.code, d.reason, shown);
  if (!caret.empty()) message += "  " + caret + "\n";
  return message + "  right would be: " + d.right + "\n";
}

std::string described(const std::vector<Diagnostic>& faults, std::string_view text,
                      std::string_view file) {
  std::string all;
  for (const Diagnostic& fault : faults) all += "\n" + describe(fault, text, file);
  return all;
}

Examined examine_code(std::string_view text, std::string_view file, const CheckOptions& options,
                      const char* operation) {
  Examined found = examine(text, options);
  if (found.faults.empty()) return found;
  const std::string faults = described(found.faults, text, file);
  const bool lacks_sizes = std::ranges::find(found.faults, "parameter", &Diagnostic::code) !=
                           found.faults.end();  // as every sketch does, and little TL code
  if (lacks_sizes && check(text, {.target = {}, .level = options.level, .sketch = true}).empty())
    throw Error(ErrorCode::invalid_argument, operation, "the program is a sketch" + faults,
                {"kernel", "a sketch", "TL code", "what `verbatim tl reason` makes of it"});
  throw Error(ErrorCode::invalid_argument, operation, "the program is refused" + faults);
}

std::string apply_edits(std::string_view text, std::span<const Diagnostic> faults) {
  std::vector<Edit> edits;
  for (const Diagnostic& fault : faults)
    if (fault.edit) edits.push_back(*fault.edit);
  std::ranges::stable_sort(edits, {}, &Edit::begin);
  std::string result;
  int64_t done = 0;
  for (const Edit& edit : edits) {
    if (edit.begin < done) continue;
    result += text.substr(done, edit.begin - done);
    result += edit.text;
    done = edit.end;
  }
  return result + std::string(text.substr(done));
}

}  // namespace verbatim::tl
