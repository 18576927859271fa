// Lesson 4: a sequence split over ranks, here threads of one process: the bits of one device.
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "verbatim/context_parallel.h"

using namespace verbatim;

namespace {

constexpr int32_t kRanks = 4;
constexpr int64_t kLength = 3072, kHeads = 2, kDim = 64;

/// Messages on their way: what is sent first from one rank to another is received first.
class Mail {
 public:
  void put(int32_t from, int32_t to, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    queues_[{from, to}].emplace_back(bytes.begin(), bytes.end());
    came_.notify_all();
  }
  std::vector<std::byte> take(int32_t from, int32_t to) {
    std::unique_lock lock(mutex_);
    auto& queue = queues_[{from, to}];
    came_.wait(lock, [&] { return !queue.empty(); });
    std::vector<std::byte> first = std::move(queue.front());
    queue.pop_front();
    return first;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::map<std::pair<int32_t, int32_t>, std::deque<std::vector<std::byte>>> queues_;
};

/// What a rank sees of it. MPI or sockets would stand here where ranks are processes.
class Threads final : public Transport {
 public:
  Threads(Mail& mail, int32_t rank) : mail_(mail), rank_(rank) {}
  void send(int32_t to, int64_t, std::span<const std::byte> bytes) override {
    mail_.put(rank_, to, bytes);
  }
  bool receive(int32_t from, int64_t, std::span<std::byte> bytes) override {
    const std::vector<std::byte> message = mail_.take(from, rank_);
    if (message.size() != bytes.size())
      throw Error(ErrorCode::device, "receive", "a message of another size",
                  {"bytes", std::to_string(message.size()), std::to_string(bytes.size()), ""});
    std::memcpy(bytes.data(), message.data(), bytes.size());
    return true;
  }

 private:
  Mail& mail_;
  int32_t rank_;
};

/// (1, rows, heads, dim), f32, of all tensors of both passes; those of the whole problem or a
/// shard.
struct Tensors {
  int64_t rows;
  std::vector<float> q, k, v, dout, o, dq, dk, dv, lse;

  explicit Tensors(int64_t rows) : rows(rows), lse(static_cast<size_t>(kHeads * rows)) {
    for (auto* x : {&q, &k, &v, &dout, &o, &dq, &dk, &dv}) x->resize(lse.size() * kDim);
  }
  TensorView view(std::vector<float>& x) const {
    return TensorView::dense(x.data(), Dtype::f32, {1, rows, kHeads, kDim});
  }
  ForwardTensors forward() {
    return {view(q), view(k), view(v), view(o), {lse.data(), {1, kHeads, rows}}};
  }
  BackwardTensors backward() {
    return {view(q),  view(k),  view(v), view(o), view(dout), {lse.data(), {1, kHeads, rows}},
            view(dq), view(dk), view(dv)};
  }
};

/// Copies the rows that a rank holds from the whole to its shard, or back.
void copy_rows(std::vector<float>& whole, std::vector<float>& shard, const HeldRows& held,
               bool back) {
  constexpr int64_t kRow = kHeads * kDim;
  float* ours = shard.data();
  for (const RowRange& range : held.ranges()) {
    float* theirs = whole.data() + range.rows.begin * kRow;
    const int64_t count = (range.rows.end - range.rows.begin) * kRow;
    std::memcpy(back ? theirs : ours, back ? ours : theirs, static_cast<size_t>(count) * 4);
    ours += count;
  }
}

}  // namespace

int main() {
  Problem problem;
  problem.q_heads = problem.kv_heads = kHeads;
  problem.q_len = problem.kv_len = kLength;
  const Mask mask = masks::causal(kLength, kLength);
  Tensors whole(kLength), alone(kLength);
  for (size_t i = 0; i < whole.q.size(); ++i) {
    whole.q[i] = alone.q[i] = static_cast<float>(i % 7) / 7;
    whole.k[i] = alone.k[i] = static_cast<float>(i % 11) / 11;
    whole.v[i] = alone.v[i] = static_cast<float>(i % 3) / 3;
    whole.dout[i] = alone.dout[i] = static_cast<float>(i % 5) / 5;
  }
  const Attention attention(problem, mask);
  attention.forward(alone.forward());
  attention.backward(alone.backward());

  Mail mail;
  const auto run_rank = [&](int32_t rank) {
    Threads transport(mail, rank);
    ContextParallel parallel(problem, mask, {.world = kRanks, .strategy = "ring"}, rank, transport);
    const HeldRows &q_rows = parallel.q_rows(), &kv_rows = parallel.kv_rows();  // alike: one length
    Tensors shard(q_rows.size());
    copy_rows(whole.q, shard.q, q_rows, false);
    copy_rows(whole.dout, shard.dout, q_rows, false);
    copy_rows(whole.k, shard.k, kv_rows, false);
    copy_rows(whole.v, shard.v, kv_rows, false);
    parallel.forward(shard.forward());
    parallel.backward(shard.backward());
    copy_rows(whole.o, shard.o, q_rows, true);
    copy_rows(whole.dq, shard.dq, q_rows, true);
    copy_rows(whole.dk, shard.dk, kv_rows, true);
    copy_rows(whole.dv, shard.dv, kv_rows, true);
    const int64_t sent = sent_bytes(parallel.plan(Pass::forward), rank) +
                         sent_bytes(parallel.plan(Pass::backward), rank);
    std::printf("rank %d: %lld of %lld rows, %lld bytes sent\n", rank,
                static_cast<long long>(q_rows.size()), static_cast<long long>(kLength),
                static_cast<long long>(sent));
  };
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < kRanks; ++rank) ranks.emplace_back(run_rank, rank);
  for (std::thread& rank : ranks) rank.join();

  bool same = true;
  for (const auto& [name, ours, theirs] :
       {std::tuple{"o", &whole.o, &alone.o}, std::tuple{"dq", &whole.dq, &alone.dq},
        std::tuple{"dk", &whole.dk, &alone.dk}, std::tuple{"dv", &whole.dv, &alone.dv}}) {
    const bool equal = std::memcmp(ours->data(), theirs->data(), ours->size() * 4) == 0;
    std::printf("%s: %s\n", name, equal ? "the bits of one device" : "OTHER bits");
    same = same && equal;
  }
  return same ? 0 : 1;
}
