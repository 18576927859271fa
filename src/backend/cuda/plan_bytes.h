// A plan as a device holds it: its arrays, one behind the other, for one copy; behind these, of a
// long one, the lists of runs, which the device writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/cuda/device/plan_view.h"
#include "backend/cuda/device/run_spread.h"
#include "backend/local_piece.h"
#include "plan/dropout_origins.h"
#include "verbatim/plan.h"

namespace verbatim::cuda {

class PlanBytes {
 public:
  /// Runs from which on the device writes the lists. Those of shorter plans wait for no
  /// multiprocessor.
  static constexpr size_t kWorthSpreading = size_t{1} << 15;

  /// `piece`: what the plan is of, or null. Both are read as long as this is there.
  PlanBytes(const Plan& plan, const LocalPiece* piece, size_t worth_spreading = kWorthSpreading);

  int64_t size() const { return size_; }
  /// Of them, those to copy.
  int64_t copied() const { return copied_; }
  /// The lists behind these: where they are said, how many, and the runs of the longest.
  struct Spreads {
    const RunSpread* lists;
    int32_t count;
    int64_t most;
  };
  Spreads spreads(const void* memory) const;
  /// The plan in size() bytes of `memory`.
  PlanView view(const void* memory) const;
  /// The turns that rows of a piece begin with, there; null: it is none.
  const int32_t* first_turns(const void* memory) const;
  /// What is to be copied to `memory`, made in threads where it is long.
  std::unique_ptr<std::byte[]> make(const void* memory) const;

 private:
  /// Offsets of one order's arrays; -1: there is none.
  struct Order {
    int64_t runs, words, wide, stretches, chains, tasks, row_addends, q_edges, kv_edges, q_used,
        kv_used, slice_ids, slices, dropout_origins, q_rows, kv_rows, carries;
    int64_t run_count;
    int32_t stretch_count, q_tiles, kv_tiles;
  };
  /// Writes some of the bytes.
  using Part = std::function<void(std::byte* all)>;

  /// Where `bytes` more begin.
  int64_t reserve(int64_t bytes);
  /// What stays there as long as this, or as `kept`.
  template <class T>
  int64_t add(const std::vector<T>& values, std::shared_ptr<const void> kept = nullptr);
  template <class T>
  int64_t add(std::vector<T>&& values);
  /// As a list of Run.
  int64_t add(const Runs& runs);
  /// OrderView::q_used or kv_used: what `slices` show of an axis with these edges.
  int64_t add_used(const std::vector<Slice>& slices, const std::vector<int64_t>& edges,
                   int64_t Slice::*begin, int64_t Slice::*end);
  Order add(const HeadOrder& order, std::vector<DropoutOrigin> dropout_origins,
            const LocalHead* piece);
  OrderView view_of(const Order& order, const void* memory) const;
  RunSpread spread_of(const Order& order, const void* memory) const;

  const Plan& plan_;
  const LocalPiece* piece_;
  bool spread_;  // the device writes the lists
  std::vector<Order> orders_;
  int64_t turns_ = -1, heads_, sequences_, placed_, units_, views_, lists_;
  int64_t size_ = 0, copied_ = 0;
  std::vector<Part> parts_;
};

}  // namespace verbatim::cuda
