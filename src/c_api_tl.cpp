// The part of the C interface about kernels as text.
#include "c_api.h"
#include "core/json.h"
#include "verbatim/tl.h"

namespace {

using namespace verbatim;
using namespace verbatim::c;
using Json = nlohmann::ordered_json;

constexpr const char* kName = "program";  // what faults call the text

Level level_of(const nlohmann::json& json, const char* operation) {
  const bool given = json.contains("level");
  return given ? level_from_string(json_text(json["level"], "level", operation)) : Level::invariant;
}

tl::CheckOptions check_options(const char* text) {
  constexpr const char* kOperation = "tl.check";
  const nlohmann::json json = parse_json(text, kOperation);
  require_known_members(json, {"target", "level", "sketch"}, kOperation);
  tl::CheckOptions options;
  if (json.contains("target")) options.target = json_text(json["target"], "target", kOperation);
  options.level = level_of(json, kOperation);
  if (json.contains("sketch")) options.sketch = json_bool(json["sketch"], "sketch", kOperation);
  return options;
}

Json described(const tl::Diagnostic& fault, const char* program) {
  const tl::Place place = tl::place_of(program, fault.begin);
  Json json = {{"code", fault.code},     {"line", place.line},
               {"column", place.column}, {"begin", fault.begin},
               {"end", fault.end},       {"reason", fault.reason},
               {"right", fault.right},   {"shown", tl::describe(fault, program, kName)}};
  if (fault.edit)
    json["edit"] = {
        {"begin", fault.edit->begin}, {"end", fault.edit->end}, {"text", fault.edit->text}};
  return json;
}

std::string check(const char* program, const char* options) {
  Json faults = Json::array();
  for (const tl::Diagnostic& fault : tl::check(program, check_options(options)))
    faults.push_back(described(fault, program));
  // What a fault quotes may be cut inside a character, or be no UTF-8 at all.
  return faults.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string reason(const char* sketch, const char* text) {
  constexpr const char* kOperation = "tl.reason";
  const nlohmann::json spec = parse_json(text, kOperation);
  require_known_members(spec, {"problem", "target", "tile", "level"}, kOperation);
  tl::ReasonOptions options;
  options.problem = problem_from_json(json_member(spec, "problem", kOperation).dump());
  options.target = json_text(json_member(spec, "target", kOperation), "target", kOperation);
  if (spec.contains("tile")) options.tile = tile_of(spec, kOperation);
  options.level = level_of(spec, kOperation);
  return tl::reason(sketch, kName, options);
}

}  // namespace

extern "C" {

verbatim_status verbatim_tl_check(const char* program, const char* options, const char** json) {
  return answered(json, [&] { return check(program, options); });
}

verbatim_status verbatim_tl_fix(const char* program, const char* options, const char** fixed) {
  return answered(fixed, [&] { return tl::fix(program, check_options(options)); });
}

verbatim_status verbatim_tl_reason(const char* sketch, const char* spec, const char** program) {
  return answered(program, [&] { return reason(sketch, spec); });
}

verbatim_status verbatim_tl_format(const char* program, const char** formatted) {
  return answered(formatted, [&] { return tl::format(program, kName); });
}

}  // extern "C"
