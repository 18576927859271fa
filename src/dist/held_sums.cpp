#include "dist/held_sums.h"

namespace verbatim::dist {

int32_t HeldSums::find_held(int32_t first, int32_t count) const {
  const auto begin = row_of_.begin() + first, end = begin + count;
  int32_t all = kNone;  // whose bits are all set
  for (auto row = begin; row != end; ++row) all &= *row;
  if (all == kNone) return -1;  // as mostly
  const auto held = std::find_if(begin, end, [](int32_t row) { return row != kNone; });
  return static_cast<int32_t>(held - row_of_.begin());
}

void HeldSums::put(int32_t first, const Sums& sums) {
  auto row = static_cast<int32_t>(rows_.size());
  if (unused_.empty()) {
    rows_.emplace_back();
  } else {
    row = unused_.back();
    unused_.pop_back();
  }
  rows_[static_cast<size_t>(row)] = {first, sums.count, sums};
  std::fill_n(row_of_.begin() + first, sums.count, row);
  held_ += sums.count;
}

Sums HeldSums::take(int32_t first, int32_t count) {
  const auto begin = row_of_.begin() + first;
  const int32_t number = *begin;
  if (number < 0) return {};
  const auto end =
      std::find_if(begin, begin + count, [number](int32_t row) { return row != number; });
  std::fill(begin, end, kNone);
  Row& row = rows_[static_cast<size_t>(number)];
  const auto taken = static_cast<int32_t>(end - begin);
  row.left -= taken;
  held_ -= taken;
  if (row.left == 0) unused_.push_back(number);
  return row.sums.part(first - row.block, taken);
}

}  // namespace verbatim::dist
