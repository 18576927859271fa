// One page a person enjoys, from the JSON that a command saved.
#pragma once

#include <string>

namespace verbatim::report {

/// A self-contained HTML page (no script, no outside resource, CSP default-src 'none') of a result
/// of `run`, `plan`, `mask` or `verify` (docs/schema.md): headline numbers, the mask, the plan over
/// time, the bits. Sections whose data the result does not hold are left out. Every string of the
/// result is escaped. Throws Error(invalid_argument) when the text is no such result.
std::string html_report(const std::string& result_json);

}  // namespace verbatim::report
