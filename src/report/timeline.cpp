#include "report/timeline.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "verbatim/error.h"

namespace verbatim::report {
namespace {

using nlohmann::json;
using Kind = TimelineEvent::Kind;

constexpr std::array kKinds{"compute", "wait", "reduce", "start", "finish"};

/// What an event of a condensed timeline keeps apart.
bool same_bar(const TimelineEvent& a, const TimelineEvent& b) {
  return a.kind == b.kind && a.head == b.head && a.q_head == b.q_head && a.q_tile == b.q_tile &&
         a.kv_tile == b.kv_tile;
}

}  // namespace

Timeline condense(const Timeline& timeline, bool chain_is_kv, size_t max_events) {
  if (timeline.events.size() <= max_events || timeline.workers <= 0) return timeline;
  Timeline result{timeline.source, timeline.unit, timeline.workers, {}};
  const size_t steps = std::max<size_t>(50, max_events / static_cast<size_t>(timeline.workers));
  double end = 0;
  for (const TimelineEvent& event : timeline.events) end = std::max(end, event.end);
  const double step = end / static_cast<double>(steps);
  if (step <= 0) return result;

  struct Cell {
    TimelineEvent event{};
    double time = 0;
  };
  // Few events meet in one step, so a short list per step finds the longest.
  std::vector<std::vector<Cell>> cells(static_cast<size_t>(timeline.workers) * steps);
  for (TimelineEvent event : timeline.events) {
    if (event.worker < 0 || event.worker >= timeline.workers) continue;
    (chain_is_kv ? event.q_tile : event.kv_tile) = -1;
    event.q_head = -1;
    const auto first = static_cast<size_t>(event.begin / step);
    for (size_t s = first; s < steps; ++s) {
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
  for (int32_t worker = 0; worker < timeline.workers; ++worker) {
    bool open = false;  // the last event reaches up to this step
    for (size_t s = 0; s < steps; ++s) {
      const auto& list = cells[static_cast<size_t>(worker) * steps + s];
      const auto best = std::max_element(list.begin(), list.end(),
                                         [](auto& a, auto& b) { return a.time < b.time; });
      double busy = 0;
      for (const Cell& cell : list) busy += cell.time;
      if (best == list.end() || 2 * busy < step) {
        open = false;
        continue;
      }
      if (open && same_bar(result.events.back(), best->event)) {
        result.events.back().end = static_cast<double>(s + 1) * step;
        continue;
      }
      TimelineEvent event = best->event;
      event.begin = static_cast<double>(s) * step;
      event.end = static_cast<double>(s + 1) * step;
      result.events.push_back(event);
      open = true;
    }
  }
  return result;
}

std::string to_json(const Timeline& timeline) {
  json events = json::array();
  for (const TimelineEvent& e : timeline.events) {
    events.push_back({kKinds[static_cast<size_t>(e.kind)], e.worker, e.head, e.q_head, e.q_tile,
                      e.kv_tile, e.begin, e.end});
  }
  return json{{"source", timeline.source},
              {"unit", timeline.unit},
              {"workers", timeline.workers},
              {"events", std::move(events)}}
      .dump();
}

Timeline timeline_from_json(const std::string& text) {
  const auto fail = [](const std::string& what) -> Error {
    return Error(ErrorCode::invalid_argument, "report.timeline", what);
  };
  try {
    const json value = json::parse(text);
    Timeline timeline{value.at("source"), value.at("unit"), value.at("workers"), {}};
    if (timeline.workers < 0 || timeline.workers > 1'000'000) throw fail("workers out of range");
    for (const json& row : value.at("events")) {
      const auto kind = std::find(kKinds.begin(), kKinds.end(), row.at(0).get<std::string>());
      if (kind == kKinds.end()) throw fail("unknown kind of event " + row.at(0).dump());
      TimelineEvent event{static_cast<Kind>(kind - kKinds.begin()),
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
