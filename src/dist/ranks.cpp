#include "dist/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

using Json = nlohmann::ordered_json;  // the first difference is that of the first member

constexpr const char* kAgree = "dist.agree";
// Messages of a text, its size first, and of a gathering: the report in two, then each output.
constexpr int64_t kSize = -1, kText = -2, kReport = -10, kLaunches = -11, kOutput = -12;

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

void receive(Transport& transport, int32_t from, int64_t message, std::span<std::byte> bytes) {
  while (!transport.receive(from, message, bytes)) {
  }
}

/// What all reports have alike.
struct Counts {
  int64_t sent_bytes, launches;
  double compute_seconds, seconds;
};

void send_report(Transport& transport, const RankReport& report) {
  Counts counts{report.sent_bytes, std::ssize(report.launch_seconds), report.compute_seconds,
                report.seconds};
  transport.send(0, kReport, bytes_of(counts));
  transport.send(0, kLaunches, std::as_bytes(std::span(report.launch_seconds)));
}

RankReport receive_report(Transport& transport, int32_t from) {
  Counts counts{};
  receive(transport, from, kReport, bytes_of(counts));
  RankReport report{.sent_bytes = counts.sent_bytes,
                    .compute_seconds = counts.compute_seconds,
                    .seconds = counts.seconds};
  report.launch_seconds.resize(static_cast<size_t>(counts.launches));
  receive(transport, from, kLaunches, std::as_writable_bytes(std::span(report.launch_seconds)));
  return report;
}

void send_text(Transport& transport, int32_t to, const std::string& text) {
  int64_t size = std::ssize(text);
  transport.send(to, kSize, bytes_of(size));
  transport.send(to, kText, std::as_bytes(std::span(text)));
}

std::string receive_text(Transport& transport, int32_t from) {
  int64_t size = 0;
  receive(transport, from, kSize, bytes_of(size));
  std::string text(static_cast<size_t>(size), '\0');
  receive(transport, from, kText, std::as_writable_bytes(std::span(text)));
  return text;
}

/// The member of that path as text, or that there is none.
std::string shown(const Json& object, const Json::json_pointer& path) {
  return object.contains(path) ? object[path].dump() : "none";
}

/// What an Error says, without who says it.
std::string message_of(const Error& error) {
  return std::string(error.what()).substr(error.operation().size() + 3);
}

/// The parts of an Error.
Json verdict(ErrorCode code, std::string_view operation, const std::string& message,
             const Error::Details& details = {}) {
  return {operation, message, details.argument, details.got, details.expected, code};
}

/// Why these two cannot run together; null when they can.
Json verdict_on(const Json& first, const Json& other, int32_t rank) {
  if (other.is_array()) {
    Json refusal = other;
    refusal[1] = fmt::format("rank {}: {}", rank, other[1].get<std::string>());
    return refusal;
  }
  const Json difference = Json::diff(first, other);
  if (difference.empty()) return nullptr;
  const std::string path = difference[0]["path"];
  std::string name = path.substr(1);
  std::ranges::replace(name, '/', '.');
  const Json::json_pointer at(path);
  return verdict(
      ErrorCode::invalid_argument, kAgree, fmt::format("{} of rank {} is another", name, rank),
      {name, shown(other, at), fmt::format("{}, as rank 0 has it", shown(first, at)), ""});
}

/// What rank 0 finds, told to the others.
Json judge(Transport& transport, int32_t world, const Json& own) {
  Json found = own.is_array() ? own : Json(nullptr);
  for (int32_t r = 1; r < world; ++r) {
    const Json other = Json::parse(receive_text(transport, r));
    if (found.is_null()) found = verdict_on(own, other, r);
  }
  for (int32_t r = 1; r < world; ++r) send_text(transport, r, found.dump());
  return found;
}

}  // namespace

void agree(Transport& transport, int32_t rank, int32_t world, const std::string& specification,
           const Error* bad_input) {
  const Json own = bad_input
                       ? verdict(bad_input->code(), bad_input->operation(), message_of(*bad_input))
                       : Json::parse(specification);
  Json found;
  if (rank == 0) {
    found = judge(transport, world, own);
  } else {
    send_text(transport, 0, own.dump());
    found = Json::parse(receive_text(transport, 0));
  }
  if (found.is_null()) return;
  throw Refused(found[5].get<ErrorCode>(), found[0], found[1], {found[2], found[3], found[4], ""});
}

std::string name_of_message(int64_t message, int32_t from) {
  if (message >= 0) return fmt::format("message {} of rank {}", message, from);
  return fmt::format(
      "the answer of rank {}, as {},", from,
      message > kReport ? "ranks compare what they were asked" : "rank 0 gathers what ranks made");
}

void run_rank(const DistPlan& plan, int32_t rank, const Backend& backend, const LocalTensors& home,
              const RunOptions& run, Transport& transport, const RankRun& asked) {
  RankExecutor executor(plan, rank, backend, home, run, asked);
  try {
    transport.begin(run);
    while (!executor.done()) executor.advance(transport);
  } catch (const Error& error) {
    executor.stop(transport);
    if (error.code() != ErrorCode::device) throw;
    throw Error(error.code(), "dist.run",
                fmt::format("rank {} at step {} of the {}: {}", rank,
                            listed_steps(plan.ranks[static_cast<size_t>(rank)], executor.step()),
                            to_string(plan.whole.pass), error.what()));
  } catch (...) {
    executor.stop(transport);
    throw;
  }
}

std::vector<RankReport> gather(const DistPlan& plan, int32_t rank, ShardMemory& shard,
                               const RankReport& report, const LocalTensors& whole,
                               Transport& transport) {
  shard.give(whole);
  if (rank != 0) {
    send_report(transport, report);
    int64_t message = kOutput;
    for (const std::span<std::byte> output : shard.outputs()) transport.send(0, message--, output);
    return {};
  }
  std::vector<RankReport> reports(plan.ranks.size());
  reports[0] = report;
  for (int32_t r = 1; r < std::ssize(plan.ranks); ++r) {
    reports[static_cast<size_t>(r)] = receive_report(transport, r);
    ShardMemory other = shard.of(r);
    int64_t message = kOutput;
    for (const std::span<std::byte> output : other.outputs())
      receive(transport, r, message--, output);
    other.give(whole);
  }
  return reports;
}

}  // namespace verbatim::dist
