#include "dist/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "dist/ranks.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMeeting = -1000, kWaiting = -1001;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::device, "dist.transfer", message);
}

/// Sleeps longer the longer nothing comes: ranks may be more than cores.
class Patience {
 public:
  void wait() {
    if (++times_ < 50) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(times_, 500)));
    }
  }

 private:
  int times_ = 0;
};

std::string name_of(int64_t message, int32_t from) {
  return message == kMeeting   ? fmt::format("the answer of rank {}, as ranks meet,", from)
         : message == kWaiting ? fmt::format("what rank {} tells of its waiting", from)
                               : name_of_message(message, from);
}

}  // namespace

/// The first words of a frame.
struct Courier::Header {
  int64_t number;  // frames of the sender to this rank before
  int64_t meetings, message, bytes;
};

Courier::Courier(Wire& wire, double timeout)
    : wire_(wire),
      timeout_(timeout),
      sent_(static_cast<size_t>(wire.size())),
      received_(static_cast<size_t>(wire.size())),
      awaited_(static_cast<size_t>(wire.size()), -1) {}

void Courier::send(int32_t to, int64_t message, std::span<const std::byte> bytes) {
  const Header header{sent_[to]++, meetings_, message, std::ssize(bytes)};
  constexpr size_t kHeader = sizeof(Header) / sizeof(int64_t);
  Words frame(kHeader + (bytes.size() + sizeof(int64_t) - 1) / sizeof(int64_t));
  std::memcpy(frame.data(), &header, sizeof header);
  if (!bytes.empty()) std::memcpy(frame.data() + kHeader, bytes.data(), bytes.size());
  wire_.send(to, std::move(frame));
}

void Courier::sort_in(Wire::Arrival arrival) {
  auto& [from, frame] = arrival;
  Header header;
  if (frame.size() * sizeof(int64_t) < sizeof header)
    fail(fmt::format("rank {} sent a frame without a header", from));
  std::memcpy(&header, frame.data(), sizeof header);
  int64_t& expected = received_[from];
  if (header.number < expected) fail(name_of(header.message, from) + " came twice");
  if (header.number > expected)
    fail(fmt::format("{} is its number {}; number {} is lost or comes out of turn",
                     name_of(header.message, from), header.number, expected));
  ++expected;
  const bool waits = header.message == kWaiting;
  awaited_[from] = waits ? static_cast<int32_t>(frame.back()) : -1;
  if (waits) return;
  const bool fresh =
      mail_.try_emplace({header.meetings, from, header.message}, std::move(frame)).second;
  if (!fresh) fail(name_of(header.message, from) + " was sent twice");
}

void Courier::tell_waiting(int32_t from) {
  const int64_t awaited = from;
  for (int32_t r = 0; r < wire_.size(); ++r)
    if (r != rank()) send(r, kWaiting, std::as_bytes(std::span(&awaited, 1)));
}

std::string Courier::waits_of(int32_t rank) const {
  std::string text;
  std::set<int32_t> seen;
  for (int32_t at = rank; seen.insert(at).second && awaited_[at] >= 0;) {
    const int32_t next = awaited_[at];
    text += fmt::format("{} rank {}{} for rank {}", text.empty() ? ";" : ",", at,
                        text.empty() ? " waits" : "", next);
    at = next;
  }
  return text;
}

bool Courier::receive(int32_t from, int64_t message, std::span<std::byte> bytes) {
  const auto begin = Clock::now();
  const std::chrono::duration<double> timeout(timeout_);
  bool told = false;
  Patience patience;
  while (true) {
    if (auto mail = mail_.extract({meetings_, from, message})) {
      const Words& frame = mail.mapped();
      Header header;
      std::memcpy(&header, frame.data(), sizeof header);
      const size_t there = frame.size() * sizeof(int64_t) - sizeof header;
      if (header.bytes != std::ssize(bytes) || there < bytes.size())
        fail(fmt::format("{} has {} bytes, expected {}", name_of(message, from), header.bytes,
                         bytes.size()));
      const auto* data = reinterpret_cast<const std::byte*>(frame.data()) + sizeof header;
      std::ranges::copy(std::span(data, bytes.size()), bytes.begin());
      return true;
    }
    if (auto arrival = wire_.poll()) {
      sort_in(std::move(*arrival));
      patience = {};
      continue;
    }
    const auto waited = Clock::now() - begin;
    if (waited > timeout)
      fail(fmt::format("{} did not come to rank {} in {} s{}", name_of(message, from), rank(),
                       timeout_, waits_of(from)));
    if (waited > timeout / 2 && !std::exchange(told, true)) tell_waiting(from);
    patience.wait();
  }
}

void Courier::meet() {
  for (int32_t r = 0; r < wire_.size(); ++r)
    if (r != rank()) send(r, kMeeting, {});
  for (int32_t r = 0; r < wire_.size(); ++r)
    if (r != rank()) receive(r, kMeeting, {});
  ++meetings_;
  if (mail_.empty()) return;
  const auto [when, from, message] = mail_.begin()->first;
  if (when < meetings_) fail("nothing takes " + name_of(message, from));
}

}  // namespace verbatim::dist
