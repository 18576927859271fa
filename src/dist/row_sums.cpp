#include "dist/row_sums.h"

#include <algorithm>
#include <cstdlib>

namespace verbatim::dist {

void RowSums::add(const Run& run, int32_t q_head, int32_t heads, int32_t begin, int32_t end,
                  int32_t chains) {
  const bool flat = run.addend_step == 0, apart = std::abs(run.step) != 1;
  const int32_t every = flat || apart ? 1 : run.addend_every;
  Heads& own = heads_of(q_head, heads, every);
  const bool up = run.step > 0;
  const auto add = [&](int32_t from, int32_t to) {
    if (from >= to) return;
    const int32_t low = up ? from : to - 1, high = up ? to - 1 : from;
    const int64_t all = chains, later = all * (all - 1) / 2;  // one more in each chain
    own.add({run.tile(low), run.tile(high) + 1, chains, all * run.addend_of(low) + later,
             all * (up ? run.addend_step : -run.addend_step)});
  };
  if (apart) {
    for (int32_t i = begin; i < end; ++i) add(i, i + 1);
    return;
  }
  // The first and the last of those that share a number may be but a part.
  const int32_t first = std::min(end, (begin + every - 1) / every * every);
  const int32_t last = std::max(first, end / every * every);
  add(begin, first);
  add(first, last);
  add(last, end);
}

void RowSums::add(int32_t q_head, int32_t row, int32_t number) {
  heads_of(q_head, 1, 1).add({row, row + 1, 1, number, 0});
}

RowSums::Heads& RowSums::heads_of(int32_t q_head, int32_t heads, int32_t every) {
  const auto is = [&](const Heads& own) {
    return own.q_head == q_head && own.heads == heads && own.every == every;
  };
  for (size_t next = last_; next < std::min(last_ + 2, all_.size()); ++next)
    if (is(all_[next])) return all_[last_ = next];
  auto own = std::ranges::find_if(all_, is);
  if (own == all_.end()) own = all_.insert(own, {q_head, heads, every});
  last_ = static_cast<size_t>(own - all_.begin());
  return *own;
}

void RowSums::Heads::cover(int32_t from, int32_t to) {
  if (rows.empty()) first = from;
  if (from < first) {  // mostly by one more each time
    const int32_t more = std::min(first, std::max(first - from, static_cast<int32_t>(rows.size())));
    rows.insert(rows.begin(), static_cast<size_t>(more), {});
    first -= more;
  }
  const auto needed = static_cast<size_t>(to - first) + 1;
  if (needed > rows.size()) rows.resize(needed);
}

void RowSums::Heads::add(const Addends& addends) {
  const int32_t count = addends.last - addends.first, steps = count / every;
  cover(addends.first, addends.last);
  Differences* row = rows.data() + (addends.first - first);
  row->count += addends.count;
  row->number += addends.number;
  Differences& end = row[count];
  end.count -= addends.count;
  end.number -= addends.number;
  if (steps < 2 || addends.step == 0) return;
  row[every].step += addends.step;
  end.step -= addends.step;
  end.number -= (steps - 1) * addends.step;
}

std::vector<PartFacts::RowPart> RowSums::take(int32_t group) const {
  std::vector<PartFacts::RowPart> parts;
  std::vector<PartFacts::RowPart> rows;  // of a query head
  size_t before = 0;                     // in parts: of the head before
  for (int32_t h = 0; h < group; ++h) {
    const size_t begin = parts.size();
    const auto as_before = [h](const Heads& own) { return own.has(h) == own.has(h - 1); };
    if (h > 0 && std::ranges::all_of(all_, as_before)) {
      for (size_t i = before; i < begin; ++i) {
        parts.push_back(parts[i]);
        parts.back().q_head = h;
      }
      before = begin;
      continue;
    }
    before = begin;
    rows.clear();
    for (const Heads& own : all_) {
      if (!own.has(h)) continue;
      std::vector<int64_t> steps(static_cast<size_t>(own.every));  // of the last rows
      int32_t count = 0;
      int64_t number = 0;
      for (size_t d = 0; d < own.rows.size(); ++d) {
        const Heads::Differences& next = own.rows[d];
        int64_t& step = steps[d % steps.size()];
        step += next.step;
        number += step + next.number;
        count += next.count;
        if (count > 0) rows.push_back({h, own.first + static_cast<int32_t>(d), count, number});
      }
    }
    std::ranges::stable_sort(rows, {}, &PartFacts::RowPart::q_tile);
    for (const PartFacts::RowPart& row : rows) {
      if (parts.empty() || parts.back().q_head != h || parts.back().q_tile != row.q_tile) {
        parts.push_back(row);
      } else {
        parts.back().count += row.count;
        parts.back().numbers += row.numbers;
      }
    }
  }
  return parts;
}

}  // namespace verbatim::dist
