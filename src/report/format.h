// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace verbatim::report {

/// 33558528 -> "33,558,528".
std::string count(int64_t value);
/// 1536 -> "1.5 KiB".
std::string bytes(int64_t value);
/// Milliseconds with three significant digits and a unit: "812 us", "3.42 ms", "1.20 s".
std::string milliseconds(double ms);
/// Three significant digits, never an exponent below 10^7: "0.0123", "412", "3.5e+09".
std::string number(double value);
/// Four digits for cycles and the like, thousands separated when large.
std::string cycles(double value);
/// An output's error ratio, with the elements that no ratio counts: "0.402, 25,600 NaN or inf".
std::string error_ratio(double ratio, int64_t nonfinite_mismatches);
/// 0.4137 -> "41.4 %".
std::string percent(double fraction);

/// `text` with & < > " ' replaced, safe inside HTML and SVG text and attributes.
std::string escape(std::string_view text);

}  // namespace verbatim::report
