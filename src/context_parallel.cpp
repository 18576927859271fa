#include "verbatim/context_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/sha256.h"
#include "core/threads.h"
#include "dist/ranks.h"
#include "dist/sizes.h"
#include "dist/through_host.h"

namespace verbatim {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCreate = "context_parallel";

/// All that a rank knows before tensors come.
struct Dealt {
  Attention whole;
  std::unique_ptr<Backend> backend;
  DistPlan forward, backward;
  Problem shard;  // whose sizes are those of this rank's tensors
};

Dealt deal(const Problem& problem, Mask mask, const DistOptions& dist, int32_t rank,
           const AttentionOptions& options) {
  if (!options.kernels.empty())
    throw Error(ErrorCode::unsupported, kCreate, "kernels of the caller run whole plans only",
                {"options.kernels", std::to_string(options.kernels.size()), "none", "{}"});
  Attention whole(problem, std::move(mask), options);
  std::unique_ptr<Backend> backend = make_backend(options.device);
  const Plan &forward = whole.plan(Pass::forward), &backward = whole.plan(Pass::backward);
  const Sharding sharding = make_sharding(forward, backward, whole.mask(), dist);
  Problem shard = problem;
  shard.batch = 1;
  shard.q_len = sharding.q[static_cast<size_t>(rank)].size();
  shard.kv_len = sharding.kv[static_cast<size_t>(rank)].size();
  std::array<DistPlan, 2> passes;
  for_each_in_parallel(core_count(), 2, [&](int64_t pass) {
    DistPlan& own = passes[static_cast<size_t>(pass)];
    own = make_dist_plan(pass == 0 ? forward : backward, sharding, dist);
    verify(own);
  });
  return {.whole = std::move(whole),
          .backend = std::move(backend),
          .forward = std::move(passes[0]),
          .backward = std::move(passes[1]),
          .shard = std::move(shard)};
}

/// What must be equal on all ranks.
std::string specification(const Dealt& dealt, const AttentionOptions& options) {
  const Mask& mask = dealt.whole.mask();
  const DistOptions& dist = dealt.forward.options;
  const PlanOptions& plan = options.plan;
  Json json{{"version", VERBATIM_VERSION},
            {"contract", kContractVersion},
            {"problem", Json::parse(to_json(dealt.whole.problem()))},
            {"mask",
             {{"name", mask.name()},
              {"params", Json::parse(mask.params_json())},
              {"sha256", sha256(to_json(mask))}}},
            {"options",
             {{"device", dealt.backend->name()},  // its number is a rank's own
              {"level", to_string(plan.level)},
              {"order", plan.order},
              {"forward_order", options.forward_order},
              {"placement", plan.placement},
              {"arithmetic", plan.arithmetic},
              {"tile", {plan.tile.q, plan.tile.kv}},
              {"workers", plan.workers}}},
            {"world", dist.world},
            {"strategy", dist.strategy},
            {"shard", dealt.forward.shard},
            {"ulysses_size", dist.ulysses_size},
            {"ring_window", dist.ring_window},
            {"joined_heads", dist.joined_heads},
            {"overlapped", dist.overlapped}};
  for (const DistPlan* pass : {&dealt.forward, &dealt.backward})
    json["fingerprints"].push_back(pass->whole.fingerprint());
  for (const auto& own : options.plans) json["plans"].push_back(sha256(to_json(*own)));
  return json.dump();
}

/// Deals at every rank, or fails at every rank.
Dealt deal_alike(const Problem& problem, Mask mask, const DistOptions& dist, int32_t rank,
                 Transport& transport, const AttentionOptions& options) {
  std::optional<Dealt> dealt;
  std::string own;
  try {
    dealt = deal(problem, std::move(mask), dist, rank, options);
    own = specification(*dealt, options);
  } catch (const std::exception& error) {
    ContextParallel::refuse(error, dist.world, rank, transport);
  }
  dist::agree(transport, rank, dist.world, own);
  return std::move(*dealt);
}

void require_rank(int32_t rank, int32_t world) {
  if (world < 1)
    throw Error(ErrorCode::invalid_argument, kCreate, "a world has no rank",
                {"world", std::to_string(world), "1 rank or more", "1"});
  if (rank >= 0 && rank < world) return;
  throw Error(ErrorCode::invalid_argument, kCreate, "there is no such rank",
              {"rank", std::to_string(rank), fmt::format("0 to {}", world - 1), "0"});
}

/// As many rows as the rank holds. Whoever brings others reads which ones are meant.
void require_rows(std::string_view name, const TensorView& tensor, const HeldRows& rows,
                  int32_t rank) {
  if (tensor.shape[0] == 1 && tensor.shape[1] == rows.size()) return;
  const auto [batch, length, heads, dim] = tensor.shape;
  std::string held = fmt::format("the rows of rank {}", rank);
  if (rows.size() > 0)
    held += fmt::format(", from position {} of batch entry {} on", rows.ranges()[0].rows.begin,
                        rows.ranges()[0].batch);
  throw Error(ErrorCode::invalid_argument, "tensors", fmt::format("wrong shape of {}", name),
              {std::string(name), fmt::format("[{}, {}, {}, {}]", batch, length, heads, dim),
               fmt::format("[1, {}, {}, {}]", rows.size(), heads, dim), std::move(held)});
}

/// Rows move as they lie, with all of their heads.
void require_dense_rows(std::string_view name, const TensorView& tensor) {
  if (tensor.shape[2] <= 1 || tensor.stride[2] == tensor.shape[3]) return;
  throw Error(ErrorCode::unsupported, "dist.run", "the heads of a row are apart",
              {fmt::format("{}.stride[2]", name), std::to_string(tensor.stride[2]),
               std::to_string(tensor.shape[3]), "a dense copy"});
}

}  // namespace

