#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "report/timeline.h"

namespace verbatim {

using report::kEventKinds;
using report::name_of;

std::string to_perfetto_json(std::span<const Timeline> timelines) {
  using nlohmann::json;
  // The trace format counts microseconds; one cycle is shown as one.
  std::string events;
  auto out = std::back_inserter(events);
  for (size_t process = 0; process < timelines.size(); ++process) {
    const Timeline& timeline = timelines[process];
    const json name{{"ph", "M"},
                    {"name", "process_name"},
                    {"pid", process},
                    {"args", {{"name", timeline.source + ", " + timeline.unit}}}};
    fmt::format_to(out, "{}\n{}", process > 0 ? "," : "", name.dump());
    for (int32_t worker = 0; worker < timeline.workers; ++worker) {
      fmt::format_to(out,
                     ",\n"
                     R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},)"
                     R"("args":{{"name":{}}}}})",
                     process, worker, json(name_of(timeline, worker)).dump());
    }
    for (const TimelineEvent& e : timeline.events) {
      const char* kind = kEventKinds[static_cast<size_t>(e.kind)];
      fmt::format_to(out,
                     ",\n"
                     R"({{"ph":"X","pid":{},"tid":{},"cat":"{}","name":"{}","ts":{},"dur":{},)"
                     R"("args":{{"head":{},"q_head":{},"q_tile":{},"kv_tile":{}}}}})",
                     process, e.worker, kind, kind, e.begin, e.end - e.begin, e.head, e.q_head,
                     e.q_tile, e.kv_tile);
    }
  }
  return R"({"displayTimeUnit":"ns","traceEvents":[)" + events + "\n]}\n";
}

}  // namespace verbatim
