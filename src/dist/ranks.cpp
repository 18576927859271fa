#include "dist/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

using Json = nlohmann::json;

constexpr const char* kAgree = "dist.agree";
// Messages of a text, its size first, and of a gathering: the report, then each output.
constexpr int64_t kSize = -1, kText = -2, kReport = -10, kOutput = -11;

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

void send_text(Transport& transport, int32_t to, const std::string& text) {
  int64_t size = std::ssize(text);
  transport.send(to, kSize, bytes_of(size));
  transport.send(to, kText, std::as_bytes(std::span(text)));
}

std::string receive_text(Transport& transport, int32_t from) {
  int64_t size = 0;
  transport.receive(from, kSize, bytes_of(size));
  std::string text(static_cast<size_t>(size), '\0');
  transport.receive(from, kText, std::as_writable_bytes(std::span(text)));
  return text;
}

/// The member of that path as text, or that there is none.
std::string shown(const Json& object, const Json::json_pointer& path) {
  return object.contains(path) ? object[path].dump() : "none";
}

/// Why these two cannot run together, as the parts of an Error; nothing when they can.
Json verdict_on(const Json& first, const Json& other, int32_t rank) {
  if (other.contains("trouble"))
    return {fmt::format("rank {}: {}", rank, other["trouble"].get<std::string>()), "", "", ""};
  const Json difference = Json::diff(first, other);
  if (difference.empty()) return nullptr;
  const std::string path = difference[0]["path"];
  std::string name = path.substr(1);
  std::ranges::replace(name, '/', '.');
  const Json::json_pointer at(path);
  return {fmt::format("{} of rank {} is another", name, rank), name, shown(other, at),
          shown(first, at) + ", as rank 0 has it"};
}

/// What rank 0 finds.
Json compare(Transport& transport, int32_t world, const Json& own) {
  Json verdict = nullptr;
  if (own.contains("trouble")) verdict = {own["trouble"], "", "", ""};
  for (int32_t r = 1; r < world; ++r) {
    const Json other = parse_json(receive_text(transport, r), kAgree);
    if (verdict.is_null()) verdict = verdict_on(own, other, r);
  }
  for (int32_t r = 1; r < world; ++r) send_text(transport, r, verdict.dump());
  return verdict;
}

}  // namespace

void agree(Transport& transport, int32_t rank, int32_t world, const std::string& specification,
           const std::string& trouble) {
  const Json own = trouble.empty() ? parse_json(specification, kAgree) : Json{{"trouble", trouble}};
  Json verdict;
  if (rank == 0) {
    verdict = compare(transport, world, own);
  } else {
    send_text(transport, 0, own.dump());
    verdict = parse_json(receive_text(transport, 0), kAgree);
  }
  if (verdict.is_null()) return;
  throw Error(ErrorCode::invalid_argument, kAgree, verdict[0],
              {verdict[1], verdict[2], verdict[3], ""});
}

RankReport run_rank(const DistPlan& plan, int32_t rank, const Backend& backend,
                    const LocalTensors& home, const RunOptions& run, Transport& transport) {
  RankExecutor executor(plan, rank, backend, home, run);
  try {
    while (!executor.done()) executor.advance(transport);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::device) throw;
    throw Error(
        error.code(), "dist.run",
        fmt::format("rank {} at step {} of the {}: {}", rank, executor.step(),
                    plan.whole.pass == Pass::forward ? "forward" : "backward", error.what()));
  }
  return executor.report();
}

std::vector<RankReport> gather(const DistPlan& plan, int32_t rank, ShardMemory& shard,
                               const RankReport& report, const LocalTensors& whole,
                               Transport& transport) {
  shard.give(whole);
  if (rank != 0) {
    RankReport own = report;
    transport.send(0, kReport, bytes_of(own));
    int64_t message = kOutput;
    for (const std::span<std::byte> output : shard.outputs()) transport.send(0, message--, output);
    return {};
  }
  std::vector<RankReport> reports(plan.ranks.size());
  reports[0] = report;
  for (int32_t r = 1; r < std::ssize(plan.ranks); ++r) {
    transport.receive(r, kReport, bytes_of(reports[static_cast<size_t>(r)]));
    ShardMemory other(plan, r);
    int64_t message = kOutput;
    for (const std::span<std::byte> output : other.outputs())
      transport.receive(r, message--, output);
    other.give(whole);
  }
  return reports;
}

}  // namespace verbatim::dist
