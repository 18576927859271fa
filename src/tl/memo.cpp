// Sizes that were measured, kept by what they were measured for.
#include <fmt/format.h>

#include <algorithm>

#include "core/json.h"
#include "tl/kernel.h"
#include "verbatim/error.h"

namespace verbatim::tl {
namespace {

constexpr const char* kOperation = "tl.memo";

int64_t size_of_choice(const nlohmann::json& choice, const char* name) {
  const int64_t size = json_int(json_member(choice, name, kOperation), name, kOperation);
  if (size > 0) return size;
  throw Error(ErrorCode::invalid_argument, kOperation, "a size is at least 1",
              {name, fmt::to_string(size), "1 or more", ""});
}

}  // namespace

std::string choice_key(std::string_view sketch, const ReasonOptions& options) {
  const Examined found =
      examine(sketch, {.target = options.target, .level = options.level, .sketch = true});
  const Problem& p = options.problem;
  return fmt::format("{} {} {} {} {}x{}", to_string(found.kernel.pass),
                     hash_of(found.program).substr(0, 16), options.target, to_string(p.dtype),
                     p.head_dim, p.head_dim_v);
}

std::string to_json(const ChoiceMemo& memo) {
  nlohmann::ordered_json choices = nlohmann::ordered_json::object();
  for (const auto& [key, sizes] : memo.choices)
    choices[key] = {{"tile_q", sizes.tile.q},
                    {"tile_kv", sizes.tile.kv},
                    {"stages", sizes.stages},
                    {"warps", sizes.warps}};
  return nlohmann::ordered_json{{"device", memo.device}, {"choices", choices}}.dump(2);
}

ChoiceMemo choice_memo_from_json(const std::string& text) {
  const nlohmann::json json = parse_json(text, kOperation);
  ChoiceMemo memo;
  memo.device = json_text(json_member(json, "device", kOperation), "device", kOperation);
  // It becomes part of a comment, which a line end would end.
  if (std::ranges::any_of(memo.device, [](unsigned char c) { return c < ' '; }))
    throw Error(ErrorCode::invalid_argument, kOperation, "the name of a GPU is one line",
                {"device", json["device"].dump(), "no control characters", ""});
  const auto& choices = json_member(json, "choices", kOperation);
  if (!choices.is_object())
    throw Error(ErrorCode::invalid_argument, kOperation, "choices are named by their program",
                {"choices", choices.type_name(), "an object", "{}"});
  for (const auto& [key, choice] : choices.items())
    memo.choices[key] = {{size_of_choice(choice, "tile_q"), size_of_choice(choice, "tile_kv")},
                         size_of_choice(choice, "stages"),
                         size_of_choice(choice, "warps")};
  return memo;
}

}  // namespace verbatim::tl
