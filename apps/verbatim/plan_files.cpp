// --plan: plans as `plan --dump` writes them, edited or not, in place of those by rule.
#include <fmt/format.h>

#include "core/file.h"
#include "options.h"

namespace verbatim::app {

void PlanFiles::add_to(Command command) {
  command
      .add_option("--plan", files,
                  "Plans as plan --dump writes them, at most one a pass, in place of those by "
                  "rule: an order of your own is proved before it runs. Sizes and scalars that are "
                  "not given are theirs, the mask is named as ever; what is said of tiles, "
                  "placements, workers and levels is of a pass without one")
      .group("Plan")
      .type_name("JSON")
      .expected(1, 2);
}

std::vector<std::shared_ptr<const Plan>> PlanFiles::read() const {
  std::vector<std::shared_ptr<const Plan>> plans;
  for (const std::string& file : files)
    plans.push_back(std::make_shared<const Plan>(parse_file(file, plan_from_json)));
  if (plans.size() == 2 && plans[0]->pass == plans[1]->pass)
    fail("a pass has one plan",
         {"--plan", fmt::format("two of the {}", to_string(plans[0]->pass)), "one a pass", ""});
  return plans;
}

ProblemOptions PlanFiles::complete(ProblemOptions given,
                                   const std::vector<std::shared_ptr<const Plan>>& plans) {
  if (plans.empty()) return given;
  const Problem& sizes = plans.front()->problem;
  const auto settle = [](auto& option, const auto& value) {
    if (!option) option = value;
  };
  settle(given.batch, sizes.batch);
  settle(given.q_heads, sizes.q_heads);
  settle(given.kv_heads, sizes.kv_heads);
  settle(given.head_dim, sizes.head_dim);
  settle(given.head_dim_v, sizes.head_dim_v);
  settle(given.dtype, std::string(to_string(sizes.dtype)));
  if (!given.scale) given.scale = sizes.scale;
  settle(given.softcap, sizes.softcap);
  settle(given.dropout, sizes.dropout);
  if (given.seqlen) return given;
  settle(given.q_len, sizes.q_len);
  settle(given.kv_len, sizes.kv_len);
  return given;
}

}  // namespace verbatim::app