struct ContextParallel::Impl {
  int32_t rank;
  Transport& transport;
  Dealt dealt;
  dist::HostMemory memory{};
  dist::ReadyLaunches forward{}, backward{};
  std::unique_ptr<dist::StepRecord> record{};

  const RankPlan& own() const { return dealt.forward.ranks[static_cast<size_t>(rank)]; }

  template <class Tensors>
  void run(const DistPlan& plan, dist::ReadyLaunches& launches, const Tensors& shard,
           RunOptions options) {
    const dist::LocalTensors home = dist::whole_tensors(shard);
    const auto each_tensor = [&](auto&& check) {
      for (const Operand operand : dist::operands_of(plan.whole.pass))
        if (operand != Operand::lse) check(operand, home[operand]);
    };
    each_tensor([&](Operand operand, const TensorView& tensor) {
      const HeldRows& rows = dist::on_kv_axis(operand) ? own().home_kv : own().home_q;
      require_rows(to_string(operand), tensor, rows, rank);
    });
    check_tensors(dealt.shard, shard);
    each_tensor([](Operand operand, const TensorView& tensor) {
      require_dense_rows(to_string(operand), tensor);
    });
    options.workspace = nullptr;  // pieces need less than any size that could be named
    dist::ThroughHost host(transport, memory, *dealt.backend, options);
    Transport& way = transport.on_device() ? transport : host;
    dist::run_rank(plan, rank, *dealt.backend, home, options, way,
                   {.kept = &launches, .record = record.get()});
  }
};

ContextParallel::ContextParallel(const Problem& problem, Mask mask, const DistOptions& dist,
                                 int32_t rank, Transport& transport,
                                 const AttentionOptions& options) {
  require_rank(rank, dist.world);
  impl_.reset(new Impl{
      rank, transport,
      deal_alike(problem, std::move(mask),
                 transport.on_device() && transport.overlaps() ? overlapped_of(dist) : dist, rank,
                 transport, options)});
}

ContextParallel::~ContextParallel() = default;
ContextParallel::ContextParallel(ContextParallel&&) noexcept = default;
ContextParallel& ContextParallel::operator=(ContextParallel&&) noexcept = default;

void ContextParallel::refuse(const std::exception& error, int32_t world, int32_t rank,
                             Transport& transport) {
  require_rank(rank, world);
  const auto* ours = dynamic_cast<const Error*>(&error);
  const Error told = ours ? *ours : Error(ErrorCode::device, kCreate, error.what());
  try {
    dist::agree(transport, rank, world, {}, &told);
  } catch (const dist::Refused&) {
  }
  throw told;  // which knows its kind
}

void ContextParallel::forward(const ForwardTensors& shard, const RunOptions& run) {
  const Problem& problem = impl_->dealt.shard;
  if (problem.dropout > 0) {
    const Json seed{{"seed", run.seed.value_or(problem.seed)}};
    dist::agree(impl_->transport, impl_->rank, impl_->dealt.forward.options.world, seed.dump());
  }
  impl_->run(impl_->dealt.forward, impl_->forward, shard, run);
}

void ContextParallel::backward(const BackwardTensors& shard, const RunOptions& run) {
  impl_->run(impl_->dealt.backward, impl_->backward, shard, run);
}

int32_t ContextParallel::rank() const { return impl_->rank; }
const Attention& ContextParallel::attention() const { return impl_->dealt.whole; }
const DistPlan& ContextParallel::plan(Pass pass) const {
  return pass == Pass::forward ? impl_->dealt.forward : impl_->dealt.backward;
}
const Problem& ContextParallel::shard() const { return impl_->dealt.shard; }
const HeldRows& ContextParallel::q_rows() const { return impl_->own().home_q; }
const HeldRows& ContextParallel::kv_rows() const { return impl_->own().home_kv; }

void ContextParallel::record(const RunOptions& run) {
  impl_->record = std::make_unique<dist::StepRecord>(*impl_->dealt.backend, run);
}

std::vector<StepTime> ContextParallel::recorded() {
  const std::unique_ptr<dist::StepRecord> record = std::move(impl_->record);
  return record ? record->times() : std::vector<StepTime>{};
}

}  // namespace verbatim
