// The part of the C interface about kernels as text.
#include <utility>

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

/// Options of a program, and what else is `known`.
nlohmann::json read_options(const char* text, std::vector<std::string> known,
                            const char* operation) {
  nlohmann::json json = parse_json(text_of(text, "options"), operation);
  known.insert(known.begin(), {"target", "level"});
  require_known_members(json, known, operation);
  return json;
}

tl::CheckOptions program_options(const nlohmann::json& json, const char* operation) {
  tl::CheckOptions options;
  if (json.contains("target")) options.target = json_text(json["target"], "target", operation);
  options.level = level_of(json, operation);
  return options;
}

tl::CheckOptions check_options(const char* text) {
  constexpr const char* kOperation = "tl.check";
  const nlohmann::json json = read_options(text, {"sketch"}, kOperation);
  tl::CheckOptions options = program_options(json, kOperation);
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
  const nlohmann::json spec = parse_json(text_of(text, "spec"), kOperation);
  require_known_members(spec, {"problem", "target", "tile", "level"}, kOperation);
  tl::ReasonOptions options;
  options.problem = problem_from_json(json_member(spec, "problem", kOperation).dump());
  options.target = json_text(json_member(spec, "target", kOperation), "target", kOperation);
  if (spec.contains("tile")) options.tile = tile_of(spec, kOperation);
  options.level = level_of(spec, kOperation);
  return tl::reason(sketch, kName, options);
}

std::string emit(const char* program, const char* text) {
  constexpr const char* kOperation = "tl.emit";
  const nlohmann::json json = read_options(text, {}, kOperation);
  const tl::Emitted emitted = tl::emit(program, kName, program_options(json, kOperation));
  return Json{{"name", emitted.name},
              {"source", emitted.source},
              {"arithmetic", emitted.arithmetic},
              {"arch", emitted.arch}}
      .dump();
}

std::string build(const char* program, const char* folder, const char* text) {
  constexpr const char* kOperation = "tl.build";
  const nlohmann::json json = read_options(text, {"archs"}, kOperation);
  std::vector<std::string> archs;
  if (json.contains("archs"))
    for (const nlohmann::json& arch : json_list(json["archs"], "archs", kOperation))
      archs.push_back(json_text(arch, "archs", kOperation));
  const tl::Emitted emitted = tl::emit(program, kName, program_options(json, kOperation));
  return tl::build(emitted, folder, std::move(archs)).string();
}

}  // namespace

extern "C" {

verbatim_status verbatim_tl_check(const char* program, const char* options, const char** json) {
  return answered(json, [&] { return check(text_of(program, "program"), options); });
}

verbatim_status verbatim_tl_fix(const char* program, const char* options, const char** fixed) {
  return answered(fixed,
                  [&] { return tl::fix(text_of(program, "program"), check_options(options)); });
}

verbatim_status verbatim_tl_reason(const char* sketch, const char* spec, const char** program) {
  return answered(program, [&] { return reason(text_of(sketch, "sketch"), spec); });
}

verbatim_status verbatim_tl_format(const char* program, const char** formatted) {
  return answered(formatted, [&] { return tl::format(text_of(program, "program"), kName); });
}

verbatim_status verbatim_tl_emit(const char* program, const char* options, const char** json) {
  return answered(json, [&] { return emit(text_of(program, "program"), options); });
}

verbatim_status verbatim_tl_build(const char* program, const char* folder, const char* options,
                                  const char** library) {
  return answered(library, [&] {
    return build(text_of(program, "program"), text_of(folder, "folder"), options);
  });
}

}  // extern "C"
