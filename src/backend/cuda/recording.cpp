#include "backend/cuda/recording.h"

#include <algorithm>
#include <vector>

namespace verbatim::cuda {
namespace {

/// Records that fit a list: events come up to twice a visit and chain.
int32_t capacity_of(const Plan& plan, int32_t blocks) {
  int64_t events = 0;
  for (const int32_t order : plan.order_of_head) {
    const HeadOrder& of_head = *plan.orders[order];
    events += 2 * (of_head.visits() + std::ssize(of_head.chains));
  }
  return static_cast<int32_t>(std::min<int64_t>({events, 4 * events / blocks + 1024, INT32_MAX}));
}

}  // namespace

Recording::Recording(const Device& device, const Plan& plan, cudaStream_t stream)
    : blocks_(device.multiprocessors),
      stream_(stream),
      counts_at_(int64_t{blocks_} * RecordView::kTracks * capacity_of(plan, blocks_) *
                 static_cast<int64_t>(sizeof(Record))),
      clocks_at_(counts_at_ + int64_t{blocks_} * RecordView::kTracks * int64_t{sizeof(int32_t)}),
      bytes_(clocks_at_ + blocks_ * static_cast<int64_t>(sizeof(RecordClock))),
      memory_(device, bytes_, stream) {
  auto* base = static_cast<std::byte*>(memory_.data());
  view_ = {.records = reinterpret_cast<Record*>(base),
           .counts = reinterpret_cast<int32_t*>(base + counts_at_),
           .clocks = reinterpret_cast<RecordClock*>(base + clocks_at_),
           .capacity = capacity_of(plan, blocks_)};
  check(cudaMemsetAsync(base + counts_at_, 0, bytes_ - counts_at_, stream), "cuda.record");
}

void Recording::collect(const Plan& plan, int32_t max_q_tiles, int32_t max_kv_tiles,
                        Timeline& timeline) const {
  std::vector<std::byte> host(bytes_);
  check(cudaMemcpyAsync(host.data(), memory_.data(), host.size(), cudaMemcpyDeviceToHost, stream_),
        "cuda.record");
  check(cudaStreamSynchronize(stream_), "cuda.record");
  const auto* records = reinterpret_cast<const Record*>(host.data());
  const auto* counts = reinterpret_cast<const int32_t*>(host.data() + counts_at_);
  const auto* clocks = reinterpret_cast<const RecordClock*>(host.data() + clocks_at_);

  timeline = {.source = "measured cuda", .unit = "us", .workers = 0, .events = {}};
  int64_t first_ns = INT64_MAX;
  for (int32_t block = 0; block < blocks_; ++block) {
    if (clocks[block].end == 0) continue;  // there was no such CTA
    timeline.workers = block + 1;
    first_ns = std::min(first_ns, clocks[block].begin_ns);
  }
  const auto group = static_cast<int32_t>(plan.problem.group());
  for (int32_t list = 0; list < timeline.workers * RecordView::kTracks; ++list) {
    const int32_t block = list / RecordView::kTracks;
    const RecordClock& clock = clocks[block];
    const double ns_per_cycle = static_cast<double>(clock.end_ns - clock.begin_ns) /
                                static_cast<double>(std::max<int64_t>(clock.end - clock.begin, 1));
    const auto us = [&](int64_t cycles) {
      return (static_cast<double>(clock.begin_ns - first_ns) +
              static_cast<double>(cycles - clock.begin) * ns_per_cycle) *
             1e-3;
    };
    for (int32_t i = 0; i < std::min(counts[list], view_.capacity); ++i) {
      const Record& r = records[int64_t{list} * view_.capacity + i];
      timeline.events.push_back({.kind = static_cast<TimelineEvent::Kind>(r.kind),
                                 .worker = block,
                                 .head = r.key / max_kv_tiles,
                                 .q_head = r.row < 0 ? 0 : r.row / max_q_tiles % group,
                                 .q_tile = r.row < 0 ? -1 : r.row % max_q_tiles,
                                 .kv_tile = r.key % max_kv_tiles,
                                 .begin = us(r.begin),
                                 .end = us(r.end)});
    }
  }
}

}  // namespace verbatim::cuda
