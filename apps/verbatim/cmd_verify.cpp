// The audit: the same problem under everything that must not matter.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "core/file.h"
#include "core/json.h"
#include "options.h"
#include "report/format.h"
#include "result.h"
#include "tensors.h"

namespace verbatim::app {
namespace {

struct VerifyCommand {
  ProblemOptions problem;
  MaskOptions mask;
  PlanningOptions planning;
  OutputOptions output;
  std::string device = "cpu", pass = "both", against;
  int repeats = 20;

  int run() const;
};

/// Threads that compute and stream memory until they are told to stop.
class Load {
 public:
  explicit Load(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        std::vector<double> memory(1 << 20, 1.0);
        while (!stop_.load(std::memory_order_relaxed)) {
          for (double& x : memory) x = x * 1.0000001 + 0.5;
        }
      });
    }
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

/// One line of the audit.
struct Row {
  std::string check, detail;
  int runs = 0;
  bool identical = true;
  bool promised = true;
  std::string hash{};  // of the first run that differs, else of the last
};

/// The hashes that an earlier verify saved. Throws Error unless it had this problem, mask and
/// outputs: what then differs is the order, the machine or the version.
Hashes saved_hashes(const std::string& path, const Json& problem, const Mask& mask,
                    const Hashes& ours) {
  const nlohmann::json saved = parse_json(read_text(path), path);
  const auto require = [&](const char* key, const nlohmann::json& got,
                           const nlohmann::json& expected) {
    if (got != expected)
      fail(fmt::format("the saved {} is another", key),
           {"--against", got.dump(), expected.dump(), ""});
  };
  require("command", json_member(saved, "command", path), "verify");
  require("problem", json_member(saved, "problem", path), problem);
  const nlohmann::json& saved_mask = json_member(saved, "mask", path);
  require("mask", json_member(saved_mask, "name", path), mask.name());
  require("mask", json_member(saved_mask, "params", path), Json::parse(mask.params_json()));
  Hashes found;
  for (const auto& [output, hash] : ours)
    found[output] = json_text(json_member(json_member(saved, "sha256", path), output.c_str(), path),
                              output, path);
  return found;
}

class Audit {
 public:
  Audit(Problem problem, Mask mask, AttentionOptions options, Passes passes, int repeats)
      : problem_(problem),
        mask_(std::move(mask)),
        options_(std::move(options)),
        passes_(passes),
        repeats_(repeats),
        attention_(problem_, mask_, options_),
        tensors_(problem_, problem_.seed) {
    run(attention_, tensors_, {});
    expected_ = hash_outputs(tensors_, passes_);
  }

  void repeat();
  void threads();
  void load();
  void workers();
  void batch();
  void heads();
  void documents();
  void against(const std::string& path, const Hashes& saved);

  const std::vector<Row>& rows() const { return rows_; }
  const Attention& attention() const { return attention_; }
  const Hashes& expected() const { return expected_; }

 private:
  bool invariant() const { return options_.plan.level == Level::invariant; }
  /// Dropout is keyed by the number of a sequence and the head: a part at another place drops other
  /// elements. Positions count from the start of a document, so packing alone changes nothing.
  bool movable() const { return problem_.dropout == 0; }

  void run(const Attention& attention, Tensors& tensors, const RunOptions& options) const {
    tensors.poison_outputs(Passes::both);
    attention.forward(tensors.forward(), options);
    if (passes_ != Passes::forward) attention.backward(tensors.backward(), options);
  }
  /// Runs the whole problem once more and notes the result in `row`.
  void again(const Attention& attention, const RunOptions& options, Row& row) {
    run(attention, tensors_, options);
    note(hash_outputs(tensors_, passes_), expected_, row);
  }
  static void note(const Hashes& got, const Hashes& expected, Row& row) {
    ++row.runs;
    if (got != expected && row.identical) {
      row.identical = false;
      row.hash = digest(got);
    }
    if (row.identical) row.hash = digest(got);
  }
  /// Runs `part` as (a part of) another problem and compares what both have in common.
  void elsewhere(const Part& part, const Problem& other, const Mask& mask, const Part& place,
                 uint64_t seed, Row& row) const {
    Tensors tensors(other, seed);
    copy_inputs(tensors_, part, tensors, place);
    run(Attention(other, mask, options_), tensors, {});
    note(hash_outputs(tensors, place, passes_), hash_outputs(tensors_, part, passes_), row);
  }

