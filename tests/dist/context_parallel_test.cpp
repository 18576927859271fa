// ContextParallel, ranks as threads: the bits of Attention without ranks, and what is refused.
#include "verbatim/context_parallel.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/random.h"
#include "dist/random_options.h"
#include "dist/shard_memory.h"
#include "dist/thread_ranks.h"
#include "fuzz/random_problem.h"

namespace verbatim::test {
namespace {

/// Every one of them says so.
void expect_all(const std::vector<std::string>& errors, std::string_view text) {
  for (const std::string& error : errors)
    EXPECT_NE(error.find(text), std::string::npos) << error << "\nsays nothing of: " << text;
}

AttentionOptions attention_options(const RandomProblem& r) {
  AttentionOptions options;
  options.forward_order = r.forward_order;
  options.plan.order = r.backward_order;
  options.plan.level = Level::run_to_run;
  options.plan.tile = r.backward_tile;
  return options;
}

/// A pass of one rank over its shard of these tensors of the problem.
template <class Tensors, class Run>
void run_shard(const ContextParallel& parallel, Pass pass, const Tensors& whole, Run&& run) {
  static const auto backend = make_backend("cpu");
  const RunOptions options;
  dist::ShardMemory memory(parallel.plan(pass), parallel.rank(), *backend, options);
  memory.take(dist::whole_tensors(whole));
  run(memory.tensors());
  memory.give(dist::whole_tensors(whole));
}

void run_both(ContextParallel& parallel, const ForwardTensors& in, const BackwardTensors& all,
              const RunOptions& run) {
  using enum Operand;
  run_shard(parallel, Pass::forward, in, [&](const dist::LocalTensors& t) {
    parallel.forward({t[q], t[k], t[v], t[o], t.lse}, run);
  });
  run_shard(parallel, Pass::backward, all, [&](const dist::LocalTensors& t) {
    parallel.backward({t[q], t[k], t[v], t[o], t[dout], t.lse, t[dq], t[dk], t[dv]}, run);
  });
}

int64_t sent(const std::vector<StepTime>& times) {
  int64_t bytes = 0;
  for (const StepTime& time : times)
    if (time.kind == StepTime::Kind::send) bytes += time.bytes;
  return bytes;
}

TEST(ContextParallel, RandomProblemsHaveTheBitsOfAttention) {
  const DrawnCases cases(80);
  for (uint64_t number = cases.first; number < cases.end; ++number) {
    RandomProblem r = RandomProblem::make(cases.seed, number);
    Rng rng(random_bits(cases.seed + 1, number));
    const DistOptions dist = random_options(rng, r.problem, 4);
    SCOPED_TRACE(fmt::format("{}: {} {}", cases.text(number), to_text(dist), r.text()));
    const AttentionOptions options = attention_options(r);
    const Attention alone(r.problem, r.mask, options);
    r.poison_outputs();
    alone.forward(r.forward());
    alone.backward(r.backward());
    const std::vector<std::string> expected = r.hashes();
    for (const int runs : {1, 2}) {  // launches are made in the first, and kept
      r.poison_outputs();
      const auto errors = errors_of_ranks(dist.world, [&](int32_t rank, Transport& transport) {
        ContextParallel parallel(r.problem, r.mask, dist, rank, transport, options);
        EXPECT_EQ(parallel.rank(), rank);
        EXPECT_EQ(parallel.shard().q_len, parallel.q_rows().size());
        EXPECT_EQ(parallel.shard().kv_len, parallel.kv_rows().size());
        const RunOptions run{.threads = 1 + rank % 2};
        parallel.record(run);
        for (int i = 0; i < runs; ++i) run_both(parallel, r.forward(), r.backward(), run);
        const int64_t predicted = sent_bytes(parallel.plan(Pass::forward), rank) +
                                  sent_bytes(parallel.plan(Pass::backward), rank);
        EXPECT_EQ(sent(parallel.recorded()), runs * predicted);
        EXPECT_TRUE(parallel.recorded().empty());
      });
      ASSERT_EQ(errors, std::vector<std::string>(errors.size()));
      ASSERT_EQ(r.hashes(), expected);
    }
    ASSERT_TRUE(r.guards_intact());
  }
}

const std::vector<std::string> kNone(3);

/// What a rank asks for.
struct Asked {
  Problem problem = problem_of(200, 4, 2);
  Mask mask = masks::causal_sliding_window(200, 200, 6);
  DistOptions dist{.world = 3, .strategy = "ring"};
  AttentionOptions options{};
  RunOptions run{};
};

/// What the ranks throw where one of them asks for something else.
std::vector<std::string> errors_with(int32_t odd, const std::function<void(Asked&)>& other,
                                     double dropout = 0) {
  return errors_of_ranks(3, [&](int32_t rank, Transport& transport) {
    Asked asked;
    asked.problem.dropout = dropout;
    if (rank == odd) other(asked);
    ContextParallel parallel(asked.problem, asked.mask, asked.dist, rank, transport, asked.options);
    Case tensors(asked.problem, asked.mask);
    run_both(parallel, tensors.forward(), tensors.backward(), asked.run);
  });
}

TEST(ContextParallel, EveryRankNamesWhatDiffersAndWhere) {
  const std::pair<const char*, std::function<void(Asked&)>> kCases[] = {
      {"problem.scale", [](Asked& a) { a.problem.scale = 0.5; }},
      {"problem.head_dim", [](Asked& a) { a.problem.head_dim = 24; }},
      {"problem.seed", [](Asked& a) { a.problem.seed = 3; }},
      {"mask.name", [](Asked& a) { a.mask = masks::causal(200, 200); }},
      {"mask.params.window", [](Asked& a) { a.mask = masks::causal_sliding_window(200, 200, 7); }},
      {"mask.params.key_lengths",
       [](Asked& a) { a.mask = a.mask.with_key_lengths(std::vector<int64_t>{9}); }},
      {"options.order", [](Asked& a) { a.options.plan.order = "shift"; }},
      {"options.forward_order", [](Asked& a) { a.options.forward_order = "descending"; }},
      {"options.placement", [](Asked& a) { a.options.plan.placement = "queue"; }},
      {"options.level", [](Asked& a) { a.options.plan.level = Level::run_to_run; }},
      {"options.tile.0",
       [](Asked& a) {
         a.options.plan.tile = {16, 16};
       }},
      {"options.workers", [](Asked& a) { a.options.plan.workers = 5; }},
      // Plans whose sums are those by rule, and that other workers make.
      {"plans",
       [](Asked& a) {
         PlanOptions four;
         four.workers = 4;
         a.options.plans = {std::make_shared<const Plan>(make_plan(a.problem, a.mask, four))};
       }},
      {"strategy", [](Asked& a) { a.dist.strategy = "allgather"; }},
      {"shard", [](Asked& a) { a.dist.shard = "zigzag"; }},
      {"joined_heads", [](Asked& a) { a.dist.joined_heads = 1; }},
  };
  for (const auto& [name, other] : kCases)
    for (const int32_t odd : {1, 2})
      expect_all(errors_with(odd, other),
                 fmt::format("] {} of rank {} is another; got ", name, odd));
  expect_all(errors_with(
                 2, [](Asked& a) { a.run.seed = 5; }, 0.2),
             "] seed of rank 2 is another; got 5, expected 0, as rank 0 has it");
}

/// Tells the others of another version than this library's.
class OfAnotherVersion final : public Transport {
 public:
  explicit OfAnotherVersion(Transport& line) : line_(line) {}
  void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override {
    std::vector<std::byte> sent(bytes.begin(), bytes.end());
    const std::string_view text(reinterpret_cast<const char*>(sent.data()), sent.size());
    constexpr std::string_view kMember = "\"version\":\"";
    if (const size_t at = text.find(kMember); message < 0 && at != text.npos)
      sent[at + kMember.size()] = std::byte{'9'};
    line_.send(to, message, sent);
  }
  bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override {
    return line_.receive(from, message, bytes);
  }

