#include "report/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "verbatim/error.h"

namespace verbatim::report {
namespace {

using nlohmann::json;
using Kind = TimelineEvent::Kind;

/// What an event of a condensed timeline keeps apart.
bool same_bar(const TimelineEvent& a, const TimelineEvent& b) {
  return a.kind == b.kind && a.head == b.head && a.q_head == b.q_head && a.q_tile == b.q_tile &&
         a.kv_tile == b.kv_tile;
}

/// What a worker did in one step of time, by bars. Few meet in one step.
struct Cell {
  TimelineEvent event{};
  double time = 0;
};
using Cells = std::vector<std::vector<Cell>>;  // [workers * steps]

Cells divide(const Timeline& timeline, bool chain_is_kv, size_t steps, double step) {
  Cells cells(static_cast<size_t>(timeline.workers) * steps);
  for (TimelineEvent event : timeline.events) {
    if (event.worker < 0 || event.worker >= timeline.workers) continue;
    (chain_is_kv ? event.q_tile : event.kv_tile) = -1;
    event.q_head = -1;
    for (auto s = static_cast<size_t>(event.begin / step); s < steps; ++s) {
      const double from = std::max(event.begin, static_cast<double>(s) * step);
      const double to = std::min(event.end, static_cast<double>(s + 1) * step);
      if (to <= from) break;
      auto& list = cells[static_cast<size_t>(event.worker) * steps + s];
      const auto found = std::find_if(list.begin(), list.end(),
                                      [&](const Cell& c) { return same_bar(c.event, event); });
      if (found == list.end()) {
        list.push_back({event, to - from});
      } else {
        found->time += to - from;
      }
    }
  }
  return cells;
}

/// The bar that fills most of the step; null when less than half of it is filled.
const TimelineEvent* main_bar(const std::vector<Cell>& list, double step) {
  double busy = 0;
  for (const Cell& cell : list) busy += cell.time;
  if (list.empty() || 2 * busy < step) return nullptr;
  return &std::max_element(list.begin(), list.end(), [](const Cell& a, const Cell& b) {
            return a.time < b.time;
          })->event;
}

}  // namespace

Timeline condense(const Timeline& timeline, bool chain_is_kv, size_t max_events) {
  if (timeline.events.size() <= max_events || timeline.workers <= 0) return timeline;
  Timeline result{timeline.source, timeline.unit, timeline.workers, {}, timeline.names};
  const size_t steps = std::max<size_t>(50, max_events / static_cast<size_t>(timeline.workers));
  double end = 0;
  for (const TimelineEvent& event : timeline.events) end = std::max(end, event.end);
  const double step = end / static_cast<double>(steps);
  if (step <= 0) return result;

  const Cells cells = divide(timeline, chain_is_kv, steps, step);
  for (int32_t worker = 0; worker < timeline.workers; ++worker) {
    bool open = false;  // the last event reaches up to this step
    for (size_t s = 0; s < steps; ++s) {
      const auto* bar = main_bar(cells[static_cast<size_t>(worker) * steps + s], step);
      const bool goes_on = open && bar != nullptr && same_bar(result.events.back(), *bar);
      open = bar != nullptr;
      if (!open) continue;
      if (!goes_on) {
        result.events.push_back(*bar);
        result.events.back().begin = static_cast<double>(s) * step;
      }
      result.events.back().end = static_cast<double>(s + 1) * step;
    }
  }
  return result;
}

std::string name_of(const Timeline& timeline, int32_t worker) {
  if (timeline.names.empty()) return fmt::format("worker {}", worker);
  return timeline.names[worker];
}

std::string to_json(const Timeline& timeline) {
  json events = json::array();
  for (const TimelineEvent& e : timeline.events) {
    events.push_back({kEventKinds[static_cast<size_t>(e.kind)], e.worker, e.head, e.q_head,
                      e.q_tile, e.kv_tile, e.begin, e.end});
  }
  json value{{"source", timeline.source},
             {"unit", timeline.unit},
             {"workers", timeline.workers},
             {"events", std::move(events)}};
  if (!timeline.names.empty()) value["names"] = timeline.names;
  return value.dump();
}

Timeline timeline_from_json(const std::string& text) {
  const auto fail = [](const std::string& what) -> Error {
    return Error(ErrorCode::invalid_argument, "report.timeline", what);
  };
  try {
    const json value = json::parse(text);
    Timeline timeline{value.at("source"), value.at("unit"), value.at("workers"), {}, {}};
    if (timeline.workers < 0 || timeline.workers > 1'000'000) throw fail("workers out of range");
    if (value.contains("names")) timeline.names = value.at("names");
    if (!timeline.names.empty() && std::ssize(timeline.names) != timeline.workers)
      throw fail("not a name a worker");
    for (const json& row : value.at("events")) {
      const auto kind =
          std::find(kEventKinds.begin(), kEventKinds.end(), row.at(0).get<std::string>());
      if (kind == kEventKinds.end()) throw fail("unknown kind of event " + row.at(0).dump());
      TimelineEvent event{static_cast<Kind>(kind - kEventKinds.begin()),
                          row.at(1),
                          row.at(2),
                          row.at(3),
                          row.at(4),
                          row.at(5),
                          row.at(6),
                          row.at(7)};
      if (event.worker < 0 || event.worker >= timeline.workers) throw fail("worker out of range");
      if (!(event.begin >= 0 && event.end >= event.begin)) throw fail("times run backwards");
      timeline.events.push_back(event);
    }
    return timeline;
  } catch (const json::exception& error) {
    throw fail(std::string("malformed timeline: ") + error.what());
  }
}

}  // namespace verbatim::report
