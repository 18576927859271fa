#include "dist/steps.h"

#include "dist/sections.h"
#include "dist/sizes.h"

namespace verbatim::dist {
namespace {

void append(std::vector<CarriedSum>& sums, const std::vector<CarriedSum>& more) {
  sums.insert(sums.end(), more.begin(), more.end());
}

}  // namespace

std::vector<Box> boxes_of(std::span<const Operand> operands, const HeldRows& rows, Interval heads) {
  std::vector<Box> boxes;
  if (heads.begin >= heads.end) return boxes;
  for (const Operand operand : operands)
    for (const RowRange& range : rows.ranges()) boxes.push_back({operand, range, heads});
  return boxes;
}

void append(std::vector<Box>& boxes, std::vector<Box> more) {
  boxes.insert(boxes.end(), more.begin(), more.end());
}

void Steps::move(int32_t from, Space source, int32_t to, Space target, const Boxes& boxes,
                 int32_t room) {
  if (boxes.empty()) return;
  if (from == to) {
    add(to, Copy{source, target, boxes, room});
  } else {
    const auto of = [room](Space space) { return space == Space::work ? room : 0; };
    send({to, messages_, source, boxes, {}, of(source)}, from,
         {from, messages_, target, boxes, {}, of(target)});
  }
}

void Steps::hand_on(int32_t from, std::vector<CarriedSum> sent, int32_t to,
                    std::vector<CarriedSum> received) {
  const int64_t bytes = message_bytes(plan_, {}, sent);
  const auto [last, first] = last_sums_.try_emplace({from, to});
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

void Steps::send(Send send, int32_t from, Receive receive) {
  under_way_.push_back({send.to, steps_of(from).size(), std::move(receive)});
  add(from, std::move(send));
  ++messages_;
}

void Steps::take() {
  for (UnderWay& each : under_way_) add(each.to, std::move(each.receive));
  under_way_.clear();
  last_sums_.clear();
}

void Steps::repeat(int32_t as, int64_t first, int32_t heads, int32_t ranks) {
  const Section& before = plan_.sections[static_cast<size_t>(as)];
  Section section{{}, as, heads, ranks, messages_ - first};
  for (const auto& [rank, begin, end] : before.parts) {
    std::vector<Step>& own = steps_of(rank + ranks);
    section.parts.push_back({rank + ranks, own.size(), own.size() + (end - begin)});
    for (size_t s = begin; s < end; ++s) {
      own.push_back(renamed(steps_of(rank)[s], section));
      messages_ += std::holds_alternative<Send>(own.back()) ? 1 : 0;
    }
  }
  plan_.sections.push_back(std::move(section));
}

}  // namespace verbatim::dist
