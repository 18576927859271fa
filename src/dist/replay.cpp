// One process plays all ranks: each goes on until a message is missing, then the next.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/random.h"
#include "dist/executor.h"
#include "dist/shard_memory.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using dist::LocalTensors;
using dist::RankExecutor;
using dist::ShardMemory;

/// Messages that are on their way, in one process.
class Mailbox {
 public:
  explicit Mailbox(std::optional<uint64_t> delays) : delays_(delays) {}

  /// What rank `own` sees of it.
  class Port final : public Transport {
   public:
    Port(Mailbox& box, int32_t own, const Backend& backend, const RunOptions& run)
        : box_(box), own_(own), backend_(backend), run_(run) {}
    void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override {
      const auto [mail, fresh] = box_.mail_.try_emplace({own_, to, message});
      if (!fresh)
        throw Error(ErrorCode::invalid_plan, "dist.replay",
                    fmt::format("rank {} sends message {} to rank {} twice", own_, message, to));
      const int64_t size = std::ssize(bytes);
      mail->second = {backend_.allocate(size, run_), size, box_.chance(kLongestDelay)};
      backend_.copy({mail->second.data.get(), size}, {const_cast<std::byte*>(bytes.data()), size},
                    run_);
    }
    bool expect(int32_t from, int64_t message, std::span<std::byte> bytes) override {
      if (!box_.mail_.contains({from, own_, message})) return false;
      if (box_.chance(2) == 0) return receive(from, message, bytes);
      expected_[{from, message}] = bytes;
      return true;
    }
    void came(int32_t from, int64_t message) override {
      const auto expected = expected_.extract({from, message});
      while (expected && !receive(from, message, expected.mapped())) continue;
    }
    bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override {
      const auto mail = box_.mail_.find({from, own_, message});
      if (mail == box_.mail_.end()) return false;
      Letter& letter = mail->second;
      if (letter.delay > 0) {
        --letter.delay;
        box_.late_ = true;
        return false;
      }
      if (letter.size != std::ssize(bytes))
        throw Error(ErrorCode::invalid_plan, "dist.replay",
                    fmt::format("message {} from rank {} to rank {} has {} bytes, expected {}",
                                message, from, own_, letter.size, bytes.size()));
      backend_.copy({bytes.data(), letter.size}, {letter.data.get(), letter.size}, run_);
      box_.mail_.erase(mail);
      return true;
    }

   private:
    Mailbox& box_;
    int32_t own_;
    const Backend& backend_;
    const RunOptions& run_;
    // What comes when it is needed, where chance has it so: by sender and number.
    std::map<std::pair<int32_t, int64_t>, std::span<std::byte>> expected_;
  };

  /// A number below `end` by chance; 0 where nothing is left to chance.
  size_t chance(size_t end) {
    return delays_ ? static_cast<size_t>(random_bits(*delays_, drawn_++) % end) : 0;
  }
  /// Whether a message has been asked for since, and was late.
  bool take_late() { return std::exchange(late_, false); }

  void expect_empty() const {
    if (mail_.empty()) return;
    const auto& [from, to, message] = mail_.begin()->first;
    throw Error(ErrorCode::invalid_plan, "dist.replay",
                fmt::format("rank {} never takes message {} of rank {}", to, message, from));
  }

 private:
  static constexpr size_t kLongestDelay = 5;
  struct Letter {
    std::shared_ptr<std::byte> data;  // of the backend
    int64_t size = 0;
    size_t delay = 0;  // times that it is not there yet when it is asked for
  };
  // By sender, receiver and number.
  std::map<std::tuple<int32_t, int32_t, int64_t>, Letter> mail_;
  std::optional<uint64_t> delays_;
  uint64_t drawn_ = 0;
  bool late_ = false;
};

std::vector<RankReport> play(const DistPlan& plan, const LocalTensors& whole,
                             const std::string& device, const RunOptions& run,
                             std::optional<uint64_t> delays) {
  const std::unique_ptr<Backend> backend = make_backend(device);
  Mailbox mailbox(delays);
  std::vector<ShardMemory> shards;
  std::vector<std::unique_ptr<dist::StepRecord>> records;
  std::vector<RankExecutor> ranks;
  std::vector<Mailbox::Port> ports;
  for (int32_t r = 0; r < std::ssize(plan.ranks); ++r) {
    ShardMemory& shard = shards.emplace_back(plan, r, *backend, run);
    shard.take(whole);
    records.push_back(std::make_unique<dist::StepRecord>(*backend, run));
    ranks.emplace_back(plan, r, *backend, shard.tensors(), run,
                       dist::RankRun{.record = records.back().get()});
    ports.emplace_back(mailbox, r, *backend, run);
  }
  for (bool moved = true; moved;) {
    moved = false;
    const size_t first = mailbox.chance(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      const size_t r = (first + i) % ranks.size();
      moved |= ranks[r].advance(ports[r]);
    }
    moved |= mailbox.take_late();
  }
  for (size_t r = 0; r < ranks.size(); ++r)
    if (!ranks[r].done())
      throw Error(ErrorCode::invalid_plan, "dist.replay",
                  fmt::format("rank {} waits forever at step {}", r,
                              dist::listed_steps(plan.ranks[r], ranks[r].step())));
  mailbox.expect_empty();
  std::vector<RankReport> reports;
  for (size_t r = 0; r < ranks.size(); ++r) {
    shards[r].give(whole);
    reports.push_back(records[r]->report());
  }
  backend->synchronize(run);
  return reports;
}

void require(const DistPlan& plan, Pass pass) {
  if (plan.whole.pass == pass) return;
  throw Error(ErrorCode::invalid_argument, "dist.replay", "the plan is for the other pass",
              {"plan.whole.pass", std::string(to_string(plan.whole.pass)),
               std::string(to_string(pass)), ""});
}

}  // namespace

std::vector<RankReport> replay(const DistPlan& plan, const ForwardTensors& tensors,
                               const std::string& device, const RunOptions& run,
                               std::optional<uint64_t> delays) {
  require(plan, Pass::forward);
  check_tensors(plan.whole.problem, tensors);
  return play(plan, dist::whole_tensors(tensors), device, run, delays);
}

std::vector<RankReport> replay(const DistPlan& plan, const BackwardTensors& tensors,
                               const std::string& device, const RunOptions& run,
                               std::optional<uint64_t> delays) {
  require(plan, Pass::backward);
  check_tensors(plan.whole.problem, tensors);
  return play(plan, dist::whole_tensors(tensors), device, run, delays);
}

}  // namespace verbatim
