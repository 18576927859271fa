#include "schedule/orders/cut.h"

#include <map>
#include <utility>
#include <vector>

#include "plan/whole_chains.h"

namespace verbatim::order {
namespace {

/// Lets one worker do the tasks in issue order, each until it has to wait, then those whose wait is
/// over. What it does in one go is a piece.
class Cutter {
 public:
  explicit Cutter(const HeadOrder& order)
      : order_(order),
        next_addend_(static_cast<size_t>(order.tiles->q_tiles()) *
                     static_cast<size_t>(order.group)),
        next_run_(order.chains.size()),
        pieces_of_(order.chains.size()) {}

  std::shared_ptr<const HeadOrder> cut() {
    for (const Task& task : order_.tasks)
      for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
        next_run_[c] = order_.chains[c].run_begin;
        go_on(c);
        while (!ready_.empty()) {
          const size_t woken = ready_.back();
          ready_.pop_back();
          go_on(woken);
        }
      }
    if (!parked_.empty()) return nullptr;
    auto cut = std::make_shared<HeadOrder>(order_);
    // The pieces of a chain lie behind each other, in the place of the whole.
    std::vector<int32_t> begin{0};
    for (const int32_t pieces : pieces_of_) begin.push_back(begin.back() + pieces);
    cut->chains.resize(pieces_.size());
    cut->tasks.clear();
    std::vector<int32_t> pieces_of_tile(order_.tiles->kv_tiles());
    for (const Piece& piece : pieces_) {
      const int32_t index = begin[piece.chain] + piece.number;
      Chain& chain = cut->chains[index] = order_.chains[piece.chain];
      chain.run_begin = piece.run_begin;
      chain.run_end = piece.run_end;
      chain.addend = pieces_of_tile[chain.tile]++;
      chain.continues = piece.number > 0;
      cut->tasks.push_back({index, index + 1});
    }
    for (Chain& chain : cut->chains) chain.addends = pieces_of_tile[chain.tile];
    mark_pieces(cut->chains);
    return cut;
  }

 private:
  struct Piece {
    size_t chain;
    int32_t run_begin, run_end, number;
  };
  using Wait = std::pair<size_t, int32_t>;  // row of a query head, addend

  size_t row_of(const Run& run, int32_t i) const {
    return static_cast<size_t>(run.tile(i)) * static_cast<size_t>(order_.group) +
           static_cast<size_t>(run.q_head);
  }
  /// Adds the visits of `run` if all may enter; else parks the chain for the first that may not.
  bool enter(const Run& run, size_t chain) {
    for (int32_t i = 0; i < run.count; ++i) {
      if (next_addend_[row_of(run, i)] == run.addend_of(i)) continue;
      parked_[{row_of(run, i), run.addend_of(i)}] = chain;
      return false;
    }
    for (int32_t i = 0; i < run.count; ++i) {
      const auto woken = parked_.find({row_of(run, i), ++next_addend_[row_of(run, i)]});
      if (woken == parked_.end()) continue;
      ready_.push_back(woken->second);
      parked_.erase(woken);
    }
    return true;
  }

  void go_on(size_t c) {
    const int32_t end = order_.chains[c].run_end, begin = next_run_[c];
    int32_t& run = next_run_[c];
    while (run < end && enter(order_.runs[run], c)) ++run;
    if (run > begin || begin == end) pieces_.push_back({c, begin, run, pieces_of_[c]++});
  }

  const HeadOrder& order_;
  std::vector<int32_t> next_addend_;  // of each row
  std::vector<int32_t> next_run_;     // of each chain
  std::vector<int32_t> pieces_of_;    // of each chain, so far
  std::vector<Piece> pieces_;
  std::vector<size_t> ready_;
  std::map<Wait, size_t> parked_;
};

}  // namespace

std::shared_ptr<const HeadOrder> cut_at_waits(const HeadOrder& order) {
  if (order.pass != Pass::backward) return nullptr;
  return Cutter(order).cut();
}

}  // namespace verbatim::order
