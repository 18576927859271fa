// What a device gets of a plan, read as kernels read it. Needs no GPU.
#include "backend/cuda/plan_bytes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "backend/cuda/gpu_case.h"
#include "dist/local_pieces.h"
#include "mask/slice.h"

namespace verbatim::test {
namespace {

/// A device's memory at an address of its own.
class Memory {
 public:
  explicit Memory(const cuda::PlanBytes& bytes)
      : size_(bytes.size()),
        copied_(bytes.copied()),
        bytes_(bytes.make(kAddress)),
        view_(bytes.view(kAddress)),
        turns_(bytes.first_turns(kAddress)),
        spreads_(bytes.spreads(kAddress)) {}

  const cuda::PlanView& view() const { return view_; }
  const int32_t* turns() const { return turns_; }
  /// Whether the array at this address of the device is as these.
  template <class T>
  bool holds(const T* address, const std::vector<T>& values) const {
    const int64_t begin = here(address);
    EXPECT_EQ(begin % 16, 0);
    return values.empty() ||
           (0 <= begin && begin + std::ssize(values) * int64_t{sizeof(T)} <= copied_ &&
            std::memcmp(bytes_.get() + begin, values.data(), values.size() * sizeof(T)) == 0);
  }
  /// A list of runs, copied, or spread as a device does it.
  bool holds_runs(const Run* address, const std::vector<Run>& runs) const {
    if (spreads_.count == 0) return holds(address, runs);
    EXPECT_GE(here(address), copied_);
    EXPECT_LE(here(address) + std::ssize(runs) * int64_t{sizeof(Run)}, size_);
    for (int32_t i = 0; i < spreads_.count; ++i) {
      cuda::RunSpread list;
      std::memcpy(&list, bytes_.get() + here(spreads_.lists + i), sizeof list);
      if (list.to != address) continue;
      list.words = at(list.words), list.wide = at(list.wide), list.stretches = at(list.stretches);
      EXPECT_LE(list.runs, spreads_.most);
      for (int64_t r = 0; r < list.runs; ++r)
        if (cuda::spread_run(list, r) != runs[static_cast<size_t>(r)]) return false;
      return list.runs == std::ssize(runs);
    }
    return false;
  }
  cuda::OrderView order(size_t i) const {
    cuda::OrderView order;
    std::memcpy(&order, bytes_.get() + here(view_.orders + i), sizeof order);
    return order;
  }

 private:
  static int64_t here(const void* address) {
    return static_cast<const std::byte*>(address) - kAddress;
  }
  template <class T>
  const T* at(const T* address) const {
    return reinterpret_cast<const T*>(bytes_.get() + here(address));
  }

