// What every function of the C interface does: an exception becomes a status and a message.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "verbatim/c.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim::c_api {

inline thread_local std::string last_error, last_text;

verbatim_status status_of(ErrorCode code);

/// Runs `action`; an exception becomes a status and a message.
template <class Action>
verbatim_status guarded(Action action) {
  try {
    action();
    return verbatim_ok;
  } catch (const Error& error) {
    last_error = error.what();
    return status_of(error.code());
  } catch (const std::exception& error) {
    last_error = error.what();
    return verbatim_internal_error;
  }
}

/// The same for actions that make a text.
template <class Action>
verbatim_status answered(const char** text, Action action) {
  return guarded([&] {
    last_text = action();
    *text = last_text.c_str();
  });
}

/// Throws Error, which names the nearest, in the name of `operation` when `json` is no object or
/// has a member that is not `known`.
void require_known_members(const nlohmann::json& json, const std::vector<std::string>& known,
                           const char* operation);

/// The two numbers of member "tile": queries and keys.
TileShape tile_of(const nlohmann::json& json, const char* operation);

}  // namespace verbatim::c_api
