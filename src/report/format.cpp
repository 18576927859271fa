#include "report/format.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace verbatim::report {

std::string count(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string bytes(int64_t value) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB"};
  if (value < 1024) return fmt::format("{} B", value);
  double scaled = static_cast<double>(value);
  size_t unit = 0;
  for (; scaled >= 1023.95 && unit + 1 < units.size(); ++unit) scaled /= 1024;
  return fmt::format("{:.{}f} {}", scaled, scaled < 99.95 ? 1 : 0, units[unit]);
}

std::string number(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::abs(value);
  if (size >= 1e7) return fmt::format("{:.2e}", value);
  if (size >= 999.5) return count(std::llround(value));
  return fmt::format("{:.3g}", value);
}

std::string milliseconds(double ms) {
  if (ms < 1) return number(ms * 1e3) + " us";
  if (ms < 1000) return number(ms) + " ms";
  return number(ms / 1e3) + " s";
}

std::string cycles(double value) {
  const double size = std::abs(value);
  if (size < 1000) return fmt::format("{:.4g}", value);
  return size < 1e18 ? count(std::llround(value)) : number(value);
}

std::string error_ratio(double ratio, int64_t nonfinite_mismatches) {
  const std::string text = fmt::format("{:.3f}", ratio);
  return nonfinite_mismatches == 0
             ? text
             : fmt::format("{}, {} NaN or inf", text, count(nonfinite_mismatches));
}

std::string percent(double fraction) {
  const double tenths = std::round(fraction * 1000);
  return fmt::format("{:.1f} %", tenths == 0 ? 0.0 : tenths / 10);  // never "-0.0 %"
}

std::string escape(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        // Control characters are not allowed in XML, escaped or not.
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') safe += c;
    }
  }
  return safe;
}

}  // namespace verbatim::report
