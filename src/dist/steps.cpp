#include "dist/steps.h"

#include <algorithm>
#include <functional>

#include "core/threads.h"
#include "dist/sections.h"
#include "dist/sizes.h"

namespace verbatim::dist {
namespace {

/// Of the landing memory, or two messages: for those that are unpacked, and others that come.
constexpr int64_t kRoom = 2 * kWorthAMessage;

void append(CarriedSums& sums, const CarriedSums& more) {
  std::vector<CarriedSum> all(sums.begin(), sums.end());
  all.insert(all.end(), more.begin(), more.end());
  sums = std::move(all);
}

}  // namespace

void append(std::vector<Box>& boxes, std::span<const Operand> operands, const HeldRows& rows,
            Interval heads) {
  if (heads.begin >= heads.end) return;
  for (const Operand operand : operands)
    for (const RowRange& range : rows.ranges()) boxes.push_back({operand, range, heads});
}

void append(std::vector<Box>& boxes, std::vector<Box> more) {
  boxes.insert(boxes.end(), more.begin(), more.end());
}

void append(std::vector<CarriedSum>& sums, int32_t head, const Span& span, int32_t first) {
  const auto& [offset, tile, count, step] = span;
  const int32_t block = first + offset;
  CarriedSum* last = sums.empty() ? nullptr : &sums.back();
  if (last && last->kv_tile + step * last->count == tile && last->step == step &&
      last->block + last->count == block) {
    last->count += count;
  } else {
    sums.push_back({head, tile, block, count, step});
  }
}

void Steps::move(int32_t from, Space source, int32_t to, Space target, const Boxes& boxes,
                 int32_t room, Place place) {
  if (boxes.empty()) return;
  if (from == to) {
    add(to, Copy{source, target, boxes, room}, place);
  } else {
    const auto of = [room](Space space) { return space == Space::work ? room : 0; };
    send({to, messages_, source, boxes, {}, of(source)}, from,
         {from, messages_, target, boxes, {}, of(target)}, place);
  }
}

void Steps::hand_on(int32_t from, CarriedSums sent, int32_t to, CarriedSums received) {
  const int64_t bytes = message_bytes(plan_, {}, sent);
  const auto [last, first] = last_sums_.try_emplace(int64_t{from} * std::ssize(plan_.ranks) + to);
  if (!first && last->second.bytes + bytes <= kWorthAMessage) {
    UnderWay& each = under_way_[last->second.message];
    append(std::get<Send>(steps_of(from)[each.step]).sums, sent);
    append(each.receive.sums, received);
    last->second.bytes += bytes;
    return;
  }
  last->second = {under_way_.size(), bytes};
  send({to, messages_, Space::work, {}, std::move(sent)}, from,
       {from, messages_, Space::work, {}, std::move(received)});
}

void Steps::send(Send send, int32_t from, Receive receive, Place place) {
  const int32_t to = send.to;
  add(from, std::move(send), place);
  under_way_.push_back({to, steps_of(from).size() - 1, std::move(receive)});
  ++messages_;
}

void Steps::take(Place place) {
  for (UnderWay& each : under_way_) {
    if (plan_.options.overlapped && place == Place::here) {
      ask(each.to, std::move(each.receive));
    } else {
      add(each.to, std::move(each.receive), place);
    }
  }
  under_way_.clear();
  last_sums_.clear();
}

void Steps::repeat(int32_t as, int64_t first, int64_t last, int32_t heads, int32_t ranks) {
  const Section& before = plan_.sections[static_cast<size_t>(as)];
  Section section{{}, as, heads, ranks, messages_ - first};
  messages_ += last - first;
  size_t steps = 0;
  for (const auto& [rank, begin, end] : before.parts) {
    const size_t first = count(rank + ranks);
    section.parts.push_back({rank + ranks, first, first + (end - begin)});
    steps += end - begin;
  }
  const auto for_each_part = [&](const std::function<void(size_t)>& f) {
    for_each_in_parallel(steps < kStepsWorthThreads ? 1 : core_count(), std::ssize(before.parts),
                         [&](int64_t part) { f(static_cast<size_t>(part)); });
  };
  // Room first, for a list may be read for one part and written for another.
  for_each_part([&](size_t part) {
    const auto& [rank, begin, end] = section.parts[part];
    if (std::vector<Step>& own = steps_of(rank); own.capacity() < end)
      own.reserve(std::max(end, 2 * own.capacity()));
  });
  for_each_part([&](size_t part) {
    const auto& [rank, begin, end] = before.parts[part];
    const Step* from = steps_of(rank).data();
    std::vector<Step>& own = steps_of(rank + ranks);
    for (size_t s = begin; s < end; ++s) {
      own.push_back(from[s]);
      rename(own.back(), section);
    }
  });
  plan_.sections.push_back(std::move(section));
}

void Steps::ask(int32_t rank, Receive receive) {
  std::deque<Asked>& asked = asked_[rank];
  const int64_t bytes = landing_bytes(receive), first = landed_[rank];
  Interval place{};
  if (bytes > 0) {
    int64_t at = first;
    for (const Asked& other : asked)
      if (other.place.end > 0) at = other.place.end;
    if (at + bytes > first + std::max(kRoom, 2 * bytes)) at = first;
    place = {at, at + bytes};
    const auto in_the_way = [&](const Asked& other) {
      return other.place.begin < place.end && place.begin < other.place.end;
    };
    while (std::ranges::any_of(asked, in_the_way)) take_next(rank);
  }
  expect(rank, receive, place);
  asked.push_back({std::move(receive), place});
}

void Steps::take_next(int32_t rank) {
  std::deque<Asked>& asked = asked_[rank];
  Receive first = std::move(asked.front().receive);
  asked.pop_front();
  steps_of(rank).emplace_back(std::move(first));
}

void Steps::take_asked(int32_t rank) {
  while (!asked_[rank].empty()) take_next(rank);
}

bool Steps::needs_asked(int32_t rank, const Hold&) {
  // What comes may be of the head that lies there.
  return std::ranges::any_of(asked_[rank], [](const Asked& each) {
    return std::ranges::any_of(each.receive.boxes,
                               [](const Box& box) { return is_kv(box.operand); });
  });
}

void Steps::expect(const Needed* needed) {
  const auto is_needed = [&](const UnderWay& each) {
    if (!needed) return false;
    const auto own = needed->find(each.to);
    return own == needed->end() ||
           std::ranges::any_of(each.receive.sums, [&](const CarriedSum& sum) {
             const auto first = own->second.begin() + sum.block;
             return std::find(first, first + sum.count, true) != first + sum.count;
           });
  };
  for (UnderWay& each : under_way_) {
    const int64_t bytes = landing_bytes(each.receive);
    if (!is_needed(each)) {
      take_asked(each.to);
      int64_t& end = landed_[each.to];
      expect(each.to, each.receive, {end, end + bytes});
      end += bytes;
      add(each.to, std::move(each.receive), Place::behind);
    } else if (bytes > 0) {
      add(each.to, std::move(each.receive));
    } else {
      ask(each.to, std::move(each.receive));
    }
  }
  under_way_.clear();
  last_sums_.clear();
}

void Steps::expect(int32_t rank, const Receive& receive, Interval place) {
  const bool lands = place.end > place.begin;
  steps_of(rank).emplace_back(
      Expect{receive.from, receive.message, lands ? place.begin : int64_t{-1}});
  int64_t& most = plan_.ranks[static_cast<size_t>(rank)].landing;
  most = std::max(most, lands ? place.end : 0);
}

int64_t Steps::landing_bytes(const Receive& receive) const {
  if (lies_dense(plan_, receive)) return 0;
  return aligned(message_bytes(plan_, receive.boxes, receive.sums));
}

void Steps::behind() {
  for (auto& [rank, step] : behind_) add(rank, std::move(step));
  behind_.clear();
  landed_.clear();
}

void Steps::end() {
  for (const auto& [rank, asked] : asked_) take_asked(rank);
}

}  // namespace verbatim::dist
