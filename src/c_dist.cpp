// The C interface of context parallelism: one rank, over a transport of the caller or
// among peers of one host.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "c_api.h"
#include "core/json.h"
#include "verbatim/context_parallel.h"

namespace {

using namespace verbatim;
using namespace verbatim::c;
using Json = nlohmann::ordered_json;

constexpr const char* kCreate = "dist.create";

class Callbacks final : public Transport {
 public:
  explicit Callbacks(const verbatim_transport& functions) : functions_(functions) {}
  bool on_device() const override { return functions_.on_device != 0; }
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
  void settle() override {
    const char* trouble = functions_.settle ? functions_.settle(functions_.user) : nullptr;
    if (trouble)
      throw Error(ErrorCode::device, "dist.settle",
                  fmt::format("what was sent is not taken; got {}", trouble));
  }

 private:
  static std::string told(const char* way, int32_t rank, const char* trouble) {
    return fmt::format("no message {} rank {}; got {}", way, rank, trouble);
  }

  verbatim_transport functions_;
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

/// A device in one spelling: "cuda" is the first GPU.
std::string with_index(const std::string& device) { return device == "cuda" ? "cuda:0" : device; }

/// Makes this rank's part, or fails at every rank. `device`: where messages lie, if that is fixed.
ContextParallel make(const char* text, int32_t world, int32_t rank, Transport& transport,
                     const std::string* device = nullptr) {
  std::optional<Asked> asked;
  DistOptions dist;
  try {
    const nlohmann::json spec = parse_json(text, kCreate);
    require_known_members(spec, {"problem", "mask", "options", "dist"}, kCreate);
    dist = dist_options_of(json_member(spec, "dist", kCreate), world);
    asked = asked_of(spec, kCreate);
    if (device && with_index(asked->options.device) != with_index(*device))
      throw Error(ErrorCode::invalid_argument, kCreate, "messages lie on another device",
                  {"options.device", asked->options.device, *device, *device});
  } catch (const std::exception& error) {
    ContextParallel::refuse(error, world, rank, transport);
  }
  return {asked->problem, std::move(asked->mask), dist, rank, transport, asked->options};
}

}  // namespace

struct verbatim_peers {
  int32_t world, rank;
  std::string device;
  std::unique_ptr<Transport> transport;
};

struct verbatim_dist {
  verbatim_dist(const char* spec, int32_t world, int32_t rank, const verbatim_transport& functions)
      : own(std::make_unique<Callbacks>(functions)), parallel(make(spec, world, rank, *own)) {}
  verbatim_dist(const char* spec, const verbatim_peers& peers)
      : parallel(make(spec, peers.world, peers.rank, *peers.transport, &peers.device)) {}

  std::unique_ptr<Transport> own;  // null: one of verbatim_peers
  mutable ContextParallel parallel;
};

namespace {

Json ranges_of(const HeldRows& rows) {
  Json ranges = Json::array();
  for (const RowRange& range : rows.ranges())
    ranges.push_back({range.batch, range.rows.begin, range.rows.end});
  return ranges;
}

std::string describe(const verbatim_dist& handle) {
  const ContextParallel& parallel = handle.parallel;
  const DistPlan &forward = parallel.plan(Pass::forward), &backward = parallel.plan(Pass::backward);
  const DistOptions& options = forward.options;
  Json ranks = Json::array();
  for (int32_t r = 0; r < options.world; ++r) {
    const RankPlan& own = forward.ranks[r];
    const auto sizes = [r](const DistPlan& plan) -> Json {
      return {{"predicted_bytes", sent_bytes(plan, r)},
              {"memory_bytes", memory_bytes(plan, r)},
              {"peak_bytes", peak_bytes(plan, r)}};
    };
    ranks.push_back({{"q", ranges_of(own.home_q)},
                     {"kv", ranges_of(own.home_kv)},
                     {"forward", sizes(forward)},
                     {"backward", sizes(backward)}});
  }
  return Json{{"world", options.world},
              {"rank", parallel.rank()},
              {"strategy", options.strategy},
              {"shard", forward.shard},
              {"ulysses_size", options.ulysses_size},
              {"ring_window", options.ring_window},
              {"ranks", std::move(ranks)},
              {"forward", describe_pass(parallel.attention(), Pass::forward)},
              {"backward", describe_pass(parallel.attention(), Pass::backward)}}
      .dump();
}

std::string recorded(const verbatim_dist& handle) {
  Json steps = Json::array();
  for (const StepTime& time : handle.parallel.recorded())
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
    verbatim_dist*& made = given(dist, "dist");
    const verbatim_transport& functions = given(transport, "transport");
    if (world > 1) {
      given(functions.send, "transport.send");
      given(functions.receive, "transport.receive");
    }
    made = new verbatim_dist(text_of(spec, "spec"), world, rank, functions);
  });
}

verbatim_status verbatim_peers_open(const char* name, int32_t world, int32_t rank,
                                    const char* device, double opening, double timeout,
                                    verbatim_peers** peers) {
  return guarded([&] {
    verbatim_peers*& made = given(peers, "peers");
    made = new verbatim_peers{
        world, rank, text_of(device, "device"),
        make_peers(text_of(name, "name"), world, rank, device, opening, timeout)};
  });
}

void verbatim_peers_close(verbatim_peers* peers) { delete peers; }

verbatim_status verbatim_dist_create_over_peers(const char* spec, const verbatim_peers* peers,
                                                verbatim_dist** dist) {
  return guarded([&] {
    verbatim_dist*& made = given(dist, "dist");
    made = new verbatim_dist(text_of(spec, "spec"), given(peers, "peers"));
  });
}

void verbatim_dist_destroy(verbatim_dist* dist) { delete dist; }

verbatim_status verbatim_dist_forward(const verbatim_dist* dist,
                                      const verbatim_forward_tensors* tensors,
                                      const verbatim_run_options* run) {
  return guarded([&] {
    ContextParallel& parallel = given(dist, "dist").parallel;
    parallel.forward(tensors_of(parallel.shard(), given(tensors, "tensors")), run_of(run));
  });
}

verbatim_status verbatim_dist_backward(const verbatim_dist* dist,
                                       const verbatim_backward_tensors* tensors,
                                       const verbatim_run_options* run) {
  return guarded([&] {
    ContextParallel& parallel = given(dist, "dist").parallel;
    parallel.backward(tensors_of(parallel.shard(), given(tensors, "tensors")), run_of(run));
  });
}

verbatim_status verbatim_dist_record(const verbatim_dist* dist, const verbatim_run_options* run) {
  return guarded([&] { given(dist, "dist").parallel.record(run_of(run)); });
}

verbatim_status verbatim_dist_recorded(const verbatim_dist* dist, const char** json) {
  return answered(json, [&] { return recorded(given(dist, "dist")); });
}

verbatim_status verbatim_dist_describe(const verbatim_dist* dist, const char** json) {
  return answered(json, [&] { return describe(given(dist, "dist")); });
}

}  // extern "C"
