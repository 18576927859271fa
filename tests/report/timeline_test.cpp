#include "report/timeline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "verbatim/error.h"

namespace verbatim::report {
namespace {

using Kind = TimelineEvent::Kind;

/// `visits` events of one unit per worker, every fourth a wait.
Timeline busy(int32_t workers, int32_t visits) {
  Timeline timeline{"simulated", "cycles", workers, {}};
  for (int32_t w = 0; w < workers; ++w) {
    for (int32_t i = 0; i < visits; ++i) {
      timeline.events.push_back(
          {i % 4 == 3 ? Kind::wait : Kind::compute, w, w, 0, i, i / 8, 1.0 * i, 1.0 * i + 1});
    }
  }
  return timeline;
}

TEST(Timeline, SmallOnesAreKeptAsTheyAre) {
  const Timeline timeline = busy(2, 10);
  EXPECT_EQ(to_json(condense(timeline, true)), to_json(timeline));
}

TEST(Timeline, LargeOnesKeepTheirEndAndLanes) {
  const Timeline small = condense(busy(4, 50000), true, 1000);
  EXPECT_LE(small.events.size(), 1000u);
  EXPECT_GT(small.events.size(), 100u);
  double end = 0;
  std::vector<double> lane(4, 0.0);
  for (const TimelineEvent& event : small.events) {
    EXPECT_EQ(event.q_tile, -1);
    EXPECT_GE(event.begin, lane[event.worker]);
    lane[event.worker] = end = event.end;
  }
  EXPECT_NEAR(end, 50000, 1);
}

TEST(Timeline, RoundTripsThroughJson) {
  const Timeline timeline = busy(3, 9);
  EXPECT_EQ(to_json(timeline_from_json(to_json(timeline))), to_json(timeline));
}

TEST(Timeline, NamesOfWorkersStay) {
  Timeline timeline = busy(2, 9);
  timeline.names = {"rank 0", "rank 0 sends"};
  EXPECT_EQ(timeline_from_json(to_json(timeline)).names, timeline.names);
  EXPECT_EQ(condense(timeline, true, 4).names, timeline.names);
  timeline.names.pop_back();
  EXPECT_THROW(timeline_from_json(to_json(timeline)), Error);
}

TEST(Timeline, RefusesWhatIsNone) {
  for (const char* text :
       {"", "[]", "{}", R"({"source":"a","unit":"b","workers":-1,"events":[]})",
        R"({"source":"a","unit":"b","workers":1,"events":[["nap",0,0,0,0,0,0,1]]})",
        R"({"source":"a","unit":"b","workers":1,"events":[["wait",1,0,0,0,0,0,1]]})",
        R"({"source":"a","unit":"b","workers":1,"events":[["wait",0,0,0,0,0,2,1]]})"}) {
    EXPECT_THROW(timeline_from_json(text), Error) << text;
  }
}

TEST(Timeline, PerfettoTracesAreJsonWithOneTrackPerWorker) {
  const Timeline timelines[] = {busy(3, 5)};
  const auto trace = nlohmann::json::parse(to_perfetto_json(timelines));
  int names = 0, spans = 0;
  for (const auto& event : trace.at("traceEvents")) {
    names += event.at("name") == "thread_name";
    spans += event.at("ph") == "X";
  }
  EXPECT_EQ(names, 3);
  EXPECT_EQ(spans, 15);
}

}  // namespace
}  // namespace verbatim::report