 private:
  Transport& line_;
};

TEST(ContextParallel, RanksOfOtherVersionsAreRefused) {
  const auto errors = errors_of_ranks(3, [&](int32_t rank, Transport& transport) {
    OfAnotherVersion other(transport);
    const Asked asked;
    ContextParallel(asked.problem, asked.mask, asked.dist, rank, rank == 1 ? other : transport);
  });
  expect_all(errors, "] version of rank 1 is another; got \"9.");
}

TEST(ContextParallel, DefaultsThatAreSpelledOutAreNoDifference) {
  EXPECT_EQ(errors_with(1, [](Asked& a) { a.dist.shard = "balanced"; }), kNone);
  EXPECT_EQ(errors_with(1, [](Asked& a) { a.run.threads = 1; }), kNone);
}

TEST(ContextParallel, BadInputOfOneRankEndsAll) {
  for (const int32_t odd : {0, 1}) {
    auto errors = errors_with(odd, [](Asked& a) { a.dist.strategy = "rang"; });
    expect_all(errors, "got 'rang', expected ulysses, ");
    expect_all(errors, "nearest: ring");
    errors = errors_with(odd, [](Asked& a) { a.options.kernels = {"text"}; });
    expect_all(errors, "kernels of the caller run whole plans only; got 1, expected none");
  }
  // What is no Error, here of a name that is no text, ends the others, too.
  const Mask nameless("\xff", "{}", masks::full(200, 200).variants(), {0}, 1, 1);
  expect_all(errors_with(1, [&](Asked& a) { a.mask = nameless; }), "invalid UTF-8 byte");
  const auto errors = errors_of_ranks(3, [](int32_t rank, Transport& transport) {
    Asked asked;
    try {
      if (rank == 1) masks::make(R"({"name": "cuasal", "params": {}})", 200, 200, 2);
    } catch (const Error& error) {
      ContextParallel::refuse(error, 3, rank, transport);
    }
    ContextParallel(asked.problem, asked.mask, asked.dist, rank, transport);
  });
  expect_all(errors, "cuasal");
  expect_all({errors[0], errors[2]}, "rank 1: ");
  EXPECT_EQ(errors[1].find("rank 1: "), std::string::npos);
}

/// Carries comparisons, and nothing of a plan.
class Cut final : public Transport {
 public:
  explicit Cut(Transport& inner) : inner_(inner) {}
  void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override {
    if (message >= 0) throw Error(ErrorCode::device, "test.send", "the line is cut");
    inner_.send(to, message, bytes);
  }
  bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override {
    return inner_.receive(from, message, bytes);
  }

