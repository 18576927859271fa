// make_plan: classify tiles, order, place, verify.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "contract/contract.h"
#include "core/threads.h"
#include "plan/check_mask.h"
#include "plan/verify.h"
#include "schedule/auto.h"
#include "schedule/orders/cut.h"
#include "schedule/orders/orders.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

void check_sizes(const PlanOptions& options) {
  const auto check = [](const char* name, int64_t value) {
    if (value < 0)
      throw Error(ErrorCode::invalid_argument, "make_plan", fmt::format("{} is negative", name),
                  {name, fmt::to_string(value), "0 (choose) or more", "0"});
  };
  check("workers", options.workers);
  check("residents", options.residents);
  check("tile.q", options.tile.q);
  check("tile.kv", options.tile.kv);
}

void check_level(const PlanOptions& options) {
  if (options.order == "auto") return;
  const Level kept = order::find(options.pass, options.order).level;
  if (kept >= options.level) return;
  throw Error(ErrorCode::unsupported, "make_plan", "the order cannot keep the level",
              {"order", fmt::format("{} at level {}", options.order, to_string(options.level)),
               fmt::format("at most level {}", to_string(kept)), "right_to_left"});
}

/// Distinct heads are planned side by side where that takes longer than waking threads does.
int threads_for(const Mask& mask) {
  size_t slices = 0;
  for (const HeadMask& head : mask.variants()) slices += head.slices.size();
  return slices < 4096 ? 1 : core_count();
}

/// The distinct orders of a plan: of most heads each is built at once, of the last ones when asked.
class Orders {
 public:
  Orders(const Problem& problem, const Mask& mask, const PlanOptions& options, TileShape tile)
      : options_(options),
        group_(static_cast<int32_t>(problem.group())),
        variants_(mask.variants().size()) {
    const auto for_each_variant = [&](const std::function<void(int64_t)>& work) {
      for_each_in_parallel(threads_for(mask), std::ssize(variants_), work);
    };
    for_each_variant(
        [&](int64_t v) { variants_[v].tiles = std::make_shared<const TileMap>(mask, v, tile); });
    // "auto" may know what runs together where bits may depend on it; without turns it keeps the
    // chains of the default level, so that the difference is what the turns cost.
    if (options.level == Level::gpu_to_gpu || options.level == Level::run_to_run)
      for (int64_t b = 0; b < problem.batch; ++b)
        for (int64_t h = 0; h < problem.kv_heads; ++h)
          visits_ += variants_[mask.variant(b, h)].tiles->count();
    for_each_variant([&](int64_t v) { variants_[v].usual = made(options_.order, variants_[v]); });
  }

  const HeadOrder& usual(int32_t variant) const { return *variants_[variant].usual; }

  int32_t index(int32_t variant, size_t last) {
    Variant& v = variants_[variant];
    if (v.index[last] < 0) {
      v.index[last] = static_cast<int32_t>(orders.size());
      orders.push_back(last ? made(order::last_heads(options_.order), v) : v.usual);
    }
    return v.index[last];
  }

  std::vector<std::shared_ptr<const HeadOrder>> orders;

 private:
  struct Variant {
    std::shared_ptr<const TileMap> tiles;
    std::shared_ptr<const HeadOrder> usual;
    std::array<int32_t, 2> index{-1, -1};  // into `orders`: of most heads, of the last ones
  };

  std::shared_ptr<const HeadOrder> made(const std::string& name, const Variant& of) const {
    return make_order(options_.pass, name, of.tiles, group_, visits_);
  }

  const PlanOptions& options_;
  int32_t group_;
  int64_t visits_ = 0;  // of all heads; 0: not for the rules to know
  std::vector<Variant> variants_;
};

/// The placements to try, as auto_placements().
std::vector<std::string> placement_names(const Plan& plan,
                                         const std::vector<std::shared_ptr<const HeadOrder>>& heads,
                                         bool rotates, const PlanOptions& options,
                                         int32_t workers) {
  if (options.placement != "auto") return {options.placement};
  if (options.memo) {
    const auto known = options.memo->placements.find(memo_key(plan, workers));
    if (known != options.memo->placements.end()) return {known->second};
  }
  const Problem& problem = plan.problem;
  const int64_t dims = problem.head_dim + problem.head_dim_v, size = size_of(problem.dtype);
  const int64_t head_bytes =
      plan.pass == Pass::forward
          ? problem.kv_len * dims * size
          : problem.group() * problem.q_len *
                (dims * size + problem.head_dim * static_cast<int64_t>(sizeof(float)));
  return auto_placements(heads, rotates, options.machine, workers,
                         std::max<int64_t>(head_bytes, 1));
}

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