  Problem problem_;
  Mask mask_;
  AttentionOptions options_;
  Passes passes_;
  int repeats_;
  Attention attention_;
  Tensors tensors_;
  Hashes expected_;
  std::vector<Row> rows_;
};

void Audit::repeat() {
  Row row{"repeats", "one after the other"};
  for (int i = 0; i < repeats_; ++i) again(attention_, {}, row);
  rows_.push_back(row);
}

void Audit::threads() {
  for (const int count : {1, 2, 3, 8}) {
    Row row{"threads", fmt::format("{}", count)};
    again(attention_, {.threads = count}, row);
    rows_.push_back(row);
  }
}

void Audit::load() {
  const unsigned busy = 2 * std::max(1u, std::thread::hardware_concurrency());
  Row row{"load", fmt::format("{} busy threads beside it", busy)};
  const Load load(busy);
  for (int i = 0; i < repeats_; ++i) again(attention_, {}, row);
  rows_.push_back(row);
}

void Audit::workers() {
  for (const int32_t count : {1, 5, 16}) {
    // Placed statically, some orders need more workers than this to make progress at all.
    if (count < std::max(attention_.plan(Pass::forward).residency,
                         attention_.plan(Pass::backward).residency)) {
      continue;
    }
    AttentionOptions options = options_;
    options.plan.workers = count;
    Row row{"workers", fmt::format("planned for {}", count)};
    again(Attention(problem_, mask_, options), {}, row);
    rows_.push_back(row);
  }
}

void Audit::batch() {
  if (!movable()) return;
  constexpr int64_t kSlots = 3;
  Problem other = problem_;
  other.batch = kSlots;
  std::vector<HeadMask> heads;
  std::vector<int32_t> variant_of;
  for (int64_t h = 0; h < problem_.kv_heads; ++h) heads.push_back(mask_.head(0, h));
  for (int64_t i = 0; i < kSlots * problem_.kv_heads; ++i) {
    variant_of.push_back(static_cast<int32_t>(i % problem_.kv_heads));
  }
  const Mask mask(mask_.name(), mask_.params_json(), heads, variant_of, kSlots, problem_.kv_heads);
  Part part = Part::all(problem_);
  part.batch_end = 1;
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    Row row{"batch", fmt::format("entry 0 in slot {} of {}", slot, kSlots)};
    row.promised = invariant();
    Part place = part;
    place.batch_begin = slot;
    place.batch_end = slot + 1;
    elsewhere(part, other, mask, place, problem_.seed + 101 + static_cast<uint64_t>(slot), row);
    rows_.push_back(row);
  }
}

void Audit::heads() {
  if (!movable() || problem_.kv_heads * problem_.batch == 1) return;
  const int64_t head = problem_.kv_heads - 1;
  Problem alone = problem_;
  alone.batch = 1;
  alone.kv_heads = 1;
  alone.q_heads = problem_.group();
  Part part = Part::all(problem_);
  part.batch_end = 1;
  part.head_begin = head;
  part.head_end = head + 1;
  Row row{"heads", fmt::format("KV head {} alone", head)};
  row.promised = invariant();
  elsewhere(part, alone, Mask(mask_.name(), mask_.params_json(), mask_.head(0, head)),
            Part::all(alone), problem_.seed, row);
  rows_.push_back(row);
}

void Audit::documents() {
  const HeadMask& first = mask_.head(0, 0);
  if (first.q_breaks.empty() || first.q_breaks != first.k_breaks) return;
  std::vector<int64_t> edges{0};
  edges.insert(edges.end(), first.q_breaks.begin(), first.q_breaks.end());
  edges.push_back(first.q_len);
  if (!movable() && sequences(first).size() + 1 != edges.size()) return;
  Row row{"packing", ""};
  row.promised = invariant();
  for (size_t d = 0; d + 1 < edges.size(); ++d) {
    const int64_t begin = edges[d], end = edges[d + 1];
    if (begin == end) continue;
    // A document that sees others, or is seen, is not the same problem alone.
    const HeadMask crop = first.crop(begin, end, begin, end);
    const bool closed = crop.area() == first.crop(begin, end, 0, first.kv_len).area() &&
                        crop.area() == first.crop(0, first.q_len, begin, end).area();
    if (!closed) continue;
    // Dropout numbers sequences, so it wants the document in the slot of its number.
    const int64_t slot = movable() ? 0 : static_cast<int64_t>(d);
    Problem alone = problem_;
    alone.batch = slot + 1;
    alone.q_len = alone.kv_len = end - begin;
    std::vector<HeadMask> heads;
    for (int64_t h = 0; h < problem_.kv_heads; ++h)
      heads.push_back(mask_.head(0, h).crop(begin, end, begin, end));
    heads.push_back({end - begin, end - begin, {}, {}, {}});  // of the other slots: nothing to do
    std::vector<int32_t> variant_of(static_cast<size_t>(slot * problem_.kv_heads),
                                    static_cast<int32_t>(problem_.kv_heads));
    for (int32_t h = 0; h < problem_.kv_heads; ++h) variant_of.push_back(h);
    Part place = Part::all(alone);
    place.batch_begin = slot;
    elsewhere(
        {0, 1, 0, problem_.kv_heads, begin, end, begin, end}, alone,
        Mask(mask_.name(), mask_.params_json(), heads, variant_of, alone.batch, problem_.kv_heads),
        place, problem_.seed, row);
  }
  if (row.runs == 0) return;
  row.detail = fmt::format("{} documents, each alone", row.runs);
  rows_.push_back(row);
}

