// Ranks as threads of one process, and the way between them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "verbatim/error.h"
#include "verbatim/transport.h"

namespace verbatim::test {

/// Messages on their way, first in, first out between two ranks. Those of odd ranks do not wait for
/// a message but ask again.
class Mail {
 public:
  class Port final : public Transport {
   public:
    Port(Mail& mail, int32_t rank) : mail_(mail), rank_(rank) {}
    void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override {
      const std::lock_guard lock(mail_.mutex_);
      mail_.queues_[{rank_, to}].emplace_back(message, std::vector(bytes.begin(), bytes.end()));
      mail_.changed_.notify_all();
    }
    bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override {
      std::unique_lock lock(mail_.mutex_);
      auto& queue = mail_.queues_[{from, rank_}];
      const auto ready = [&] { return !queue.empty() || mail_.ended_.contains(from); };
      if (rank_ % 2 == 0) mail_.changed_.wait(lock, ready);
      if (!ready()) return false;
      if (queue.empty() || queue.front().first != message ||
          queue.front().second.size() != bytes.size())
        throw Error(ErrorCode::device, "test.receive",
                    "that rank ended, or this is no message of that number and size");
      std::ranges::copy(queue.front().second, bytes.begin());
      queue.pop_front();
      return true;
    }

   private:
    Mail& mail_;
    int32_t rank_;
  };

  /// A rank ended with an error: nothing more comes from it. From others it may: a refusal reaches
  /// one rank, which ends, before rank 0 has sent it to the next.
  void end(int32_t rank) {
    const std::lock_guard lock(mutex_);
    ended_.insert(rank);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int32_t> ended_;
  std::map<std::pair<int32_t, int32_t>, std::deque<std::pair<int64_t, std::vector<std::byte>>>>
      queues_;  // by sender and receiver
};

/// What each rank's `part` threw; empty: nothing.
inline std::vector<std::string> errors_of_ranks(
    int32_t world, const std::function<void(int32_t, Transport&)>& part) {
  Mail mail;
  std::vector<std::string> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      Mail::Port port(mail, rank);
      try {
        part(rank, port);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
        mail.end(rank);
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace verbatim::test
