#include "bench/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "bench/attention.h"
#include "verbatim/error.h"

namespace verbatim::bench {
namespace {

// Per chain; the longer one's dQ, Q and dO of all heads in flight still fit in an L2 of 50 MB.
constexpr int64_t kShort = 8, kLong = 16;
constexpr int64_t kTilesPerHead = 4;    // chains side by side on the same rows
constexpr int64_t kFew = 1, kMany = 5;  // chains that each worker does

/// Every tile of it is partial: the last key of each KV tile is hidden.
HeadMask partial_everywhere(int64_t q_len, int64_t kv_len, int64_t tile_kv) {
  HeadMask mask;
  mask.q_len = q_len;
  mask.kv_len = kv_len;
  for (int64_t k = 0; k < kv_len; k += tile_kv) {
    mask.slices.push_back({.q_begin = 0, .q_end = q_len, .k_begin = k, .k_end = k + tile_kv - 1});
  }
  return mask;
}

class Calibrator {
 public:
  Calibrator(const Backend& backend, const Device& device, int64_t head_dim, Dtype dtype)
      : backend_(backend), device_(device), workers_(device.facts().workers) {
    problem_.head_dim = problem_.head_dim_v = head_dim;
    problem_.dtype = dtype;
    problem_.q_heads = problem_.kv_heads = std::max<int64_t>(workers_ / kTilesPerHead, 1);
  }

  /// Cycles that each worker takes for one chain of `visits`, of which every worker does several.
  double chain(Pass pass, int64_t visits, bool partial = false) {
    const double few = chains(pass, visits, kFew, partial);
    const double many = chains(pass, visits, kMany, partial);
    const double more = static_cast<double>((kMany - kFew) * kTilesPerHead * problem_.kv_heads);
    return (many - few) * workers_ / more;
  }

  /// Cycles of one visit more. Noise only adds to a time, so measuring again mends what it did.
  double step(Pass pass) {
    constexpr int kAttempts = 6;
    double cycles = 0;
    for (int i = 0; i < kAttempts && cycles <= 0; ++i)
      cycles = (chain(pass, kLong) - chain(pass, kShort)) / (kLong - kShort);
    if (cycles > 0) return cycles;
    throw Error(ErrorCode::device, "calibrate", "the measurements contradict each other",
                {fmt::format("{} step", to_string(pass)), fmt::format("{:.0f} cycles", cycles),
                 "more than 0", "the same command when nothing else uses the device"});
  }

  /// Cycles of a call that visits one tile.
  double smallest() {
    Problem one = problem_;
    one.q_heads = one.kv_heads = 1;
    return cycles(one, Pass::backward, 1, 1, false);
  }

  TileShape tile(Pass pass) const { return default_tile(problem_, pass); }
  double clock_mhz() const { return clock_mhz_; }

 private:
  double chains(Pass pass, int64_t visits, int64_t per_worker, bool partial) {
    return cycles(problem_, pass, visits, per_worker * kTilesPerHead, partial);
  }

  double cycles(Problem problem, Pass pass, int64_t visits, int64_t kept_tiles, bool partial) {
    const TileShape shape = tile(pass);
    const bool backward = pass == Pass::backward;
    problem.q_len = shape.q * (backward ? visits : kept_tiles);
    problem.kv_len = shape.kv * (backward ? kept_tiles : visits);
    const Mask mask =
        partial ? Mask("partial", "", partial_everywhere(problem.q_len, problem.kv_len, shape.kv))
                : masks::full(problem.q_len, problem.kv_len);
    PlanOptions options;
    options.pass = pass;
    options.level = Level::not_guaranteed;  // no turns: every worker is busy all the time
    options.order = backward ? "none" : "auto";
    options.placement = "queue";
    options.workers = workers_;
    const auto plan = std::make_shared<const Plan>(make_plan(problem, mask, options));
    const Tensors tensors(device_, problem);
    const Timing timing = measure(device_, Protocol::rested, [&] {
      if (backward) {
        backend_.backward(plan, tensors.backward, {});
      } else {
        backend_.forward(plan, tensors.forward, {});
      }
    });
    // A device that does not tell its clock is said to have 1 GHz: cycles are nanoseconds.
    clock_mhz_ = timing.clock_mhz > 0 ? timing.clock_mhz : 1000;
    const double cycles = timing.least * clock_mhz_ * 1e3;
    const Case key{problem.q_heads, problem.q_len, problem.kv_len, backward, partial};
    double& least = least_.try_emplace(key, cycles).first->second;
    return least = std::min(least, cycles);
  }

  const Backend& backend_;
  const Device& device_;
  int32_t workers_;
  Problem problem_;
  double clock_mhz_ = 1000;
  using Case = std::tuple<int64_t, int64_t, int64_t, bool, bool>;
  std::map<Case, double> least_;  // cycles of the fastest call so far
};

}  // namespace

Calibration calibrate(const Backend& backend, const Device& device, int64_t head_dim, Dtype dtype,
                      const Machine& base, const std::function<void(const std::string&)>& say) {
  Calibration result{.machine = base, .measured = {}};
  Machine& machine = result.machine;
  const auto set = [&](const char* name, auto& field, auto value) {
    field = value;
    result.measured.emplace_back(name);
  };
  Calibrator on(backend, device, head_dim, dtype);
  const TileShape tile = on.tile(Pass::backward), forward_tile = on.tile(Pass::forward);
  machine.workers = device.facts().workers;
  machine.reference_tile = tile;
  machine.reference_dim = head_dim;

  say("steps of the backward");
  const double step = on.step(Pass::backward);
  const double around = std::max(on.chain(Pass::backward, kShort) - kShort * step, 0.0);
  if (machine.overlap) {
    set("compute", machine.compute, step);
  } else {  // the step is both parts in series: their shares are the base's
    set("compute", machine.compute, step * base.compute / (base.compute + base.reduce));
    set("reduce", machine.reduce, step - machine.compute);
  }
  // The two ends of a chain cannot be told apart from outside.
  set("chain_start", machine.chain_start, around / 2);
  set("chain_end", machine.chain_end, around / 2);

  say("steps that mask");
  const double partial = on.chain(Pass::backward, kLong, true);
  set("compute_partial", machine.compute_partial,
      std::max((partial - around) / (kLong * step), 1.0));

  say("steps of the forward");
  const double forward_step = on.step(Pass::forward);
  const double area =
      static_cast<double>(forward_tile.q * forward_tile.kv) / static_cast<double>(tile.q * tile.kv);
  set("forward", machine.forward, forward_step / (area * machine.compute));

  say("the start");
  set("launch", machine.launch, std::max(on.smallest() - step - around, 0.0));

  say("the hand-off");
  const int64_t tile_bytes = tile.q * head_dim * int64_t{sizeof(float)};
  if (const auto hand_off = device.hand_off(tile_bytes)) {
    set("reduce", machine.reduce, hand_off->reduce);
    set("signal_latency", machine.signal_latency, hand_off->signal);
    set("l2_bytes", machine.l2_bytes, hand_off->l2_bytes);
    set("bandwidth", machine.bandwidth, hand_off->bandwidth);
    // dK and dV of a shared tile go the way of a dQ tile.
    const double tiles = 2.0 * static_cast<double>(tile.kv) / static_cast<double>(tile.q);
    set("chain_share", machine.chain_share, machine.chain_end + tiles * hand_off->reduce);
  }
  set("clock_ghz", machine.clock_ghz, on.clock_mhz() / 1e3);
  return result;
}

}  // namespace verbatim::bench
