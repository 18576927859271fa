#include "cases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>

#include "bench/workloads.h"
#include "result.h"

namespace verbatim::app {
namespace {

/// A parameter of a mask as its option takes it.
std::string text_of(const Json& value) {
  if (!value.is_array()) return value.dump();
  std::vector<std::string> entries;
  for (const Json& entry : value) entries.push_back(entry.dump());
  return fmt::format("{}", fmt::join(entries, ","));
}

Case case_of(const std::string& set, const bench::Workload& one) {
  std::string mask = "--mask " + one.mask;
  for (const auto& [name, value] : one.params.items()) {
    std::string option = name;
    std::ranges::replace(option, '_', '-');
    mask += fmt::format(" --{} {}", option, text_of(value));
  }
  return {set, one.name,
          fmt::format("{} --batch {} --seqlen {} --q-heads {} --kv-heads {} --head-dim {} "
                      "--dtype bf16",
                      mask, one.batch, one.seqlen, one.q_heads, one.kv_heads, one.head_dim)};
}

/// In time that is polynomial, which the default is not: (.*)*x would never end.
std::regex pattern_of(const std::string& match) {
  constexpr size_t kLongest = 1000;  // beyond, parentheses nest deeper than the stack
  if (match.size() > kLongest)
    fail("too long for a pattern", {"--match", fmt::format("{} characters", match.size()),
                                    fmt::format("at most {}", kLongest), "causal"});
  try {
    return std::regex(match, std::regex::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error& error) {
    fail(error.what(), {"--match", match, "a regular expression without \\1", "causal"});
  }
}

/// The problems of sets of bench/workloads.json, whose names commas separate. Throws Error naming
/// the nearest set.
std::vector<Case> cases_of(const std::string& sets) {
  std::vector<Case> all;
  for (const std::string& set : parse_names(sets, "--set", bench::set_names()))
    for (const bench::Workload& one : bench::workloads(set)) all.push_back(case_of(set, one));
  return all;
}

}  // namespace

void add_case_options(Command command, std::string& sets, std::string& match) {
  command
      .add_option("--set", sets,
                  fmt::format("Instead of one problem: of {}", fmt::join(bench::set_names(), ", ")))
      .group("Cases")
      .type_name("A,B,...");
  command
      .add_option("--match", match,
                  "Of the set, names in which a regular expression is found: hd64 (causal|full)")
      .group("Cases")
      .type_name("REGEX")
      .needs(command.option("--set"));
}

std::vector<Case> chosen_cases(const std::string& sets, const std::string& match,
                               const Case& given) {
  if (sets.empty()) return {given};
  if (!given.words.empty()) {
    fail("a set says what to run",
         {"--set", given.words, "no problem beside it", "--set " + sets + " alone"});
  }
  std::vector<Case> chosen;
  const std::regex pattern = pattern_of(match);
  for (const Case& one : cases_of(sets))
    if (std::regex_search(one.name, pattern)) chosen.push_back(one);
  if (chosen.empty()) fail("no case has such a name", {"--match", match, "part of a name", ".*"});
  return chosen;
}

CaseProblem parse_case(const std::string& words,
                       const std::vector<std::shared_ptr<const Plan>>& plans) {
  ProblemOptions problem;
  MaskOptions mask;
  parse_words(words, [&](Command command) {
    problem.add_to(command);
    mask.add_to(command);
  });
  const Problem sizes = make_problem(PlanFiles::complete(problem, plans), mask);
  return {sizes, mask.make(sizes)};
}

}  // namespace verbatim::app
