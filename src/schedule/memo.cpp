// Placements that were measured, kept by what they were measured for.
#include <fmt/format.h>

#include "core/json.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {

std::string memo_key(const Plan& plan, int32_t workers) {
  return fmt::format("{} {} {} heads {} workers", to_string(plan.pass), plan.fingerprint(),
                     plan.order_of_head.size(), workers);
}

std::string to_json(const PlacementMemo& memo) {
  return nlohmann::ordered_json{{"device", memo.device}, {"placements", memo.placements}}.dump(2);
}

PlacementMemo memo_from_json(const std::string& text) {
  constexpr const char* kOperation = "schedule.memo";
  const nlohmann::json json = parse_json(text, kOperation);
  PlacementMemo memo;
  memo.device = json_text(json_member(json, "device", kOperation), "device", kOperation);
  const auto& placements = json_member(json, "placements", kOperation);
  if (!placements.is_object()) {
    throw Error(ErrorCode::invalid_argument, kOperation, "placements are named by their problem",
                {"placements", placements.type_name(), "an object", "{}"});
  }
  for (const auto& [key, name] : placements.items()) {
    const std::string& known = memo.placements[key] = json_text(name, key, kOperation);
    try {
      make_placement(known, {}, 1);
    } catch (const Error& error) {
      throw Error(ErrorCode::invalid_argument, kOperation, "there is no such placement",
                  {key, known, error.details().expected, error.details().nearest});
    }
  }
  return memo;
}

}  // namespace verbatim
