// Timelines small enough to draw and to keep.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "verbatim/timeline.h"

namespace verbatim::report {

/// Names of TimelineEvent::Kind.
inline constexpr std::array kEventKinds{"compute", "wait", "reduce", "start", "finish", "transfer"};

/// `timeline` itself when it has at most `max_events` events; else its time is cut into equal
/// steps, each showing what its worker did longest. The tile field that then varies inside an
/// event is -1. Chains are told apart by kv_tile when `chain_is_kv` (backward), else by q_tile.
Timeline condense(const Timeline& timeline, bool chain_is_kv, size_t max_events = 12000);

/// "worker 3", or the name that it has.
std::string name_of(const Timeline& timeline, int32_t worker);

std::string to_json(const Timeline& timeline);
/// Throws Error(invalid_argument) naming the field that is missing or out of range.
Timeline timeline_from_json(const std::string& text);

}  // namespace verbatim::report