/// kNever where the tasks that a worker has in turn wait for each other.
int32_t residency_or_never(OrderProof& proof, const Plan& plan) try {
  return proof.residency(plan);
} catch (const Error& error) {
  if (error.code() != ErrorCode::invalid_plan) throw;
  return kNever;
}

/// Places the tasks as the first placement does of which one worker at a time can do with what it
/// finds, or of rotating orders half of them at once; else as that which takes the fewest. `proof`
/// is that of the plan's orders.
void place(Plan& plan, OrderProof& proof, const PlanOptions& options, int32_t workers) {
  std::vector<std::shared_ptr<const HeadOrder>> heads;
  for (const int32_t order : plan.order_of_head) heads.push_back(plan.orders[order]);
  const int32_t enough = proof.rotates() ? std::max(workers / 2, 1) : 1;
  plan.residency = kNever;
  for (const std::string& name : placement_names(plan, heads, proof.rotates(), options, workers)) {
    Placement placement = make_placement(name, heads, workers);
    std::swap(plan.placement, placement);
    const int32_t residency = residency_or_never(proof, plan);
    if (residency < plan.residency) {
      plan.residency = residency;
    } else {
      std::swap(plan.placement, placement);
    }
    if (plan.residency <= enough) break;
  }
}

/// Cuts the chains of all orders where they wait for later ones. False: that cannot be done, and
/// the plan stays as it is.
bool cut(Plan& plan) {
  std::vector<std::shared_ptr<const HeadOrder>> pieces;
  for (const auto& order : plan.orders) {
    pieces.push_back(order::cut_at_waits(*order));
    if (!pieces.back()) return false;
  }
  plan.orders = std::move(pieces);
  return true;
}

}  // namespace

TileShape default_tile(const Problem& problem, Pass pass) { return contract::tile(pass, problem); }

Plan make_plan(const Problem& problem, const Mask& mask, const PlanOptions& options) {
  problem.validate();
  check_mask(problem, mask, "make_plan");
  check_sizes(options);
  check_level(options);
  TileShape tile = default_tile(problem, options.pass);
  if (options.tile.q > 0) tile.q = options.tile.q;
  if (options.tile.kv > 0) tile.kv = options.tile.kv;
  Orders orders(problem, mask, options, tile);

  Plan plan;
  plan.pass = options.pass;
  plan.problem = problem;
  plan.level = options.level;
  plan.arithmetic = arithmetic_of(options.arithmetic.empty() ? "cpu" : options.arithmetic,
                                  options.pass, problem, tile, options.order);
  std::vector<int32_t> variants;
  for (int64_t b = 0; b < problem.batch; ++b)
    for (int64_t h = 0; h < problem.kv_heads; ++h) variants.push_back(mask.variant(b, h));
  // From the last head back: heads of another order in the tail, until it fills the workers.
  plan.order_of_head.resize(variants.size());
  size_t tail_tasks = 0;
  for (size_t h = variants.size(); h-- > 0;) {
    const HeadOrder& usual = orders.usual(variants[h]);
    const bool last = tail_tasks < order::kWave && !order::last_heads(usual.name).empty();
    tail_tasks += usual.tasks.size();
    plan.order_of_head[h] = orders.index(variants[h], last);
  }
  plan.orders = orders.orders;

  const int32_t workers =
      options.workers > 0 ? options.workers : std::max(options.machine.workers, 1);
  OrderProof proof(plan);
  if (options.placement == "auto" && options.pass == Pass::backward && !plan.orders.empty() &&
      proof.rotates() &&
      runs_better_in_pieces(*plan.orders.front(), plan.order_of_head.size(), workers) && cut(plan))
    proof = OrderProof(plan);
  place(plan, proof, options, workers);
  const int32_t most = options.workers > 0 ? options.workers : options.residents;
  if (plan.residency == kNever || (most > 0 && plan.residency > most)) {
    const Plan whole = plan;
    if (cut(plan)) {
      proof = OrderProof(plan);
      place(plan, proof, options, workers);
    }
    const bool never = whole.residency == kNever, fits = most == 0 || plan.residency <= most;
    if (plan.residency == kNever || (options.workers > 0 && !fits))
      throw Error(ErrorCode::unsupported, "make_plan", "too few workers for the waits of the order",
                  {"workers", fmt::to_string(workers),
                   never ? "another placement" : fmt::format("{} or more", whole.residency),
                   never ? "auto" : "right_to_left"});
    if (!fits && !never) plan = whole;  // a backend that cannot run it says so
  }
  plan.placement.workers = std::max(plan.placement.workers, plan.residency);
  return plan;
}

}  // namespace verbatim
