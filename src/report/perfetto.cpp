#include <fmt/format.h>

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "verbatim/timeline.h"

namespace verbatim {

std::string to_perfetto_json(const Timeline& timeline) {
  using nlohmann::json;
  constexpr std::array kKinds{"compute", "wait", "reduce", "start", "finish"};
  // The trace format counts microseconds; one cycle is shown as one.
  std::string text =
      R"({"displayTimeUnit":"ns","otherData":)" +
      json{{"source", timeline.source}, {"unit", timeline.unit}}.dump() +
      R"(,"traceEvents":[)"
      "\n" +
      json{{"ph", "M"}, {"name", "process_name"}, {"pid", 0}, {"args", {{"name", timeline.source}}}}
          .dump();
  auto out = std::back_inserter(text);
  for (int32_t worker = 0; worker < timeline.workers; ++worker) {
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"M","name":"thread_name","pid":0,"tid":{0},)"
                   R"("args":{{"name":"worker {0}"}}}})",
                   worker);
  }
  for (const TimelineEvent& e : timeline.events) {
    const char* kind = kKinds[static_cast<size_t>(e.kind)];
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"X","pid":0,"tid":{},"cat":"{}","name":"{}","ts":{},"dur":{},)"
                   R"("args":{{"head":{},"q_head":{},"q_tile":{},"kv_tile":{}}}}})",
                   e.worker, kind, kind, e.begin, e.end - e.begin, e.head, e.q_head, e.q_tile,
                   e.kv_tile);
  }
  return text + "\n]}\n";
}

}  // namespace verbatim
