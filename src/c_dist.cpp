// The C interface of context parallelism: one rank, over a transport of the caller.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "c_api.h"
#include "core/json.h"
#include "core/sha256.h"
#include "core/threads.h"
#include "dist/ranks.h"
#include "dist/sizes.h"
#include "dist/through_host.h"
#include "verbatim/dist.h"

namespace {

using namespace verbatim;
using namespace verbatim::c;
using Json = nlohmann::ordered_json;

constexpr const char* kCreate = "dist.create";

class Callbacks final : public dist::Transport {
 public:
  explicit Callbacks(const verbatim_transport& functions) : functions_(functions) {}
  bool on_device() const { return functions_.on_device != 0; }
  std::byte* room(int64_t bytes) override {
    return functions_.room ? static_cast<std::byte*>(functions_.room(functions_.user, bytes))
                           : nullptr;
  }
  void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override {
    const char* trouble =
        functions_.send(functions_.user, to, message, bytes.data(), std::ssize(bytes));
    if (trouble) throw Error(ErrorCode::device, "dist.send", told("to", to, trouble));
  }
  bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override {
    const char* trouble =
        functions_.receive(functions_.user, from, message, bytes.data(), std::ssize(bytes));
    if (trouble) throw Error(ErrorCode::device, "dist.receive", told("from", from, trouble));
    return true;
  }

 private:
  static std::string told(const char* way, int32_t rank, const char* trouble) {
    return fmt::format("no message {} rank {}; got {}", way, rank, trouble);
  }

  verbatim_transport functions_;
};

/// All that a rank knows before tensors come.
struct Dealt {
  verbatim_attention whole;
  std::unique_ptr<Backend> backend;
  DistPlan forward, backward;
  Problem shard;  // whose sizes are those of this rank's tensors
};

DistOptions dist_options_of(const nlohmann::json& json, int32_t world) {
  require_known_members(json, {"strategy", "shard", "ulysses_size", "ring_window"}, kCreate);
  DistOptions options{.world = world};
  if (json.contains("strategy"))
    options.strategy = json_text(json["strategy"], "strategy", kCreate);
  if (json.contains("shard")) options.shard = json_text(json["shard"], "shard", kCreate);
  const auto number = [&](const char* key) {
    return json.contains(key) ? json_int32(json[key], key, kCreate) : 0;
  };
  options.ulysses_size = number("ulysses_size");
  options.ring_window = number("ring_window");
  return options;
}

Dealt deal(const nlohmann::json& spec, int32_t world, int32_t rank) {
  const DistOptions options = dist_options_of(json_member(spec, "dist", kCreate), world);
  verbatim_attention whole = make_attention(spec, kCreate);
  std::unique_ptr<Backend> backend = make_backend(whole.device);
  const Attention& attention = whole.attention;
  const Plan &forward = attention.plan(Pass::forward), &backward = attention.plan(Pass::backward);
  const Sharding sharding = make_sharding(forward, backward, attention.mask(), options);
  Problem shard = attention.problem();
  shard.batch = 1;
  shard.q_len = sharding.q[rank].size();
  shard.kv_len = sharding.kv[rank].size();
  std::array<DistPlan, 2> passes;
  for_each_in_parallel(core_count(), 2, [&](int64_t pass) {
    DistPlan& own = passes[static_cast<size_t>(pass)];
    own = make_dist_plan(pass == 0 ? forward : backward, sharding, options);
    verify(own);
  });
  return {.whole = std::move(whole),
          .backend = std::move(backend),
          .forward = std::move(passes[0]),
          .backward = std::move(passes[1]),
          .shard = std::move(shard)};
}

/// Rows move as they lie, with all of their heads.
void require_dense_rows(std::string_view name, const TensorView& tensor) {
  if (tensor.shape[2] <= 1 || tensor.stride[2] == tensor.shape[3]) return;
  throw Error(ErrorCode::unsupported, "dist.run", "the heads of a row are apart",
              {fmt::format("{}.stride[2]", name), std::to_string(tensor.stride[2]),
               std::to_string(tensor.shape[3]), "a dense copy"});
}

/// What must be equal on all ranks.
std::string specification(const Dealt& dealt, const nlohmann::json& spec) {
  const Attention& attention = dealt.whole.attention;
  const Mask& mask = attention.mask();
  const DistOptions& options = dealt.forward.options;
  nlohmann::json asked = spec["options"];
  asked["device"] = dealt.backend->name();  // its number is a rank's own
  Json json{{"version", VERBATIM_VERSION},
            {"contract", kContractVersion},
            {"problem", Json::parse(to_json(attention.problem()))},
            {"mask",
             {{"name", mask.name()},
              {"params", Json::parse(mask.params_json())},
              {"sha256", sha256(to_json(mask))}}},
            {"options", std::move(asked)},
            {"strategy", options.strategy},
            {"shard", dealt.forward.shard},
            {"ulysses_size", options.ulysses_size},
            {"ring_window", options.ring_window}};
  for (const DistPlan* plan : {&dealt.forward, &dealt.backward})
    json["fingerprints"].push_back(plan->whole.fingerprint());
  return json.dump();
}

/// Deals at every rank, or fails at every rank.
Dealt deal_alike(const char* text, int32_t world, int32_t rank, dist::Transport& transport) {
  std::optional<Dealt> dealt;
  std::optional<Error> bad;
  std::string own;
  try {
    const nlohmann::json spec = parse_json(text, kCreate);
    dealt = deal(spec, world, rank);
    own = specification(*dealt, spec);
  } catch (const Error& error) {
    bad = error;
  }
  try {
    dist::agree(transport, rank, world, own, bad ? &*bad : nullptr);
  } catch (const dist::Refused&) {
    if (bad) throw *bad;  // which knows its kind
    throw;
  }
  return std::move(*dealt);
}

}  // namespace

