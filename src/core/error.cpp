#include "verbatim/error.h"

namespace verbatim {
namespace {

std::string compose(const std::string& operation, const std::string& message,
                    const Error::Details& details) {
  std::string text = "[" + operation + "] " + message;
  if (!details.got.empty()) text += "; got " + details.got;
  if (!details.expected.empty()) text += ", expected " + details.expected;
  if (!details.nearest.empty()) text += " (nearest: " + details.nearest + ")";
  return text;
}

}  // namespace

Error::Error(ErrorCode code, std::string operation, std::string message, Details details)
    : std::runtime_error(compose(operation, message, details)),
      code_(code),
      operation_(std::move(operation)),
      details_(std::move(details)) {}

Error::Error(ErrorCode code, std::string operation, std::string message)
    : Error(code, std::move(operation), std::move(message), {}) {}

}  // namespace verbatim