 private:
  Transport& inner_;
};

TEST(ContextParallel, ATransferThatFailsNamesRankAndStep) {
  const auto errors = errors_of_ranks(3, [](int32_t rank, Transport& transport) {
    const Asked asked;
    Cut cut(transport);
    ContextParallel parallel(asked.problem, asked.mask, asked.dist, rank,
                             rank == 1 ? static_cast<Transport&>(cut) : transport);
    Case tensors(asked.problem, asked.mask);
    run_both(parallel, tensors.forward(), tensors.backward(), {});
  });
  for (const char* text : {"rank 1 at step ", "of the forward", "the line is cut"})
    expect_all({errors[1]}, text);
}

TEST(ContextParallel, ThereIsNoRankBeyondTheWorld) {
  const Asked asked;
  Mail mail;
  Mail::Port port(mail, 0);
  for (const int32_t rank : {-1, 3}) try {
      ContextParallel(asked.problem, asked.mask, asked.dist, rank, port);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.details().argument, "rank");
      EXPECT_EQ(error.details().expected, "0 to 2");
    }
}

/// Rank 1 of 2, whose shard has the rows from 384 on.
class ContextParallelShapes : public testing::Test {
 protected:
  ContextParallelShapes() : problem_(problem_of(768, 4, 2)) {
    const auto make = [&](int32_t rank, Transport& transport) {
      return ContextParallel(problem_, masks::causal(768, 768),
                             {.world = 2, .strategy = "ring", .shard = "contiguous"}, rank,
                             transport);
    };
    std::thread other([&] { make(0, ports_[0]); });
    parallel_.emplace(make(1, ports_[1]));
    other.join();
  }
  /// What backward() says where `change` has made one tensor wrong.
  Error::Details details_with(const std::function<void(BackwardTensors&)>& change) {
    const Case shard(parallel_->shard(), masks::causal(384, 384));
    BackwardTensors tensors = shard.backward();
    change(tensors);
    try {
      parallel_->backward(tensors);
    } catch (const Error& error) {
      return error.details();
    }
    return {};
  }

  Problem problem_;
  Mail mail_;
  Mail::Port ports_[2]{{mail_, 0}, {mail_, 1}};
  std::optional<ContextParallel> parallel_;
};

TEST_F(ContextParallelShapes, OfTheWholeProblemAreAnsweredWithTheRowsOfTheRank) {
  ASSERT_EQ(parallel_->q_rows(), HeldRows(std::vector<RowRange>{{0, {384, 768}}}));
  ASSERT_EQ(parallel_->kv_rows(), HeldRows(std::vector<RowRange>{{0, {384, 768}}}));
  const auto of_q = details_with([](BackwardTensors& t) { t.q.shape[1] = 768; });
  EXPECT_EQ(of_q.argument, "q");
  EXPECT_EQ(of_q.got, "[1, 768, 4, 16]");
  EXPECT_EQ(of_q.expected, "[1, 384, 4, 16]");
  EXPECT_EQ(of_q.nearest, "the rows of rank 1, from position 384 of batch entry 0 on");
  EXPECT_EQ(details_with([](BackwardTensors& t) { t.dk.shape[0] = 2; }).argument, "dk");
}

TEST_F(ContextParallelShapes, NameWhatElseIsWrong) {
  const auto of_v = details_with([](BackwardTensors& t) { t.v.shape[2] = 4; });
  EXPECT_EQ(of_v.argument, "v");
  EXPECT_EQ(of_v.got, "[1, 384, 4, 16]");
  EXPECT_EQ(of_v.expected, "[1, 384, 2, 16]");
  EXPECT_EQ(details_with([](BackwardTensors& t) { t.o.dtype = Dtype::f32; }).expected, "bf16");
  EXPECT_EQ(details_with([](BackwardTensors& t) { t.lse.shape[2] = 768; }).argument, "lse");
  const auto of_dv = details_with([](BackwardTensors& t) { t.dv.stride[2] = 384 * 16; });
  EXPECT_EQ(of_dv.argument, "dv");
  const auto of_k = details_with([](BackwardTensors& t) { t.k.stride = {1, 16, 384 * 16, 1}; });
  EXPECT_EQ(of_k.argument, "k.stride[2]");
  EXPECT_EQ(of_k.got, "6144");
  EXPECT_EQ(of_k.expected, "16");
  EXPECT_EQ(of_k.nearest, "a dense copy");
}

}  // namespace
}  // namespace verbatim::test