struct verbatim_dist {
  int32_t rank;
  mutable Callbacks transport;
  Dealt dealt;
  mutable dist::HostMemory memory{};
  mutable dist::ReadyLaunches forward{}, backward{};
  mutable std::unique_ptr<dist::StepRecord> record{};

  template <class Tensors>
  void run(const DistPlan& plan, dist::ReadyLaunches& pieces, const Tensors& given,
           RunOptions options) const {
    const auto tensors = tensors_of(dealt.shard, given);
    check_tensors(dealt.shard, tensors);
    const dist::LocalTensors home = dist::whole_tensors(tensors);
    for (const Operand operand : dist::operands_of(plan.whole.pass))
      if (operand != Operand::lse) require_dense_rows(to_string(operand), home[operand]);
    options.workspace = nullptr;  // pieces need less than any size that could be named
    dist::ThroughHost host(transport, memory, *dealt.backend, options);
    dist::Transport& way = transport.on_device() ? static_cast<dist::Transport&>(transport) : host;
    dist::run_rank(plan, rank, *dealt.backend, home, options, way,
                   {.kept = &pieces, .record = record.get()});
  }
};

namespace {

Json ranges_of(const HeldRows& rows) {
  Json ranges = Json::array();
  for (const RowRange& range : rows.ranges())
    ranges.push_back({range.batch, range.rows.begin, range.rows.end});
  return ranges;
}

std::string describe(const verbatim_dist& handle) {
  const Dealt& dealt = handle.dealt;
  const DistOptions& options = dealt.forward.options;
  Json ranks = Json::array();
  for (int32_t r = 0; r < options.world; ++r) {
    const RankPlan& own = dealt.forward.ranks[r];
    const auto sizes = [r](const DistPlan& plan) -> Json {
      return {{"predicted_bytes", sent_bytes(plan, r)}, {"memory_bytes", memory_bytes(plan, r)}};
    };
    ranks.push_back({{"q", ranges_of(own.home_q)},
                     {"kv", ranges_of(own.home_kv)},
                     {"forward", sizes(dealt.forward)},
                     {"backward", sizes(dealt.backward)}});
  }
  return Json{{"world", options.world},
              {"rank", handle.rank},
              {"strategy", options.strategy},
              {"shard", dealt.forward.shard},
              {"ulysses_size", options.ulysses_size},
              {"ring_window", options.ring_window},
              {"ranks", std::move(ranks)},
              {"forward", describe_pass(dealt.whole.attention, Pass::forward)},
              {"backward", describe_pass(dealt.whole.attention, Pass::backward)}}
      .dump();
}

std::string recorded(const verbatim_dist& handle) {
  Json steps = Json::array();
  const std::unique_ptr<dist::StepRecord> record = std::move(handle.record);
  if (record)
    for (const StepTime& time : record->times())
      steps.push_back({{"pass", to_string(time.pass)},
                       {"kind", to_string(time.kind)},
                       {"bytes", time.bytes},
                       {"called_ms", time.called * 1e3},
                       {"issued_ms", time.issued * 1e3},
                       {"begin_ms", time.begin * 1e3},
                       {"end_ms", time.end * 1e3}});
  return steps.dump();
}

}  // namespace

extern "C" {

verbatim_status verbatim_dist_create(const char* spec, int32_t world, int32_t rank,
                                     const verbatim_transport* transport, verbatim_dist** dist) {
  return guarded([&] {
    if (rank < 0 || rank >= world)
      throw Error(ErrorCode::invalid_argument, kCreate, "there is no such rank",
                  {"rank", std::to_string(rank), fmt::format("0 to {}", world - 1), "0"});
    Callbacks callbacks(*transport);
    Dealt dealt = deal_alike(spec, world, rank, callbacks);
    *dist = new verbatim_dist{rank, callbacks, std::move(dealt)};
  });
}

void verbatim_dist_destroy(verbatim_dist* dist) { delete dist; }

verbatim_status verbatim_dist_forward(const verbatim_dist* dist,
                                      const verbatim_forward_tensors* tensors,
                                      const verbatim_run_options* run) {
  return guarded([&] {
    const RunOptions options = run_of(run);
    const Problem& problem = dist->dealt.whole.attention.problem();
    if (problem.dropout > 0) {
      const Json seed{{"seed", options.seed.value_or(problem.seed)}};
      dist::agree(dist->transport, dist->rank, dist->dealt.forward.options.world, seed.dump());
    }
    dist->run(dist->dealt.forward, dist->forward, *tensors, options);
  });
}

verbatim_status verbatim_dist_backward(const verbatim_dist* dist,
                                       const verbatim_backward_tensors* tensors,
                                       const verbatim_run_options* run) {
  return guarded([&] { dist->run(dist->dealt.backward, dist->backward, *tensors, run_of(run)); });
}

verbatim_status verbatim_dist_record(const verbatim_dist* dist, const verbatim_run_options* run) {
  return guarded([&] {
    dist->record = std::make_unique<dist::StepRecord>(*dist->dealt.backend, run_of(run));
  });
}

verbatim_status verbatim_dist_recorded(const verbatim_dist* dist, const char** json) {
  return answered(json, [&] { return recorded(*dist); });
}

verbatim_status verbatim_dist_describe(const verbatim_dist* dist, const char** json) {
  return answered(json, [&] { return describe(*dist); });
}

}  // extern "C"
