// Runs the steps of one rank. It knows nothing of strategies, and a transport nothing of attention:
// every addition is made here.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "dist/sizes.h"
#include "dist/step_record.h"
#include "verbatim/dist.h"
#include "verbatim/transport.h"

namespace verbatim::dist {

/// The tensors of a shard or of a work space: [1, rows, heads, dim], lse [1, heads, rows].
struct LocalTensors {
  std::array<TensorView, kOperands> views{};
  RowView lse{};

  TensorView& operator[](Operand operand) { return views[static_cast<size_t>(operand)]; }
  const TensorView& operator[](Operand operand) const {
    return views[static_cast<size_t>(operand)];
  }
};

/// Rows and heads of one batch entry of a tensor, in the sequence (row, head): of all heads, or of
/// one. Heads are dense.
ByteRows byte_rows(const TensorView& tensor, int64_t batch, Interval rows, Interval heads);
/// In the sequence (head, row).
ByteRows byte_rows(const RowView& statistic, int64_t batch, Interval rows, Interval heads);

/// A backend's memory of dense tensors.
class LocalMemory {
 public:
  /// `shape_of` says rows and heads of each operand. `poisoned`: every byte is 0xff, a NaN in each
  /// dtype.
  LocalMemory(const Backend& backend, const RunOptions& run, const Problem& problem,
              std::span<const Operand> operands, bool poisoned,
              const std::function<WorkShape(Operand)>& shape_of);
  const LocalTensors& tensors() const { return tensors_; }

 private:
  std::vector<std::shared_ptr<std::byte>> bytes_;
  LocalTensors tensors_;
};

/// The launches of one rank of a plan, made when they are first needed and kept for all runs of the
/// plan, one at a time.
class ReadyLaunches {
 public:
  /// That of the step with this number, or what `make` makes.
  const ReadyLaunch& of(size_t step,
                        const std::function<std::unique_ptr<const ReadyLaunch>()>& make);

 private:
  std::vector<std::unique_ptr<const ReadyLaunch>> by_step_;
};

/// What a run is asked besides its results.
struct RankRun {
  ReadyLaunches* kept = nullptr;  // null: launches are made for this run alone
  StepRecord* record = nullptr;   // null: nothing is timed
};

/// One rank on its way through its steps. Its memory starts as NaN, but where launches are kept: of
/// many runs of a plan that was proved. Where the backend is a GPU, its work is in sequence on
/// run.stream and not waited for.
class RankExecutor {
 public:
  /// `home` are the tensors of its shard.
  RankExecutor(const DistPlan& plan, int32_t rank, const Backend& backend, LocalTensors home,
               const RunOptions& run, const RankRun& asked = {});

  /// Goes on until a message is missing or all steps are done. Whether any step was made.
  bool advance(Transport& transport);
  bool done() const { return step_ == plan_.ranks[static_cast<size_t>(rank_)].steps.size(); }
  /// The step it is at.
  size_t step() const { return step_; }
  /// Nothing more is made: what is expected no longer lands in memory that is given back.
  void stop(Transport& transport);

 private:
  const RankPlan& own() const { return plan_.ranks[static_cast<size_t>(rank_)]; }
  /// This step, and those that are done with it.
  bool make(const Step& step, Transport& transport);
  struct Message {
    std::vector<ByteRows> rows;  // that it is packed of
    int64_t begin, bytes;        // where messages lie behind each other
    std::byte* there = nullptr;  // where it is received, if not there
  };
  /// The sends, or receives, from this step on that are packed, or unpacked, by one copy; `room`:
  /// the bytes in which they lie. What is received into one dense place is there, and what was
  /// expected where it landed.
  template <class End>
  std::vector<Message> together(int64_t& room) const;
  void send(Transport& transport);
  /// False: the message of the step it has come to is not there yet.
  bool receive(Transport& transport);
  bool expect(const Expect& step, Transport& transport);
  /// Does it, and notes when. What `work` returns is whether it was done.
  bool timed(StepTime::Kind kind, int64_t bytes, const std::function<bool()>& work);
  void compute(const Compute& step, Transport& transport);
  /// Those of the steps from `first` to the one it is at.
  void add(size_t first);
  /// Of the step with this number.
  void launch(size_t step, const std::function<std::unique_ptr<const ReadyLaunch>()>& make,
              StepTime::Kind kind, const std::function<void(const ReadyLaunch&)>& work);
  void hold(const Hold& hold);
  /// Memory of a piece in a room, with K and V from this head on.
  PieceMemory memory(int32_t room, int32_t head) const;
  /// K or V of a head, or of those from `head` to `last`.
  TensorView held(Operand operand, int32_t head) const { return held(operand, head, head); }
  TensorView held(Operand operand, int32_t head, int32_t last) const;
  /// dK or dV of heads whose rows lie as those of K and V.
  TensorView ended(Operand operand, int32_t head, int32_t last) const;
  /// Those of a room, and K, V, dK and dV.
  BackwardTensors backward_tensors(int32_t room) const;
  ByteRows rows_of(Space space, const Box& box, int32_t room) const;
  /// The rows of the boxes, then the sums of a message.
  template <class End>
  std::vector<ByteRows> rows_of(const End& message) const;
  std::shared_ptr<float> floats(int64_t count) const;

  const DistPlan& plan_;
  int32_t rank_;
  const Backend& backend_;
  RunOptions run_;
  LocalTensors home_;
  LocalMemory keys_;                             // what lies on the axis of keys
  std::vector<LocalMemory> rooms_;               // the rest; of those in place nothing
  std::vector<std::shared_ptr<float>> dq_sums_;  // by room
  std::vector<HeldRows> kv_rows_;                // of K and V in a slot, by batch entry
  std::vector<int64_t> slot_of_;                 // by head; -1: none
  int64_t slot_rows_;
  std::shared_ptr<float> blocks_;
  int64_t block_floats_;
  std::shared_ptr<std::byte> landing_;
  std::map<std::pair<int32_t, int64_t>, std::byte*> landed_;  // what is expected: sender, number
  RankRun asked_;
  size_t step_ = 0;
};

}  // namespace verbatim::dist
