// A plan as a device holds it: its arrays, one behind the other, for one copy; behind these, long
// lists of runs, which the device writes.
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
  /// `piece`: what the plan is of, or null. Both are read as long as this is there.
  PlanBytes(const Plan& plan, const LocalPiece* piece);

  int64_t size() const { return size_; }
  /// Of them, those to copy.
  int64_t copied() const { return copied_; }
  /// The lists behind these, in the copy of make(): where, how many, and the runs of the longest.
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
    int64_t runs, chains, tasks, row_addends, q_edges, kv_edges, q_used, kv_used, slice_ids, slices,
        dropout_origins, q_rows, kv_rows, carries;
    int32_t q_tiles, kv_tiles;
    int32_t spread = -1;  // number of the list that its runs are spread from
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
  /// A list to be spread.
  struct Spread {
    int64_t words, wide, parts, to;
    int64_t runs;
    int32_t part_count;
  };
  Spread add_spread(const Runs& runs);
  RunSpread spread_of(const Spread& spread, const void* memory) const;
  Order add(const HeadOrder& order, std::vector<DropoutOrigin> dropout_origins,
            const LocalHead* piece);
  OrderView view_of(const Order& order, const void* memory) const;

  const Plan& plan_;
  const LocalPiece* piece_;
  std::vector<Order> orders_;
  std::vector<Spread> spreads_;
  int64_t turns_ = -1, heads_, sequences_, placed_, units_, views_, lists_;
  int64_t size_ = 0, copied_ = 0;
  std::vector<Part> parts_;
};

}  // namespace verbatim::cuda
