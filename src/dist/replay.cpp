// One process plays all ranks: each goes on until a message is missing, then the next.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <utility>

#include "core/random.h"
#include "dist/executor.h"
#include "dist/sizes.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using dist::LocalMemory;
using dist::LocalTensors;
using dist::RankExecutor;

/// Messages that are on their way, in one process.
class Mailbox {
 public:
  explicit Mailbox(std::optional<uint64_t> delays) : delays_(delays) {}

  /// What rank `own` sees of it.
  class Port final : public dist::Transport {
   public:
    Port(Mailbox& box, int32_t own) : box_(box), own_(own) {}
    void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override {
      const bool fresh = box_.mail_
                             .try_emplace({own_, to, message}, Letter{{bytes.begin(), bytes.end()},
                                                                      box_.chance(kLongestDelay)})
                             .second;
      if (!fresh)
        throw Error(ErrorCode::invalid_plan, "dist.replay",
                    fmt::format("rank {} sends message {} to rank {} twice", own_, message, to));
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
      if (letter.bytes.size() != bytes.size())
        throw Error(ErrorCode::invalid_plan, "dist.replay",
                    fmt::format("message {} from rank {} to rank {} has {} bytes, expected {}",
                                message, from, own_, letter.bytes.size(), bytes.size()));
      std::ranges::copy(letter.bytes, bytes.begin());
      box_.mail_.erase(mail);
      return true;
    }

   private:
    Mailbox& box_;
    int32_t own_;
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
    std::vector<std::byte> bytes;
    size_t delay = 0;  // times that it is not there yet when it is asked for
  };
  // By sender, receiver and number.
  std::map<std::tuple<int32_t, int32_t, int64_t>, Letter> mail_;
  std::optional<uint64_t> delays_;
  uint64_t drawn_ = 0;
  bool late_ = false;
};

std::byte* row(const TensorView& t, int64_t b, int64_t l, int64_t h) {
  return static_cast<std::byte*>(t.data) + t.offset(b, l, h) * size_of(t.dtype);
}

/// Copies the rows that a rank holds of a tensor of the problem to its shard, or back.
void exchange(const TensorView& whole, const HeldRows& rows, const TensorView& local, bool back) {
  const auto bytes = static_cast<size_t>(whole.shape[3] * size_of(whole.dtype));
  for (const RowRange& range : rows.ranges()) {
    for (int64_t l = range.rows.begin; l < range.rows.end; ++l) {
      for (int64_t h = 0; h < whole.shape[2]; ++h) {
        std::byte* ours = row(local, 0, rows.at(range.batch, l), h);
        std::byte* theirs = row(whole, range.batch, l, h);
        std::memcpy(back ? theirs : ours, back ? ours : theirs, bytes);
      }
    }
  }
}

void exchange(const RowView& whole, const HeldRows& rows, const RowView& local, bool back) {
  for (const RowRange& range : rows.ranges()) {
    for (int64_t h = 0; h < whole.shape[1]; ++h) {
      float* ours = local.row(0, h) + rows.at(range.batch, range.rows.begin);
      float* theirs = whole.row(range.batch, h) + range.rows.begin;
      const auto bytes = static_cast<size_t>(range.rows.end - range.rows.begin) * sizeof(float);
      std::memcpy(back ? theirs : ours, back ? ours : theirs, bytes);
    }
  }
}

bool is_output(Pass pass, Operand operand) {
  if (pass == Pass::forward) return operand == Operand::o || operand == Operand::lse;
  return operand >= Operand::dq;
}

std::vector<RankReport> play(const DistPlan& plan, const LocalTensors& whole,
                             const std::string& device, const RunOptions& run,
                             std::optional<uint64_t> delays) {
  const Pass pass = plan.whole.pass;
  const Problem& problem = plan.whole.problem;
  const std::unique_ptr<Backend> backend = make_backend(device);
  Mailbox mailbox(delays);
  std::vector<LocalMemory> homes;
  std::vector<RankExecutor> ranks;
  std::vector<Mailbox::Port> ports;
  const auto exchange_all = [&](size_t r, bool back) {
    const RankPlan& own = plan.ranks[r];
    const LocalTensors& home = homes[r].tensors();
    for (const Operand operand : dist::operands_of(pass)) {
      if (is_output(pass, operand) != back) continue;
      if (operand == Operand::lse) {
        exchange(whole.lse, own.home_q, home.lse, back);
      } else {
        exchange(whole[operand], dist::on_kv_axis(operand) ? own.home_kv : own.home_q,
                 home[operand], back);
      }
    }
  };
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlan& own = plan.ranks[r];
    homes.emplace_back(problem, dist::operands_of(pass), own.home_q.size(), own.home_kv.size(),
                       problem.q_heads, problem.kv_heads);
    exchange_all(r, false);
    ranks.emplace_back(plan, static_cast<int32_t>(r), *backend, homes[r].tensors(), run);
    ports.emplace_back(mailbox, static_cast<int32_t>(r));
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
                  fmt::format("rank {} waits forever at step {}", r, ranks[r].step()));
  mailbox.expect_empty();
  std::vector<RankReport> reports;
  for (size_t r = 0; r < ranks.size(); ++r) {
    exchange_all(r, true);
    reports.push_back(ranks[r].report());
  }
  return reports;
}

void require(const DistPlan& plan, Pass pass) {
  if (plan.whole.pass == pass) return;
  const auto word = [](Pass p) { return p == Pass::forward ? "forward" : "backward"; };
  throw Error(ErrorCode::invalid_argument, "dist.replay", "the plan is for the other pass",
              {"plan.whole.pass", word(plan.whole.pass), word(pass), ""});
}

}  // namespace

std::vector<RankReport> replay(const DistPlan& plan, const ForwardTensors& tensors,
                               const std::string& device, const RunOptions& run,
                               std::optional<uint64_t> delays) {
  require(plan, Pass::forward);
  check_tensors(plan.whole.problem, tensors);
  LocalTensors whole;
  whole[Operand::q] = tensors.q;
  whole[Operand::k] = tensors.k;
  whole[Operand::v] = tensors.v;
  whole[Operand::o] = tensors.o;
  whole.lse = tensors.lse;
  return play(plan, whole, device, run, delays);
}

std::vector<RankReport> replay(const DistPlan& plan, const BackwardTensors& tensors,
                               const std::string& device, const RunOptions& run,
                               std::optional<uint64_t> delays) {
  require(plan, Pass::backward);
  check_tensors(plan.whole.problem, tensors);
  LocalTensors whole;
  whole[Operand::q] = tensors.q;
  whole[Operand::k] = tensors.k;
  whole[Operand::v] = tensors.v;
  whole[Operand::o] = tensors.o;
  whole[Operand::dout] = tensors.dout;
  whole.lse = tensors.lse;
  whole[Operand::dq] = tensors.dq;
  whole[Operand::dk] = tensors.dk;
  whole[Operand::dv] = tensors.dv;
  return play(plan, whole, device, run, delays);
}

}  // namespace verbatim