  static inline std::byte* const kAddress = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  int64_t size_, copied_;
  std::unique_ptr<std::byte[]> bytes_;
  cuda::PlanView view_;
  const int32_t* turns_;
  cuda::PlanBytes::Spreads spreads_;
};

/// Of each tile between `edges`, the positions up to the last that any slice shows.
std::vector<int32_t> used(const std::vector<int64_t>& edges, const std::vector<Slice>& slices,
                          int64_t Slice::*begin, int64_t Slice::*end) {
  std::vector<int32_t> used(edges.size() - 1);
  for (size_t t = 0; t < used.size(); ++t)
    for (const Slice& slice : slices) {
      const auto shown = tighten(slice);
      if (!shown || (*shown).*begin >= edges[t + 1] || (*shown).*end <= edges[t]) continue;
      const int64_t last = std::min((*shown).*end, edges[t + 1]);
      used[t] = std::max(used[t], static_cast<int32_t>(last - edges[t]));
    }
  return used;
}

/// Its lists of runs are spread where they have at least so many.
void expect_plan(const Plan& plan, const LocalPiece* piece, size_t worth_spreading) {
  SCOPED_TRACE(worth_spreading);
  const Memory memory(cuda::PlanBytes(plan, piece, worth_spreading));
  EXPECT_TRUE(memory.holds(memory.view().order_of_head, plan.order_of_head));
  EXPECT_TRUE(memory.holds(memory.view().placed, plan.placement.tasks.list()));
  EXPECT_EQ(memory.view().unit_begin == nullptr, plan.placement.queue);
  if (!plan.placement.queue) {
    EXPECT_TRUE(memory.holds(memory.view().unit_begin, plan.placement.worker_begin));
  }
  EXPECT_EQ(memory.view().unit_count, plan.placement.queue ? std::ssize(plan.placement.tasks.list())
                                                           : plan.placement.workers);
  EXPECT_EQ(memory.view().kv_heads, plan.problem.kv_heads);
  EXPECT_EQ(memory.view().group, plan.problem.group());
  EXPECT_EQ(memory.view().first_q_head, piece ? piece->q_head : 0);
  DropoutOrigins origins(plan);
  if (piece) origins.first_sequence = piece->first_sequence;
  EXPECT_TRUE(memory.holds(memory.view().first_sequence, origins.first_sequence));
  EXPECT_EQ(memory.turns() == nullptr, piece == nullptr);
  if (piece) {
    EXPECT_TRUE(memory.holds(memory.turns(), piece->first_addends));
  }
  for (size_t i = 0; i < plan.orders.size(); ++i) {
    SCOPED_TRACE(i);
    const HeadOrder& order = *plan.orders[i];
    const TileMap& tiles = *order.tiles;
    const cuda::OrderView view = memory.order(i);
    EXPECT_TRUE(memory.holds_runs(view.runs, order.runs.all()));
    EXPECT_TRUE(memory.holds(view.chains, order.chains));
    EXPECT_TRUE(memory.holds(view.tasks, order.tasks));
    EXPECT_TRUE(memory.holds(view.row_addends, order.row_addends));
    EXPECT_TRUE(memory.holds(view.q_edges, tiles.q_edges));
    EXPECT_TRUE(memory.holds(view.kv_edges, tiles.kv_edges));
    EXPECT_TRUE(memory.holds(view.q_used,
                             used(tiles.q_edges, tiles.slices(), &Slice::q_begin, &Slice::q_end)));
    EXPECT_TRUE(memory.holds(view.kv_used,
                             used(tiles.kv_edges, tiles.slices(), &Slice::k_begin, &Slice::k_end)));
    EXPECT_TRUE(memory.holds(view.slice_ids, tiles.slice_ids));
    EXPECT_TRUE(memory.holds(view.slices, tiles.slices()));
    EXPECT_TRUE(memory.holds(view.dropout_origins, origins.of_order[i]));
    EXPECT_TRUE(memory.holds(view.q_rows, piece ? piece->heads[i].q_rows : tiles.q_edges));
    EXPECT_TRUE(memory.holds(view.kv_rows, piece ? piece->heads[i].kv_rows : tiles.kv_edges));
    EXPECT_EQ(view.carries == nullptr, piece == nullptr);
    if (piece) {
      EXPECT_TRUE(memory.holds(view.carries, piece->heads[i].carries));
    }
    EXPECT_EQ(view.q_tiles, tiles.q_tiles());
    EXPECT_EQ(view.kv_tiles, tiles.kv_tiles());
  }
}

void expect_plan(const Plan& plan, const LocalPiece* piece) {
  for (const size_t worth_spreading : {size_t{0}, SIZE_MAX})
    expect_plan(plan, piece, worth_spreading);
}

Plan plan_of(const Problem& problem, const Mask& mask, Pass pass, const std::string& placement) {
  PlanOptions options;
  options.pass = pass;
  options.arithmetic = "sm90";
  options.placement = placement;
  return make_plan(problem, mask, options);
}

TEST(PlanBytes, AreThePlan) {
  const std::vector<int64_t> documents{700, 16, 0, 1301, 84};
  bool wide = false, by_heads = false, by_times = false;  // of runs, what the cases have
  for (const Mask& mask :
       {masks::full(300, 30000), masks::causal(2101, 2101), masks::causal_document(documents),
        masks::uniform_block_sparse(2048, 2048, 64, 64, 0.5, 1, 2),
        masks::uniform_block_sparse(4000, 5000, 50, 70, 0.01, 3, 2),
        masks::causal_sliding_window(2101, 2101, 300)})
    for (const auto& [pass, placement] :
         {std::pair{Pass::forward, "static"}, {Pass::forward, "auto"}, {Pass::backward, "auto"}}) {
      SCOPED_TRACE(fmt::format("{} {} {}", mask.name(), to_string(pass), placement));
      const Problem problem = problem_of(mask, 128, 2);
      const Plan plan = plan_of(problem, mask, pass, placement);
      expect_plan(plan, nullptr);
      for (const auto& order : plan.orders) {
        wide = wide || !order->runs.kept().wide().empty();
        for (const RunStretch& s : order->runs.stretches()) {
          by_heads = by_heads || s.heads > 1;
          by_times = by_times || s.times > 1;
        }
      }
    }
  EXPECT_TRUE(wide && by_heads && by_times) << wide << by_heads << by_times;
}

// Of heads with orders of their own.
TEST(PlanBytes, OfLongPlansAreMadeInThreads) {
  const Mask mask = masks::uniform_block_sparse(24576, 24576, 64, 64, 0.5, 1, 2);
  Problem problem = problem_of(mask, 128, 1);
  problem.q_heads = 4;
  problem.kv_heads = 2;
  const Plan plan = plan_of(problem, mask, Pass::backward, "auto");
  const cuda::PlanBytes bytes(plan, nullptr);
  EXPECT_EQ(bytes.spreads(nullptr).count, 2);
  EXPECT_GT(bytes.copied(), int64_t{1} << 20);
  EXPECT_GT(bytes.size(), 2 * bytes.copied());
  expect_plan(plan, nullptr);
}

TEST(PlanBytes, OfPiecesHaveTheirRowsAndSums) {
  const Mask mask = masks::causal(1500, 1500);
  const Problem problem = problem_of(mask, 128, 2);
  const Plan forward = plan_of(problem, mask, Pass::forward, "auto");
  const Plan backward = plan_of(problem, mask, Pass::backward, "auto");
  const DistOptions dealt{.world = 2, .strategy = "ring"};
  const Sharding sharding = make_sharding(forward, backward, mask, dealt);
  int32_t pieces = 0;
  for (const Plan* whole : {&forward, &backward}) {
    const DistPlan plan = make_dist_plan(*whole, sharding, dealt);
    for (const LocalPiece& local : local_pieces(plan)) {
      expect_plan(local.plan, &local);
      ++pieces;
    }
  }
  EXPECT_GE(pieces, 4);
}

}  // namespace
}  // namespace verbatim::test
