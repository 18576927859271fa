// From a sketch to TL code: the checker's own edits complete it, and what is left to choose
// (stages, warps) is the first that the target holds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include "tl/copies.h"
#include "tl/kernel.h"
#include "tl/parser.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim::tl {
namespace {

constexpr const char* kOperation = "tl.reason";
const std::vector<int64_t> kWarps{4, 8, 12, 16};  // whole warpgroups, fewest first

/// The size that is asked for, else all.
std::vector<int64_t> asked_or(int64_t size, const std::vector<int64_t>& all) {
  return size > 0 ? std::vector{size} : all;
}

struct Choice {
  TileShape tile;
  int64_t stages, warps;
};

/// Whether four warps multiply together, and others copy.
bool has_warpgroups(const Target& target) { return target.mma.warps > 1; }

/// Numbers of buffers, most first: one is in use, others arrive. Warps of their own copy further
/// ahead.
std::vector<int64_t> stages_of(const Target& target) {
  if (!target.async_copies) return {1};
  return has_warpgroups(target) ? std::vector<int64_t>{4, 2, 1} : std::vector<int64_t>{2, 1};
}

/// The tile to begin with: the contract's, but in a forward of mma.sync one that four warps hold. A
/// warp then has 32 queries, and reads K and V half as often as with 16. Copies that are not in the
/// background take registers, too. Two warpgroups hold the wide heads of MLA. Blocks that an index
/// tensor names are those of native sparse attention.
TileShape first_tile(const Target& target, const Problem& problem, const Kernel& sketch) {
  const Pass pass = sketch.pass;
  if (!sketch.index.empty()) return {64, 64};
  const int64_t head_dim = std::max(problem.head_dim, problem.head_dim_v);
  if (has_warpgroups(target) && pass == Pass::forward && head_dim > 128 && head_dim <= 192)
    return {128, 128};
  if (has_warpgroups(target) || pass == Pass::backward || head_dim > 128)
    return default_tile(problem, pass);
  return {128, head_dim > 64 || !target.async_copies ? 64 : 128};
}

bool asks_for_tile(const ReasonOptions& options) {
  return options.tile.q > 0 || options.tile.kv > 0;
}

/// CTAs that a multiprocessor holds at once.
int64_t residents(const Kernel& kernel) {
  const Target& target = find_target(kernel.target);
  if (has_warpgroups(target)) return ctas_in_roles(kernel);
  const int64_t threads = 32 * kernel.warps;
  return std::min((target.shared_bytes + kReserved) / (shared_bytes(kernel) + kReserved),
                  target.registers / (threads * register_use(kernel, kernel.warps).per_thread));
}

void append_parameter(std::vector<Statement>& statements, const std::string& name,
                      const std::string& value) {
  Param param;
  param.name.text = name;
  param.value.emplace().text = value;
  statements.push_back({std::move(param), {}, false, {}, ""});
}

/// The program with the parameters of `choice` in front, behind `param pass`.
Program with_parameters(const Program& program, const ReasonOptions& options,
                        const Choice& choice) {
  const Problem& p = options.problem;
  const std::vector<std::pair<std::string, std::string>> values{
      {"target", options.target},
      {"dtype", std::string(to_string(p.dtype))},
      {"HeadDim", fmt::to_string(p.head_dim)},
      {"HeadDimV", fmt::to_string(p.head_dim_v)},
      {"BM", fmt::to_string(choice.tile.q)},
      {"BN", fmt::to_string(choice.tile.kv)},
      {"stages", fmt::to_string(choice.stages)},
      {"warps", fmt::to_string(choice.warps)}};
  Program result = program;
  std::vector<Statement>& all = result.statements;
  std::erase_if(all, [&](const Statement& s) {
    const Param* param = std::get_if<Param>(&s.node);
    return param &&
           std::ranges::any_of(values, [&](const auto& v) { return v.first == param->name.text; });
  });
  const auto pass = std::ranges::find_if(
      all, [](const Statement& s) { return std::holds_alternative<Param>(s.node); });
  std::vector<Statement> made;
  for (const auto& [name, value] : values) append_parameter(made, name, value);
  all.insert(pass == all.end() ? all.begin() : std::next(pass),
             std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
  return result;
}

/// Allocates of one memory after those of another, as the hierarchy goes down.
void sort_allocates(std::vector<Statement>& statements) {
  const auto is_allocate = [](const Statement& s) {
    return std::holds_alternative<Allocate>(s.node);
  };
  const auto first = std::ranges::find_if(statements, is_allocate);
  const auto last = std::find_if_not(first, statements.end(), is_allocate);
  std::stable_sort(first, last, [](const Statement& a, const Statement& b) {
    return std::get<Allocate>(a.node).memory < std::get<Allocate>(b.node).memory;
  });
  for (auto s = first; s != last; ++s)
    s->apart = s == first ||
               std::get<Allocate>(s->node).memory != std::get<Allocate>(std::prev(s)->node).memory;
  if (last != statements.end()) last->apart = true;
}

std::string kib(int64_t bytes) { return fmt::format("{:.4g} KiB", bytes / 1024.0); }

/// Why each choice was made, behind its line.
class Explanation {
 public:
  Explanation(const Kernel& kernel, const ReasonOptions& options)
      : kernel_(kernel), options_(options), target_(find_target(kernel.target)) {}

  void add_to(std::vector<Statement>& statements) const {
    for (Statement& s : statements) {
      std::string why;
      if (const Param* p = std::get_if<Param>(&s.node)) why = of(p->name.text);
      if (const Allocate* a = std::get_if<Allocate>(&s.node)) why = of(*a);
      if (std::holds_alternative<Reshape>(s.node))
        why = fmt::format("a product becomes a factor, rounded to {}", to_string(kernel_.dtype));
      if (std::holds_alternative<Wait>(s.node))
        why = target_.async_copies ? "for its copy in the background" : "for every thread's part";
      if (s.comment.empty()) s.comment = why;
      if (Loop* loop = std::get_if<Loop>(&s.node)) {
        if (s.comment.empty()) s.comment = visits();
        add_to(loop->body);
      }
    }
  }

 private:
  std::string of(const std::string& parameter) const {
    if (parameter == "target") return target_.summary;
    if (parameter == "BM" && kernel_.by_query)
      return "rows of a tile: the heads of a group, at most";
    if (parameter == "BM") return "queries of a tile: " + whose_tile();
    if (parameter == "BN") return "keys of a tile: " + whose_tile() + "; " + visit_time();
    if (parameter == "stages") return why_stages();
    if (parameter == kernel_.index)
      return kernel_.by_query ? "names the blocks that the heads of a group visit for a query"
                              : "names the blocks that the queries of a tile visit";
    if (parameter != "warps") return "";
    if (!options_.measured.empty()) return "measured";
    const int64_t most =
        std::min(target_.registers_per_thread, target_.registers / (32 * kernel_.warps));
    const bool by_rows = has_warpgroups(target_) && kernel_.pass == Pass::forward;
    return fmt::format("{}: about {} of {} registers a thread",
                       by_rows ? "64 queries for four" : "the fewest that hold the tiles",
                       register_use(kernel_, kernel_.warps).per_thread, most);
  }

  /// Of a visit with all multiprocessors at work, each with its share of both peaks.
  std::string visit_time() const {
    const VisitWork work = visit_work(kernel_);
    const auto share = static_cast<double>(target_.multiprocessors);
    const double products = work.flops * share / (target_.tflops.at(kernel_.dtype) * 1e6);
    const double memory = work.bytes * share / (target_.memory_gb_per_s * 1e3);
    const double held = std::ceil(100 * (1 - products / memory));
    return fmt::format("a visit takes {:.2f} us of products, {:.2f} of memory: bound by products{}",
                       products, memory,
                       held > 0 ? fmt::format(" if L2 has {:.0f} % of it", held) : "");
  }

  std::string visits() const {
    if (kernel_.index.empty()) return "the visits of a chain, in the plan's order";
    return fmt::format("the blocks that {} names, one after another", kernel_.index);
  }

  std::string whose_tile() const {
    if (!options_.measured.empty()) return "measured on " + options_.measured;
    if (kernel_.index.empty() && kernel_.tile == default_tile(options_.problem, kernel_.pass))
      return "the contract's";
    if (kernel_.tile == first_tile(target_, options_.problem, kernel_))
      return !kernel_.index.empty()    ? "a block of native sparse attention"
             : has_warpgroups(target_) ? "what two warpgroups hold"
                                       : "so that a warp has 32 queries";
    return asks_for_tile(options_) ? "as asked for" : "the largest that fits";
  }

  std::string why_stages() const {
    const std::string room =
        fmt::format("{} of {}", kib(shared_bytes(kernel_)), kib(target_.shared_bytes));
    if (!options_.measured.empty()) return "measured; shared memory: " + room;
    if (!target_.async_copies) return "copies are not in the background; shared memory: " + room;
    Kernel more = kernel_;
    more.stages *= 2;
    if (kernel_.stages > 1)
      return fmt::format("tiles of the next {} during this one; shared memory: {}",
                         kernel_.stages == 2 ? "visit arrive"
                                             : fmt::format("{} visits arrive", kernel_.stages - 1),
                         room);
    if (const int64_t ctas = residents(kernel_), fewer = residents(more); 0 < fewer && fewer < ctas)
      return fmt::format("so that {} CTAs run at once; shared memory: {}", ctas, room);
    return fmt::format("two would take {}; shared memory: {}", kib(shared_bytes(more)), room);
  }

  std::string of(const Allocate& a) const {
    if (a.memory == Memory::global) return "";
    for (const Variable& v : kernel_.variables) {
      if (v.name != a.name.text || v.memory != a.memory) continue;
      const int64_t bytes = bytes_of(kernel_, v);
      const int64_t turned = turned_bytes(kernel_, v) == 0 ? 0 : kTurnedBuffers;
      if (v.memory == Memory::shared && v.staged && kernel_.stages + turned > 1)
        return fmt::format("{} buffers of {}{}", kernel_.stages + turned,
                           kib(bytes / kernel_.stages),
                           turned > 0 ? fmt::format(", {} of them turned", turned) : "");
      if (v.memory == Memory::shared) return kib(bytes);
      if (v.cols == 1) return "f32, one a row";
      return fmt::format("f32, {} a thread", bytes / 4 / (32 * kernel_.warps));
    }
    return "";
  }

  const Kernel& kernel_;
  const ReasonOptions& options_;
  const Target& target_;
};

class Reasoning {
 public:
  Reasoning(const Examined& sketch, const ReasonOptions& options)
      : options_(options), target_(find_target(options.target)), sketch_(sketch.kernel) {
    tile_ = first_tile(target_, options.problem, sketch_);
    if (options.tile.q > 0) tile_.q = options.tile.q;
    if (options.tile.kv > 0) tile_.kv = options.tile.kv;
    // Sizes have no part in what is missing: once complete, the program serves every choice.
    program_ =
        parse_whole(fix(to_string(with_parameters(sketch.program, options, {tile_, 1, kWarps[0]})),
                        check_options()),
                    "sketch", kOperation);
    sort_allocates(program_.statements);
  }

  std::string run() {
    check_dtype();
    std::vector<Diagnostic> faults;
    std::optional<Examined> found = first_that_fits(tile_, &faults);
    const TileShape largest = found ? tile_ : largest_tile();
    if (!found && !asks_for_tile(options_) && largest.q > 0)
      found = first_that_fits(largest, nullptr);
    if (found) {
      Program chosen = found->program;
      Explanation(found->kernel, options_).add_to(chosen.statements);
      return to_string(chosen);
    }
    throw Error(
        ErrorCode::unsupported, kOperation,
        fmt::format("{} cannot do it: {}", target_.name, faults.front().reason),
        {"tile",
         fmt::format("tiles of {} x {}, head dims {} and {}", tile_.q, tile_.kv,
                     options_.problem.head_dim, options_.problem.head_dim_v),
         faults.front().right,
         largest.q > 0 ? fmt::format("--tile-q {} --tile-kv {}", largest.q, largest.kv)
         : options_.stages > 0 || options_.warps > 0 ? "other stages or warps"
                                                     : "head dims that are multiples of 16"});
  }

 private:
  /// Fewer than a warpgroup where a tile has no 16 rows for each.
  std::vector<int64_t> warps_of(TileShape tile) const {
    std::vector<int64_t> warps = kWarps;
    if (!has_warpgroups(target_) && tile.q < 16 * kWarps[0])
      warps.insert(warps.begin(), std::max<int64_t>(tile.q / 16, 1));
    return warps;
  }
  CheckOptions check_options() const { return {.target = {}, .level = options_.level}; }

  void check_dtype() const {
    const Dtype dtype = options_.problem.dtype;
    if (dtype == Dtype::e4m3 && sketch_.pass == Pass::backward)
      throw Error(ErrorCode::unsupported, kOperation, "e4m3 is of forwards",
                  {"dtype", "e4m3", "f16, bf16", "bf16"});
    if (target_.takes(dtype)) return;
    throw Error(ErrorCode::unsupported, kOperation,
                fmt::format("matrix instructions of {} do not take it", target_.name),
                {"dtype", std::string(to_string(dtype)), target_.dtypes(),
                 target_.takes(Dtype::bf16) ? "bf16" : "f16"});
  }

  static Diagnostic of_other_warps(TileShape tile) {
    return {.code = "warps",
            .reason = "each warpgroup of a forward has 64 queries",
            .right = tile.q % 64 == 0
                         ? fmt::format("--warps {} for {} queries", tile.q / 16, tile.q)
                         : "64 queries for every 4 warps"};
  }

  /// As many stages as there is room for, unless fewer suffice for copies in the background and let
  /// more CTAs run at once; then as few warps as hold the registers.
  std::optional<Examined> first_that_fits(TileShape tile, std::vector<Diagnostic>* faults) const {
    std::optional<Examined> best;
    for (const int64_t stages : asked_or(options_.stages, stages_of(target_))) {
      for (const int64_t warps : asked_or(options_.warps, warps_of(tile))) {
        if (has_warpgroups(target_) && sketch_.pass == Pass::forward && 16 * warps != tile.q) {
          if (faults && faults->empty()) faults->push_back(of_other_warps(tile));
          continue;
        }
        const Program tried = with_parameters(program_, options_, {tile, stages, warps});
        Examined found = examine(to_string(tried), check_options());
        if (!found.faults.empty()) {
          if (faults) *faults = std::move(found.faults);
          continue;
        }
        if (!best || (residents(found.kernel) > residents(best->kernel) &&
                      Copies(found.kernel).at_start().empty()))
          best = std::move(found);
        break;
      }
    }
    return best;
  }

  /// The largest that the target can do, of those that halve extents of the usual tile or of what
  /// was asked for; 0 x 0: none.
  TileShape largest_tile() const {
    const TileShape usual = first_tile(target_, options_.problem, sketch_);
    TileShape best{0, 0};
    for (int64_t q = std::max(tile_.q, usual.q); q >= 16; q /= 2)
      for (int64_t kv = std::max(tile_.kv, usual.kv); kv >= 16; kv /= 2)
        if (q * kv > best.q * best.kv && first_that_fits({q, kv}, nullptr)) best = {q, kv};
    return best;
  }

  const ReasonOptions& options_;
  const Target& target_;
  const Kernel& sketch_;
  TileShape tile_;
  Program program_;
};

/// What no program can have is refused before it is written into one.
void check_sizes(const ReasonOptions& options) {
  for (const auto& [name, size, most] : {std::tuple{"tile_q", options.tile.q, kMostOfATile},
                                         {"tile_kv", options.tile.kv, kMostOfATile},
                                         {"stages", options.stages, kMostStages},
                                         {"warps", options.warps, kMostWarps}})
    if (size < 0 || size > most)
      throw Error(size < 0 ? ErrorCode::invalid_argument : ErrorCode::unsupported, kOperation,
                  fmt::format("{} is out of range", name),
                  {name, fmt::to_string(size), fmt::format("1 to {}, or 0: what fits", most),
                   fmt::to_string(std::clamp<int64_t>(size, 0, most))});
}

}  // namespace

std::string reason(std::string_view sketch, std::string_view file, const ReasonOptions& options) {
  options.problem.validate();
  find_target(options.target);
  check_sizes(options);
  const Examined found =
      examine(sketch, {.target = options.target, .level = options.level, .sketch = true});
  if (!found.faults.empty())
    throw Error(ErrorCode::invalid_argument, kOperation,
                "the sketch is refused" + described(found.faults, sketch, file));
  return Reasoning(found, options).run();
}

std::vector<ReasonOptions> choices(std::string_view sketch, std::string_view file,
                                   const ReasonOptions& options) {
  // Refuses what no size can mend.
  const Kernel own = examine_code(reason(sketch, file, options), file, {}, kOperation).kernel;
  refuse_index(own, kOperation);
  std::vector<ReasonOptions> all;
  const auto add = [&](TileShape tile, int64_t stages, int64_t warps) {
    ReasonOptions one = options;
    one.tile = tile;
    one.stages = stages;
    one.warps = warps;
    try {
      emit(reason(sketch, file, one), file, {.target = {}, .level = options.level});
      all.push_back(one);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
    }
  };
  add(own.tile, own.stages, own.warps);
  for (const int64_t q : asked_or(options.tile.q, {64, 128}))
    for (const int64_t kv : asked_or(options.tile.kv, {32, 64, 128}))
      for (const int64_t stages : asked_or(options.stages, stages_of(find_target(options.target))))
        for (const int64_t warps : asked_or(options.warps, {4, 8}))
          if (TileShape{q, kv} != own.tile || stages != own.stages || warps != own.warps)
            add({q, kv}, stages, warps);
  if (all.empty())
    emit(reason(sketch, file, options), file, {.target = {}, .level = options.level});
  return all;
}

}  // namespace verbatim::tl
