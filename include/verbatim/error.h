// The one error type of the library: what was wrong, and what would work.
#pragma once

#include <stdexcept>
#include <string>

namespace verbatim {

enum class ErrorCode {
  invalid_argument,  // the caller can fix it: exit code 2 in the tool, ValueError in Python
  unsupported,       // valid, but nothing here can do it: NotImplementedError in Python
  invalid_plan,      // a plan that is incomplete, unordered or could hang
  device,            // the GPU or its driver reported an error, or a wait expired
  io,                // a file could not be read or written
};

/// Thrown by every public function. The library itself never prints and never aborts.
class Error : public std::runtime_error {
 public:
  /// What is known about a failure; empty fields are left out of the message.
  struct Details {
    std::string
        argument;     // the argument at fault, as the caller spells it ("q_heads", "mask.window")
    std::string got;  // what was passed
    std::string expected;  // what would have been accepted
    std::string nearest;   // the nearest thing that works
  };

  /// `operation` names who complains ("plan.verify"); `message` is one sentence without a full
  /// stop.
  Error(ErrorCode code, std::string operation, std::string message, Details details);
  Error(ErrorCode code, std::string operation, std::string message);

  ErrorCode code() const { return code_; }
  const std::string& operation() const { return operation_; }
  const Details& details() const { return details_; }

 private:
  ErrorCode code_;
  std::string operation_;
  Details details_;
};

}  // namespace verbatim
