#include "dist/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/threads.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

template <class End>
bool is_renamed(const End& end, const End& before, const Section& by) {
  return end.message == before.message + by.messages && end.room == before.room &&
         end.space == before.space && end.boxes.empty() && before.boxes.empty() &&
         end.sums.is_renamed(before.sums, by.heads);
}

bool is_renamed(const Step& step, const Step& before, const Section& by) {
  if (step.index() != before.index()) return false;
  const auto compare = [&]<class T>(const T& own) {
    const T& other = std::get<T>(before);
    if constexpr (std::is_same_v<T, Send>) {
      return own.to == other.to + by.ranks && is_renamed(own, other, by);
    } else if constexpr (std::is_same_v<T, Receive>) {
      return own.from == other.from + by.ranks && is_renamed(own, other, by);
    } else if constexpr (std::is_same_v<T, Compute>) {
      const auto same = [&](const HeadPart& a, const HeadPart& b) {
        return a.head == b.head + by.heads && a.part == b.part && a.carries == b.carries;
      };
      return own.room == other.room && std::ranges::equal(own.heads, other.heads, same);
    } else if constexpr (std::is_same_v<T, Add>) {
      return own.sums.head == other.sums.head + by.heads &&
             own.sums.kv_tile == other.sums.kv_tile && own.sums.blocks == other.sums.blocks &&
             own.count == other.count && own.step == other.step;
    } else {
      return false;  // what has no sums
    }
  };
  return std::visit(compare, step);
}

/// Whether the sums that a step puts into blocks are in so many.
bool fits(const Step& step, int64_t blocks) {
  const auto all_fit = [&](const HeadPart& own) {
    for (size_t s = 0; s < std::min(own.carries.size(), own.part->stretches.size()); ++s)
      if (own.carries[s].out >= 0 &&
          int64_t{own.carries[s].out} + own.part->stretches[s].count > blocks)
        return false;
    return true;
  };
  if (const auto* compute = std::get_if<Compute>(&step))
    return std::ranges::all_of(compute->heads, all_fit);
  const auto* receive = std::get_if<Receive>(&step);
  return !receive || std::ranges::all_of(receive->sums, [&](const CarriedSum& sum) {
    return int64_t{sum.block} + sum.count <= blocks;
  });
}

bool repeats(const DistPlan& plan, const Section& section, const Section& before) {
  const auto part_repeats = [&](const Section::Part& part, const Section::Part& other) {
    if (part.rank != other.rank + section.ranks || part.end - part.begin != other.end - other.begin)
      return false;
    const RankPlan& own = plan.ranks[static_cast<size_t>(part.rank)];
    const RankPlan& as = plan.ranks[static_cast<size_t>(other.rank)];
    for (size_t s = 0; s < part.end - part.begin; ++s) {
      const Step& step = own.steps[part.begin + s];
      if (!is_renamed(step, as.steps[other.begin + s], section) ||
          (own.blocks < as.blocks && !fits(step, own.blocks)))
        return false;
    }
    return true;
  };
  return std::ranges::equal(section.parts, before.parts, part_repeats);
}

[[noreturn]] void fail(int32_t section, const std::string& what) {
  throw Error(ErrorCode::invalid_plan, "dist.verify", fmt::format("section {} {}", section, what));
}

[[noreturn]] void fail_repeat(int32_t section, const Section& own) {
  fail(section, fmt::format("does not repeat section {}", own.as));
}

}  // namespace

void rename(Step& step, const Section& section) {
  const auto rename_sums = [&](auto& end) {
    end.message += section.messages;
    end.sums.rename(section.heads);
  };
  if (auto* send = std::get_if<Send>(&step)) {
    send->to += section.ranks;
    rename_sums(*send);
  } else if (auto* receive = std::get_if<Receive>(&step)) {
    receive->from += section.ranks;
    rename_sums(*receive);
  } else if (auto* compute = std::get_if<Compute>(&step)) {
    for (HeadPart& head : compute->heads) head.head += section.heads;
  } else if (auto* add = std::get_if<Add>(&step)) {
    add->sums.head += section.heads;
  }
}

Sections::Sections(const DistPlan& plan) : parts_(plan.ranks.size()), at_(plan.ranks.size()) {
  const std::vector<Section>& all = plan.sections;
  size_t steps = 0;
  for (int32_t n = 0; n < std::ssize(all); ++n) {
    const Section& own = all[static_cast<size_t>(n)];
    for (const auto& [rank, begin, end] : own.parts) {
      if (rank < 0 || rank >= std::ssize(plan.ranks) || begin > end ||
          end > plan.ranks[static_cast<size_t>(rank)].steps.size())
        fail(n, "is not of steps that are there");
      // Parts of a rank could stand in another sequence than those they repeat.
      std::vector<Part>& of_rank = parts_[static_cast<size_t>(rank)];
      if (!of_rank.empty() && of_rank.back().section == n)
        fail(n, fmt::format("has two parts of rank {}", rank));
      of_rank.push_back({begin, end, n});
      steps += end - begin;
    }
    repeats_.push_back(own.as >= 0);
    if (own.as >= n || (own.as >= 0 && repeats_[static_cast<size_t>(own.as)])) fail_repeat(n, own);
  }
  for_each_in_parallel(
      steps < kStepsWorthThreads ? 1 : core_count(), std::ssize(all), [&](int64_t n) {
        const Section& own = all[static_cast<size_t>(n)];
        if (own.as >= 0 && !dist::repeats(plan, own, all[static_cast<size_t>(own.as)]))
          fail_repeat(static_cast<int32_t>(n), own);
      });
  for (std::vector<Part>& parts : parts_) {
    std::ranges::sort(parts, {}, &Part::begin);
    for (size_t i = 1; i < parts.size(); ++i)
      if (parts[i].begin < parts[i - 1].end) fail(parts[i].section, "is not apart from others");
  }
}

bool Sections::enter(int32_t rank, size_t step) {
  const std::vector<Part>& parts = parts_[static_cast<size_t>(rank)];
  auto& [next, section] = at_[static_cast<size_t>(rank)];
  while (next < parts.size() && parts[next].end <= step) ++next;
  const bool inside = next < parts.size() && parts[next].begin <= step;
  const int32_t before = std::exchange(section, inside ? parts[next].section : -1);
  return section != before;
}

}  // namespace verbatim::dist
