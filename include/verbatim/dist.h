// Context parallelism: the plan of a whole problem, dealt to ranks as lists of steps. World size,
// strategy and sharding say who adds and what moves; what is added in which order is the plan's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "verbatim/piece.h"
#include "verbatim/plan.h"
#include "verbatim/run.h"

namespace verbatim {

struct StrategyInfo {
  const char* name;
  const char* summary;  // one line, for help and reports
};
/// Who computes what, and on which way K and V get there (docs/context-parallel.md).
std::span<const StrategyInfo> strategies();

struct ShardInfo {
  const char* name;
  const char* summary;
};
/// Which rank holds which positions.
std::span<const ShardInfo> shards();

inline constexpr int32_t kMostRanks = 4096;

struct DistOptions {
  int32_t world = 1;  // up to kMostRanks
  std::string strategy = "balanced";
  std::string shard{};       // empty: "balanced"
  int32_t ulysses_size = 0;  // usp, loongtrain: ranks that share heads; 0: choose
  int32_t ring_window = 0;   // loongtrain: ranks of an inner ring; 0: choose
  int32_t joined_heads = 0;  // KV heads of a launch at most; 0: all of a stage
  bool overlapped = false;   // messages come beside launches (Expect)
  bool operator==(const DistOptions&) const = default;
};
/// The same, with messages that come beside launches.
inline DistOptions overlapped_of(DistOptions options) {
  options.overlapped = true;
  return options;
}

/// Query rows whose visits of some KV heads another rank makes than the one that holds them.
struct MovedHeads {
  RowRange range;
  Interval kv_heads;
  int32_t rank;
  bool operator==(const MovedHeads&) const = default;
};

/// Positions by rank. Shards end at tile edges of both passes, as far as all heads of a batch entry
/// have the same tiles; positions of queries and keys are dealt alike where there are as many.
struct Sharding {
  std::string name;
  std::vector<HeldRows> q, kv;      // by rank; some may be empty
  std::vector<MovedHeads> moved{};  // apart from each other
};
/// `forward` and `backward` are plans of the same problem. Throws Error naming the nearest when
/// options.shard is unknown, or when there are not 1 to kMostRanks ranks; and as make_dist_plan().
Sharding make_sharding(const Plan& forward, const Plan& backward, const Mask& mask,
                       const DistOptions& options);

/// A tensor of the problem.
enum class Operand : uint8_t { q, k, v, o, lse, dout, dq, dk, dv };
inline constexpr int kOperands = 9;
std::string_view to_string(Operand operand);

/// A rank has its shard of every tensor (home), and what it needs to compute (work).
enum class Space : uint8_t { home, work };

/// A box of a tensor, in positions and heads of the problem.
struct Box {
  Operand operand;
  RowRange range;
  Interval heads;
  bool operator==(const Box&) const = default;
};

/// Boxes that the two ends of a transfer, or all hops of what goes round, have in common.
class Boxes {
 public:
  Boxes() = default;
  Boxes(std::vector<Box> boxes)  // NOLINT: a list of boxes is what it says
      : boxes_(boxes.empty() ? nullptr
                             : std::make_shared<const std::vector<Box>>(std::move(boxes))) {}
  const Box* begin() const { return boxes_ ? boxes_->data() : nullptr; }
  const Box* end() const { return begin() + size(); }
  size_t size() const { return boxes_ ? boxes_->size() : 0; }
  bool empty() const { return !boxes_; }
  bool operator==(const Boxes& other) const {
    return boxes_ == other.boxes_ || std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  std::shared_ptr<const std::vector<Box>> boxes_;
};

/// F32 sums of dK and dV on their way: of `count` KV tiles from `kv_tile` on, up or down, one
/// behind the other from `block` on in the memory of the rank.
struct CarriedSum {
  int32_t head, kv_tile, block, count = 1;
  int32_t step = 1;  // from a tile to the next: 1 or -1
  bool operator==(const CarriedSum&) const = default;
};

/// The sums of a message. Messages of heads that are dealt alike share one list, and know by how
/// much the numbers of their heads are greater.
class CarriedSums {
 public:
  class Iterator {
   public:
    using value_type = CarriedSum;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    Iterator(const CarriedSum* at, int32_t heads) : at_(at), heads_(heads) {}
    CarriedSum operator*() const {
      CarriedSum sum = *at_;
      sum.head += heads_;
      return sum;
    }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return {at_++, heads_}; }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    const CarriedSum* at_ = nullptr;
    int32_t heads_ = 0;
  };

