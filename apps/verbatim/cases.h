// Named lists of problems: shapes and masks that others have published numbers for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "options.h"

namespace verbatim::app {

/// One problem, written as the options that mean it.
struct Case {
  std::string set, name, words;
};

/// --set and --match.
void add_case_options(Command command, std::string& sets, std::string& match);
/// `given` without sets, else their cases whose names match. Throws Error when there is none, or
/// when `given` says something beside a set.
std::vector<Case> chosen_cases(const std::string& sets, const std::string& match,
                               const Case& given);

/// The problem and mask that `words` mean, where they name no size or scalar those of `plans`;
/// throws Error when they are none.
struct CaseProblem {
  Problem problem;
  Mask mask;
};
CaseProblem parse_case(const std::string& words,
                       const std::vector<std::shared_ptr<const Plan>>& plans = {});

}  // namespace verbatim::app
