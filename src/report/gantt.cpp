#include "report/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/format.h"
#include "report/timeline.h"

namespace verbatim::report {
namespace {

constexpr double kNumbers = 64;  // left of the time axis, where workers are numbers
constexpr double kRight = 16;
constexpr double kBars = 900;   // pixels of the time axis
constexpr double kHeader = 34;  // above the lanes of one timeline
constexpr double kFooter = 44;  // its time axis
constexpr double kLegend = 30;  // once, at the bottom
constexpr int kHues = 8;

double end_of(const Timeline& timeline) {
  double end = 0;
  for (const TimelineEvent& event : timeline.events) end = std::max(end, event.end);
  return end;
}

double lane_height(const Timeline& timeline) {
  return std::clamp(420.0 / std::max(1, timeline.workers), 2.5, 24.0);
}

double height_of(const Timeline& timeline) {
  return kHeader + lane_height(timeline) * std::max(1, timeline.workers) + kFooter;
}

/// A round step that gives about six ticks.
double tick_step(double end) {
  const double rough = end / 6, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= rough) return power * factor;
  }
  return power * 10;
}

std::string css_of(const TimelineEvent& event, bool chain_is_kv) {
  using Kind = TimelineEvent::Kind;
  if (event.kind == Kind::wait) return "wait";
  if (event.kind == Kind::start || event.kind == Kind::finish) return "edge";
  if (event.kind == Kind::transfer && event.head < 0) return "edge";
  const int32_t chain = chain_is_kv ? event.kv_tile : event.q_tile;
  std::string css = fmt::format("h{}", std::max(0, event.head) % kHues);
  if (event.kind == Kind::reduce || (event.kind == Kind::transfer && event.head >= 0)) {
    css += " sum";
  } else if (chain % 2) {
    css += " tone";
  }
  return css;
}

std::string tip_of(const TimelineEvent& event, const Timeline& timeline) {
  std::string tip = fmt::format("{}, {}", kEventKinds[static_cast<size_t>(event.kind)],
                                name_of(timeline, event.worker));
  if (event.head >= 0) tip += fmt::format(", head {}", event.head);
  if (event.q_head > 0) tip += fmt::format(", query head {}", event.q_head);
  if (event.q_tile >= 0) tip += fmt::format(", query tile {}", event.q_tile);
  if (event.kv_tile >= 0) tip += fmt::format(", KV tile {}", event.kv_tile);
  return tip + fmt::format(": {} to {} {}", cycles(event.begin), cycles(event.end), timeline.unit);
}

/// Room for the names of workers.
double left_of(std::span<const Timeline> timelines) {
  size_t longest = 0;
  for (const Timeline& timeline : timelines)
    for (const std::string& name : timeline.names) longest = std::max(longest, name.size());
  return std::max(kNumbers, 16 + 6.4 * static_cast<double>(longest));
}

void draw(Picture& picture, const Timeline& timeline, double left_edge, double top,
          bool chain_is_kv) {
  const double end = end_of(timeline);
  const double lane = lane_height(timeline);
  const int32_t workers = std::max(1, timeline.workers);
  const double lanes_top = top + kHeader, lanes_end = lanes_top + lane * workers;
  const double gap = lane >= 6 ? 1 : 0.3;
  const bool named = !timeline.names.empty();
  const auto x = [&](double time) { return left_edge + (end > 0 ? time / end * kBars : 0); };

  picture.text(left_edge, top + 20, timeline.source, "strong");
  picture.text(left_edge + kBars, top + 20,
               (named ? "" : fmt::format("{} workers, ", timeline.workers)) +
                   fmt::format("{} {}", cycles(end), timeline.unit),
               "label", Picture::Anchor::end);
  for (int32_t worker = 0; worker < workers; ++worker) {
    picture.rect(left_edge, lanes_top + lane * worker, kBars, lane - gap, "lane");
  }
  const bool tips = timeline.events.size() <= 4000;
  for (const TimelineEvent& event : timeline.events) {
    const double left = x(event.begin), wide = std::max(0.3, x(event.end) - left);
    const double y = lanes_top + lane * event.worker;
    picture.rect(left, y, wide, lane - gap, css_of(event, chain_is_kv),
                 tips ? tip_of(event, timeline) : "");
    const int32_t visited = chain_is_kv ? event.q_tile : event.kv_tile;
    if (event.kind == TimelineEvent::Kind::compute && visited >= 0 && wide > 15 && lane > 13) {
      picture.text(left + wide / 2, y + lane / 2 + 3.5, std::to_string(visited), "inside",
                   Picture::Anchor::middle);
    }
  }
  // As many of the workers as fit.
  const int32_t every = std::max(1, static_cast<int32_t>(std::ceil(14 / lane)));
  for (int32_t worker = 0; worker < workers; worker += every) {
    picture.text(left_edge - 8, lanes_top + lane * worker + std::min(lane, 14.0) / 2 + 4,
                 named ? name_of(timeline, worker) : std::to_string(worker), "label",
                 Picture::Anchor::end);
  }
  if (!named) picture.vertical_text(18, (lanes_top + lanes_end) / 2, "worker");
  picture.line(left_edge, lanes_end + 4, left_edge + kBars, lanes_end + 4, "axis");
  if (end <= 0) return;
  const double step = tick_step(end);
  for (double t = 0; t <= end * 1.0001; t += step) {
    picture.line(x(t), lanes_end + 4, x(t), lanes_end + 9, "axis");
    if (x(t) < left_edge + kBars - 30) {
      picture.text(x(t), lanes_end + 22, cycles(t), "label", Picture::Anchor::middle);
    }
  }
  picture.text(left_edge + kBars, lanes_end + 22, timeline.unit, "label", Picture::Anchor::end);
}

}  // namespace

Picture gantt_picture(std::span<const Timeline> timelines, bool chain_is_kv) {
  double height = kLegend;
  for (const Timeline& timeline : timelines) height += height_of(timeline);
  const double left_edge = left_of(timelines);
  Picture picture(left_edge + kBars + kRight, height);

  bool used[kEventKinds.size()] = {};
  double top = 0;
  int32_t heads = 0;
  for (const Timeline& timeline : timelines) {
    draw(picture, timeline, left_edge, top, chain_is_kv);
    top += height_of(timeline);
    for (const TimelineEvent& event : timeline.events) {
      used[static_cast<size_t>(event.kind)] = true;
      heads = std::max(heads, event.head + 1);
    }
  }

  double at = left_edge;
  const auto entry = [&](std::string_view css, const std::string& label) {
    picture.rect(at, top + 8, 12, 12, css);
    picture.text(at + 18, top + 18, label);
    at += 36 + 6.4 * static_cast<double>(label.size());
  };
  for (int head = 0; head < std::min<int32_t>(heads, 3); ++head) {
    entry(fmt::format("h{}", head), fmt::format("head {}", head));
  }
  if (heads > 3) entry(fmt::format("h{}", 3), "and so on");
  const bool ranks = used[static_cast<size_t>(TimelineEvent::Kind::transfer)];
  if (used[2]) entry("h0 sum", ranks ? "adding sums, or sending" : "adding dQ");
  if (used[1]) entry("wait", ranks ? "waiting for a message" : "waiting for an addend");
  if (used[3] || used[4]) entry("edge", "start and end of a chain");
  if (ranks) entry("edge", "moving bytes of several heads");
  return picture;
}

}  // namespace verbatim::report