  CarriedSums() = default;
  CarriedSums(std::vector<CarriedSum> sums)  // NOLINT: a list of sums is what it says
      : sums_(sums.empty() ? nullptr
                           : std::make_shared<const std::vector<CarriedSum>>(std::move(sums))) {}
  Iterator begin() const { return {sums_ ? sums_->data() : nullptr, heads_}; }
  Iterator end() const { return {sums_ ? sums_->data() + sums_->size() : nullptr, heads_}; }
  size_t size() const { return sums_ ? sums_->size() : 0; }
  bool empty() const { return !sums_; }
  CarriedSum operator[](size_t i) const { return *Iterator(sums_->data() + i, heads_); }
  CarriedSum front() const { return *begin(); }
  /// Of heads whose numbers are so much greater.
  void rename(int32_t heads) { heads_ += heads; }
  /// Whether they are those of `before`, renamed.
  bool is_renamed(const CarriedSums& before, int32_t heads) const {
    if (sums_ == before.sums_ && (!sums_ || heads_ == before.heads_ + heads)) return true;
    return std::equal(begin(), end(), before.begin(), before.end(),
                      [heads](const CarriedSum& sum, CarriedSum other) {
                        other.head += heads;
                        return sum == other;
                      });
  }

 private:
  std::shared_ptr<const std::vector<CarriedSum>> sums_;
  int32_t heads_ = 0;
};

/// A place on the way of a chain. A pass is what a chain visits of one query head, in one
/// direction, before it turns; the place is before those visits of the pass that are at `tile` (of
/// the streamed axis) or beyond, and before all later passes.
struct Place {
  int32_t pass = -1, tile = 0;  // before all
  bool operator==(const Place&) const = default;
};

/// Chains from `chain` on, as the order has them before any is cut in pieces for few workers, from
/// one place of their ways to another.
struct Stretch {
  int32_t chain = 0, count = 0;
  Place begin, end;
  bool operator==(const Stretch&) const = default;
};

/// What a rank does of an order at once: visits that wait for no other rank but for what was sent
/// before. Said by ranges, for chains that many ranks cut have more pieces than can be listed.
struct OrderPart {
  std::shared_ptr<const HeadOrder> whole;
  std::vector<Stretch> stretches;  // by chain; apart from each other

  /// The chains of the stretches, with these visits alone.
  std::shared_ptr<const HeadOrder> make() const;
};

// The steps of a rank. A send returns when its bytes are copied, a receive when they are there. A
// collective is its sends and receives. `message` is a number that one send and one receive have.

/// K and V of a head get a slot of memory in the work space; what lay there is gone.
struct Hold {
  int32_t head = 0, slot = 0;
};
struct Send {
  int32_t to;
  int64_t message;
  Space space;
  Boxes boxes;
  CarriedSums sums{};
  int32_t room = 0;  // of query rows in the work space
};
/// From here on the message may come, while launches run that do not need it: up to its Receive,
/// which is behind this, where it lands is its own. It must have been sent without this rank.
struct Expect {
  int32_t from;
  int64_t message;
  int64_t at = -1;  // where in the landing memory, in bytes; -1: in the blocks of its sums
};
struct Receive {
  int32_t from;
  int64_t message;
  Space space;
  Boxes boxes;
  CarriedSums sums{};
  int32_t room = 0;
};
struct Copy {
  Space from, to;
  Boxes boxes;
  int32_t room = 0;
};
/// What a launch does of one head.
struct HeadPart {
  int32_t head = 0;
  std::shared_ptr<const OrderPart> part;  // heads with equal orders share it
  std::vector<Carry> carries{};  // backward: of each stretch's first chain; others lie behind it
};
/// One launch. Several heads are of one batch entry, ascending, with their whole groups in the
/// room; slots of K and V are as far apart as the heads.
struct Compute {
  std::vector<HeadPart> heads;
  int32_t room = 0;  // of its query rows

  /// With each of their chains, as a backend runs it, of `whole`, the plan that is dealt: in the
  /// sequence in which that places them. Where nothing waits for what comes later and it has less
  /// than half of the tasks, without groups the longest first, and in a backward of groups one or
  /// two heads are spaced (docs/placements.md).
  Piece piece(const Plan& whole) const;
};
/// Ends the sums of `count` KV tiles from that of `sums` on, whose blocks hold the parts of the
/// first; those of the next lie behind them or before.
struct Add {
  TileSums sums;
  int32_t count = 1;
  int32_t step = 1;  // from a block to that of the next tile: 1 or -1