void Audit::against(const std::string& path, const Hashes& saved) {
  Row row{"saved", path};
  note(expected_, saved, row);
  rows_.push_back(row);
}

int VerifyCommand::run() const {
  const Passes passes = passes_from_string(pass);
  if (repeats < 1) {
    fail("an audit needs a repeat", {"--repeats", fmt::to_string(repeats), "1 or more", "20"});
  }
  const Problem sizes = make_problem(problem, mask);
  const Mask made = mask.make(sizes);
  const AttentionOptions options = planning.make_both(device);

  Progress progress;
  progress.say("planning ...");
  Audit audit(sizes, made, options, passes, repeats);
  const std::pair<const char*, void (Audit::*)()> kChecks[] = {
      {"repeats", &Audit::repeat},   {"threads", &Audit::threads}, {"load", &Audit::load},
      {"workers", &Audit::workers},  {"batch", &Audit::batch},     {"heads", &Audit::heads},
      {"packing", &Audit::documents}};
  for (const auto& [name, check] : kChecks) {
    progress.say(fmt::format("auditing {} ...", name));
    (audit.*check)();
  }
  progress.say("");
  if (!against.empty())
    audit.against(against, saved_hashes(against, describe(sizes), made, audit.expected()));

  const Plan& plan = audit.attention().plan(Pass::backward);
  const bool good = std::all_of(audit.rows().begin(), audit.rows().end(),
                                [](const Row& row) { return row.identical || !row.promised; });
  Json result = new_result("verify");
  result["device"] = device;
  result["level"] = planning.level_name();
  result["problem"] = describe(sizes);
  result["mask"] = describe(made, sizes, options.plan.tile);
  result["order"] = plan.orders.empty() ? "none" : plan.orders.front()->name;
  result["fingerprint"] = plan.fingerprint();
  result["sha256"] = audit.expected();
  result["identical"] = good;
  result["audit"] = Json::array();
  using Align = report::Table::Align;
  report::Table table(
      {{"what was changed"}, {""}, {"runs", Align::right}, {"sha256"}, {"verdict"}});
  table.row({"nothing", "the first run", "1", digest(audit.expected()).substr(0, 16), ""});
  for (const Row& row : audit.rows()) {
    result["audit"].push_back({{"check", row.check},
                               {"detail", row.detail},
                               {"runs", row.runs},
                               {"identical", row.identical},
                               {"promised", row.promised},
                               {"sha256", row.hash}});
    table.row({row.check, row.detail, fmt::to_string(row.runs), row.hash.substr(0, 16),
               row.identical  ? "same bits"
               : row.promised ? "DIFFERS"
                              : "differs, not promised"});
  }
  save(output, result);
  fmt::print("{}\nlevel {}, order {}, plan {}\n\n{}\n{}\n", headline(sizes, made),
             planning.level_name(), result["order"].get<std::string>(), plan.fingerprint(),
             table.str(),
             good ? "identical: not one bit depends on any of this"
                  : "NOT identical: a promised bit differs");
  return good ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& root, Action& action) {
  auto command = std::make_shared<VerifyCommand>();
  CLI::App* sub = root.add_subcommand("verify", "Audit the bits: what must not matter does not");
  sub->footer(
      "Example: verbatim verify --mask causal_document --doc-lengths 700,324 --q-heads 4 \\\n"
      "  --kv-heads 2 --dtype bf16\n"
      "Each line changes one thing and compares every output with the first run: repeats, "
      "threads,\n"
      "load, planned workers, place in a batch, a head alone, each document alone. Parts are\n"
      "compared with the same part of the first run. What the level does not promise may differ.\n"
      "With dropout, which numbers sequences and heads, the place in a batch and a head alone are\n"
      "left out.\n"
      "--against compares the first run with one of another process, machine or version as well.\n"
      "--order none runs the backward without turns on a GPU, where repeats then differ: the "
      "audit\n"
      "holds it to run_to_run all the same. On a CPU every plan takes its turns, and repeats.\n"
      "Exit code 1: a promised bit differs.");
  command->problem.add_to(*sub);
  command->mask.add_to(*sub);
  command->planning.add_to(*sub);
  const char* group = "Audit";
  sub->add_option("--pass", command->pass, "forward, backward or both")
      ->group(group)
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--repeats", command->repeats, "Runs, idle and under load")
      ->group(group)
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("--device", command->device, "cpu, cuda or cuda:N")
      ->group(group)
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--against", command->against, "What an earlier verify saved with --json")
      ->group(group)
      ->type_name("FILE");
  command->output.add_to(*sub, true);
  sub->callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
