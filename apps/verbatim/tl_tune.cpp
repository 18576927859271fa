#include "tl_tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bench/attention.h"
#include "core/threads.h"
#include "result.h"
#include "temporary_folder.h"

namespace verbatim::app {
namespace {

struct Candidate {
  tl::ReasonOptions options;
  tl::Emitted emitted;
  std::filesystem::path library;
  double ms = 0;
};

std::vector<Candidate> candidates(const std::string& sketch, const std::string& file,
                                  const tl::ReasonOptions& options) {
  std::vector<Candidate> all;
  for (const tl::ReasonOptions& one : tl::choices(sketch, file, options))
    all.push_back({.options = one,
                   .emitted = tl::emit(tl::reason(sketch, file, one), file,
                                       {.target = {}, .level = options.level}),
                   .library = {}});
  return all;
}

/// Each in a folder of its own, by as many processes as there are cores.
void build(std::vector<Candidate>& all, const std::filesystem::path& folder) {
  for_each_in_parallel(core_count(), std::ssize(all), [&](int64_t i) {
    all[i].library = tl::build(all[i].emitted, folder / fmt::to_string(i));
  });
}

double time(const Candidate& one, const Mask& mask, const std::string& device,
            const bench::Device& on, const bench::Tensors& tensors) {
  AttentionOptions options;
  options.plan.level = one.options.level;
  options.device = device;
  options.kernels = {one.library.string()};
  const Attention attention(one.options.problem, mask, options);
  const bool forward = one.emitted.name.starts_with("forward");
  if (!forward) attention.forward(tensors.forward);  // whose O and LSE a backward reads
  return bench::measure(on, bench::Protocol::rested,
                        [&] {
                          if (forward)
                            attention.forward(tensors.forward);
                          else
                            attention.backward(tensors.backward);
                        })
      .ms;
}

}  // namespace

tl::ReasonOptions tune(const std::string& sketch, const std::string& file,
                       const tl::ReasonOptions& options, const Mask& mask,
                       const std::string& device) {
  const auto on = bench::make_device(device);
  const TemporaryFolder folder;
  Progress progress;
  std::vector<Candidate> all = candidates(sketch, file, options);
  progress.say(fmt::format("building {} programs ...", all.size()));
  build(all, folder.path());
  const bench::Tensors tensors(*on, options.problem);
  using Align = report::Table::Align;
  report::Table table(
      {{"tile"}, {"stages", Align::right}, {"warps", Align::right}, {"ms", Align::right}});
  for (Candidate& one : all) {
    progress.say(fmt::format("timing {} ...", one.emitted.name));
    one.ms = time(one, mask, device, *on, tensors);
    table.row({fmt::format("{} x {}", one.options.tile.q, one.options.tile.kv),
               fmt::to_string(one.options.stages), fmt::to_string(one.options.warps),
               fmt::format("{:.3f}", one.ms)});
  }
  progress.say("");
  tl::ReasonOptions best = std::ranges::min_element(all, {}, &Candidate::ms)->options;
  best.measured = on->facts().name;
  fmt::print("{}\n\n{}", headline(options.problem, mask), table.str());
  return best;
}

}  // namespace verbatim::app