  /// Of the i-th tile.
  TileSums tile(int32_t i) const;
};
using Step = std::variant<Hold, Send, Expect, Receive, Copy, Compute, Add>;

/// Memory of a work space for q, o, lse, dout and dq of some rows and query heads.
struct Room {
  HeldRows q;
  Interval heads{};
  bool in_place = false;  // that at home: all of its rows and heads
};

/// What one rank holds and does.
struct RankPlan {
  HeldRows home_q, home_kv;   // of all heads
  std::vector<Room> rooms{};  // in its work space, each for launches of its own
  HeldRows kv;                // there: of K and V, head by head
  HeldRows ended;             // of dK and dV there: whose sums end on this rank
  Interval kv_heads{};        // of the work space
  int32_t kv_slots = 0;       // heads whose K and V are held at once
  int32_t blocks = 0;         // f32 sums of dK and dV held at once
  int64_t landing = 0;        // bytes for messages that are expected
  std::vector<Step> steps;
};

/// Steps of some ranks. Blocks of these ranks hold no sums and expect none before and after, and
/// messages pass between these steps alone.
struct Section {
  /// Steps [begin, end) of a rank.
  struct Part {
    int32_t rank = 0;
    size_t begin = 0, end = 0;
  };
  std::vector<Part> parts;  // of different ranks
  /// The section before that this one repeats, part by part and step by step, with heads, ranks and
  /// messages whose numbers are so much greater. Neither expects any. -1: none.
  int32_t as = -1;
  int32_t heads = 0, ranks = 0;
  int64_t messages = 0;
};

/// One pass, dealt. Static data: every engine runs the same lists.
struct DistPlan {
  Plan whole;
  DistOptions options;  // as chosen
  std::string shard;
  std::vector<RankPlan> ranks;
  /// Apart from each other; of what repeats, sums are proved once. Who changes steps clears them:
  /// then verify() plays all. JSON has none.
  std::vector<Section> sections{};
};

/// Deals `whole`. Throws Error naming the nearest that does when the strategy is unknown, or the
/// world, the Ulysses group, the ring window or heads that move do not fit.
DistPlan make_dist_plan(const Plan& whole, const Sharding& sharding, const DistOptions& options);

/// Proves, by playing all ranks without computing, that every visit of the plan is made once, that
/// sums are taken in its order and complete, that what a step reads is there, that every send has
/// its receive, that no rank waits forever, and that all results end at home. Throws
/// Error(invalid_plan) naming rank and step.
void verify(const DistPlan& plan);

/// JSON with its whole plan, options and the steps of every rank (docs/schema.md).
std::string to_json(const DistPlan& plan);
/// Proves what it reads. Throws Error naming the member at fault, or what verify() finds.
DistPlan dist_plan_from_json(const std::string& text);

/// Bytes that a rank sends.
int64_t sent_bytes(const DistPlan& plan, int32_t rank);
/// Bytes of a rank's memory: its shard, its work space, its f32 sums, and where messages land that
/// are expected; without other messages on the way and what launches need of the plan.
int64_t memory_bytes(const DistPlan& plan, int32_t rank);
/// The most that a rank of a GPU holds while it runs: memory_bytes(), and what is packed or taken
/// apart by one copy, or what a launch has beside, whichever is more. At most: launches are taken
/// to have as many rows as the rank's largest room, and 1 MiB for their turns.
int64_t peak_bytes(const DistPlan& plan, int32_t rank);

/// What a run moved and computed, by rank.
struct RankReport {
  int64_t sent_bytes = 0;  // counted where they are sent
  double compute_seconds = 0;
  double seconds = 0;                    // where ranks are processes: until all were done
  std::vector<double> launch_seconds{};  // of each Compute step
};

/// One thing that a rank did for a step, in seconds from the beginning of a recording. Sends
/// behind each other are packed first, receives unpacked behind the last, up to 32 MiB at once;
/// additions behind each other are one thing. To settle is to wait, in front of a launch, until
/// what was sent is taken. To receive what was expected is to wait for the rest of it.
struct StepTime {
  enum class Kind : uint8_t { pack, send, expect, receive, unpack, copy, settle, launch, add };
  Pass pass;
  Kind kind;
  int64_t bytes = 0;              // packed, sent, received, unpacked or copied
  double called = 0, issued = 0;  // when the host began and ended to ask for it
  double begin = 0, end = 0;      // of the work: on a GPU in the sequence of its stream
};
std::string_view to_string(StepTime::Kind kind);

/// One process plays all ranks, step by step: the executable meaning of a distributed plan. Tensors
/// are those of the whole problem; each rank works in memory of its own, which starts as NaN.
/// `device` is "cpu", "cuda" or "cuda:N"; there, seconds are those of kernels, by events. With a
/// seed in `delays`, messages come late, or what is expected not before it is taken, and ranks take
/// turns by chance: another legal sequence, the same bits.
std::vector<RankReport> replay(const DistPlan& plan, const ForwardTensors& tensors,
                               const std::string& device = "cpu", const RunOptions& run = {},
                               std::optional<uint64_t> delays = {});
std::vector<RankReport> replay(const DistPlan& plan, const BackwardTensors& tensors,
                               const std::string& device = "cpu", const RunOptions& run = {},
                               std::optional<uint64_t> delays = {});

}  // namespace verbatim
