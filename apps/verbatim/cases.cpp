#include "cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

namespace verbatim::app {
namespace {

std::vector<Case> dense() {
  std::vector<Case> cases;
  for (const int dim : {128, 64}) {
    for (const char* mask : {"causal", "full"}) {
      for (const int len : {512, 1024, 2048, 4096, 8192, 16384}) {
        cases.push_back({"dense", fmt::format("hd{} {} {}", dim, mask, len),
                         fmt::format("--mask {} --batch {} --seqlen {} --q-heads {} --head-dim {} "
                                     "--dtype bf16",
                                     mask, 16384 / len, len, 2048 / dim, dim)});
      }
    }
  }
  return cases;
}

std::vector<Case> gqa() {
  std::vector<Case> cases;
  for (const char* mask : {"causal", "full"}) {
    cases.push_back({"gqa", fmt::format("hd128 {} 64:8 8192", mask),
                     fmt::format("--mask {} --seqlen 8192 --q-heads 64 --kv-heads 8 "
                                 "--head-dim 128 --dtype bf16",
                                 mask)});
  }
  return cases;
}

/// Parameters of the FlexAttention table that docs/benchmarks.md compares with.
std::vector<Case> static_masks() {
  const std::string documents =
      " --doc-lengths 380,18,147,124,561,433,1606,59,216,21,122,260,19,114,394,287,123,322,825,4,"
      "801,466,177,90,623";
  std::vector<Case> cases;
  for (const auto& [mask, parameters] : std::initializer_list<std::pair<std::string, std::string>>{
           {"full", ""},
           {"causal", ""},
           {"full_sliding_window", " --window 1024"},
           {"causal_sliding_window", " --window 1024"},
           {"full_document", documents},
           {"causal_document", documents},
           {"share_question", documents},
           {"causal_blockwise", documents},
           {"global_sliding", " --global 397 --window 397"},
           {"prefix_lm_causal", " --prefix 1520"},
           {"prefix_lm_document", documents + " --prefix 195"},
           {"block_causal_document", " --doc-lengths 6144,2048 --block 1024"}}) {
    cases.push_back({"masks", mask,
                     fmt::format("--mask {}{} --seqlen 8192 --q-heads 64 --kv-heads 8 "
                                 "--head-dim 128 --dtype bf16",
                                 mask, parameters)});
  }
  return cases;
}

}  // namespace

std::vector<Case> cases_of(const std::string& sets) {
  std::vector<Case> all;
  for (const std::string& set : parse_names(sets, "--set", {"dense", "gqa", "masks"})) {
    const std::vector<Case> cases = set == "dense" ? dense()
                                    : set == "gqa" ? gqa()
                                                   : static_masks();
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

void add_case_options(CLI::App& command, std::string& sets, std::string& match) {
  command.add_option("--set", sets, "Instead of one problem: of dense, gqa, masks")
      ->group("Cases")
      ->type_name("A,B,...");
  command.add_option("--match", match, "Of the set, names that match a regular expression")
      ->group("Cases")
      ->type_name("REGEX");
}

std::vector<Case> chosen_cases(const std::string& sets, const std::string& match,
                               const Case& given) {
  if (sets.empty()) return {given};
  if (!given.words.empty()) {
    fail("a set says what to run", {"--set", given.words, "no problem beside it", ""});
  }
  std::vector<Case> chosen;
  try {
    const std::regex pattern(match);
    for (const Case& one : cases_of(sets)) {
      if (std::regex_search(one.name, pattern)) chosen.push_back(one);
    }
  } catch (const std::regex_error& error) {
    fail(error.what(), {"--match", match, "a regular expression", "causal"});
  }
  if (chosen.empty()) fail("no case has such a name", {"--match", match, "part of a name", ".*"});
  return chosen;
}

std::string words_of(const CLI::App& command, const std::vector<std::string>& groups) {
  std::string words;
  for (const CLI::Option* option : command.get_options()) {
    const bool wanted = std::ranges::find(groups, option->get_group()) != groups.end();
    if (!wanted || option->count() == 0) continue;
    words += (words.empty() ? "" : " ") + option->get_name();
    if (option->get_items_expected_max() > 0) words += " " + option->as<std::string>();
  }
  return words;
}

CaseProblem parse_case(const std::string& words) {
  CLI::App app;
  ProblemOptions problem;
  MaskOptions mask;
  problem.add_to(app);
  mask.add_to(app);
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    fail(error.what(), {"problem", words, "options of a problem and its mask", ""});
  }
  const Problem sizes = make_problem(problem, mask);
  return {sizes, mask.make(sizes)};
}

}  // namespace verbatim::app
