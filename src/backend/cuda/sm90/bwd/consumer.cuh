// A consumer warpgroup of the sm90 backward: from tiles in shared memory to addends of dQ, and to
// dK and dV.
#pragma once

#include "backend/cuda/device/recorder.cuh"
#include "backend/cuda/device/result.cuh"
#include "backend/cuda/sm90/bwd/extras.cuh"
#include "backend/cuda/sm90/bwd/key_sums.cuh"
#include "backend/cuda/sm90/bwd/mask.cuh"
#include "backend/cuda/sm90/fragment.cuh"
#include "backend/cuda/sm90/gemm.cuh"
#include "backend/cuda/sm90/pipeline.cuh"
#include "backend/cuda/sm90/tanh.cuh"

namespace verbatim::cuda::sm90::bwd {

/// What a warpgroup, `half` of the consumers, multiplies, and where products go.
template <class C>
struct Operands {
  using SharedStorage = typename C::SharedStorage;

  template <class Layout>
  __device__ static auto tile(typename C::Element* data) {
    return make_tensor(make_smem_ptr(data), Layout{});
  }
  template <class Mma>
  __device__ static auto slice(int half) {
    return Mma{}.get_thread_slice(half * 128);
  }
  // S^T = K Q^T and dP^T = V dO^T.
  __device__ static auto s_k(SharedStorage& smem, int half) {  // descriptors (MMA,1,HD/16)
    return slice<typename C::MmaS>(half).partition_fragment_A(tile<typename C::LayoutK>(smem.k));
  }
  // Descriptors (MMA,1,HD/16,stages); of wide heads (MMA,2,HD/16,stages).
  __device__ static auto s_q(SharedStorage& smem, int half) {
    return slice<typename C::MmaS>(half).partition_fragment_B(tile<typename C::LayoutQ>(smem.q));
  }
  __device__ static auto p_v(SharedStorage& smem, int half) {  // descriptors (MMA,1,HDV/16)
    return slice<typename C::MmaDp>(half).partition_fragment_A(tile<typename C::LayoutV>(smem.v));
  }
  __device__ static auto p_do(SharedStorage& smem, int half) {  // as of Q (..,HDV/16,stages)
    return slice<typename C::MmaDp>(half).partition_fragment_B(
        tile<typename C::LayoutDo>(smem.dout));
  }
  __device__ static auto stats(SharedStorage& smem, int half) {  // descriptors, as of Q
    return slice<typename C::MmaStats>(half).partition_fragment_B(
        tile<typename C::LayoutStats>(reinterpret_cast<typename C::Element*>(smem.stats)));
  }
  // dV = P^T dO and dK = dS^T Q.
  __device__ static auto v_do(SharedStorage& smem, int half) {  // descriptors (MMA,1,TQ/16,stages)
    return slice<typename C::MmaDv>(half).partition_fragment_B(
        tile<typename C::LayoutDot>(smem.dout));
  }
  __device__ static auto k_q(SharedStorage& smem, int half) {  // descriptors (MMA,1,TQ/16,stages)
    return slice<typename C::MmaDk>(half).partition_fragment_B(tile<typename C::LayoutQt>(smem.q));
  }
  // dQ = dS K.
  __device__ static auto q_ds(SharedStorage& smem, int half) {  // descriptors (MMA,1,TKV/16,stages)
    return slice<typename C::MmaDq>(C::kWide ? 0 : half)
        .partition_fragment_A(tile<typename C::LayoutDst>(smem.ds));
  }
  // Descriptors (MMA,1,TKV/16); of wide heads (MMA,3,TKV/16), of all columns of K.
  __device__ static auto q_k(SharedStorage& smem, int half) {
    using Mma = std::conditional_t<C::kWide, typename C::MmaColumns, typename C::MmaDq>;
    return slice<Mma>(C::kWide ? 0 : half).partition_fragment_B(tile<typename C::LayoutKt>(smem.k));
  }
  __device__ static auto scores() {
    return partition_fragment_C(typename C::MmaS{}, Shape<Int<C::kTileKv>, Int<C::kQueries>>{});
  }
  __device__ static auto dk() {
    return partition_fragment_C(typename C::MmaDk{}, Shape<Int<C::kTileKv>, Int<C::kHeadDim>>{});
  }
  __device__ static auto dv() {
    return partition_fragment_C(typename C::MmaDv{}, Shape<Int<C::kTileKv>, Int<C::kHeadDimV>>{});
  }
  __device__ static auto dq() {
    constexpr int kColumns = C::kWide ? 32 : C::kHeadDim;
    return partition_fragment_C(typename C::MmaDq{}, Shape<Int<C::kTileQ>, Int<kColumns>>{});
  }
  /// P^T or dS^T in 16 bits, of the queries of S: the A operand of dV and dK, register by
  /// register.
  __device__ static auto rounded() {
    return make_tensor<typename C::Element>(
        Layout<Shape<Shape<_2, _2, _2>, _1, Int<C::kQueries / 16>>>{});
  }
  /// The constant operand of the k step that subtracts LSE or delta.
  __device__ static auto weights() {
    return make_tensor<typename C::Element>(Layout<Shape<Shape<_2, _2, _2>, _1, _1>>{});
  }
};

/// KV rows [64 half, 64 half + 64) of S^T, dP^T, dK and dV, and a 64 x 64 half of dQ. Visits
/// overlap: S of the next one is computed behind dK, and a dQ whose sum this visit completes is
/// written a visit later, when the sum has come back.
template <class C, class Recorder>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(typename C::SharedStorage& shared, const Params& params)
      : smem(shared),
        p(params),
        // Of the consumers; through a shuffle, so that the compiler keeps it and does not ask
        // again. Unsigned, so that what follows from it is a shift away and needs no register.
        tid(__shfl_sync(~0u, threadIdx.x - kServiceThreads, threadIdx.x % 32)),
        half(__shfl_sync(~0u, tid / 128, 0)),  // uniform for descriptors
        s_k(Of::s_k(smem, half)),
        s_q(Of::s_q(smem, half)),
        p_v(Of::p_v(smem, half)),
        p_do(Of::p_do(smem, half)),
        stats(Of::stats(smem, half)),
        v_do(Of::v_do(smem, half)),
        k_q(Of::k_q(smem, half)),
        q_ds(Of::q_ds(smem, half)),
        q_k(Of::q_k(smem, half)),
        recorder(p.record, 0, tid == 0) {
    static_assert(size(decltype(ts){}) == kScores && size(decltype(tq){}) == (C::kWide ? 16 : 32));
    const auto fill = [&](auto& weights, bool of_scores) {
      Tensor words = recast<uint32_t>(weights);
      words(0) = words(1) =
          StatCode<Element>::weights(lane(), of_scores, p.common.scalars.scale, p.unit);
      words(2) = words(3) = 0;
    };
    fill(lse_weights, true);
    fill(delta_weights, false);
  }

  __device__ __forceinline__ void run() {
    // Chains so far, from bit 1 on; in bit 0 whether an odd number of them had visits.
    for (uint32_t chains = 0;; chains += 2) {
      const uint32_t c = chains / 2;
      wait_full(smem.chain_full, c);
      const int64_t started = recorder.now();
      const Chain90& chain = smem.chain[c % kChainRing];
      const Chain90::State state = chain.state;
      if (state == Chain90::end) {
        if (pending) finish_row(n - 1);
        return;
      }
      begin_key_tile<Element>(p, chain, half, k_row(), tk, tv);
      if (state == Chain90::visited) {
        wait_full(smem.k_full, chains);
        wait_full(smem.v_full, chains);
        chains ^= 1;
        recorder.note(RecordKind::start, started, -1, chain.key);
        do_visits(chain);
      }
      const int64_t ended = recorder.now();
      end_chain(chain);
      recorder.note(RecordKind::finish, ended, -1, chain.key);
      release(smem.chain_empty[c % kChainRing]);
    }
  }

 private:
  using Element = typename C::Element;
  using Visit = typename C::Visit;
  using Of = Operands<C>;
  using Kept = uint32_t[C::kTileQ / 64];
  static constexpr int kScores = C::kQueries / 2;  // elements of S^T a thread holds

  typename C::SharedStorage& smem;
  const Params& p;
  const uint32_t tid;
  const int half;

  typename C::MmaS mma_s;
  typename C::MmaDp mma_dp;
  typename C::MmaStats mma_stats;
  typename C::MmaDk mma_dk;
  typename C::MmaDv mma_dv;
  typename C::MmaDq mma_dq;
  template <auto of>
  using Descriptors = decltype(of(std::declval<typename C::SharedStorage&>(), 0));
  Descriptors<Of::s_k> s_k;
  Descriptors<Of::s_q> s_q;
  Descriptors<Of::p_v> p_v;
  Descriptors<Of::p_do> p_do;
  Descriptors<Of::stats> stats;
  Descriptors<Of::v_do> v_do;
  Descriptors<Of::k_q> k_q;
  Descriptors<Of::q_ds> q_ds;
  Descriptors<Of::q_k> q_k;
  decltype(Of::scores()) ts, tp;  // S^T and P^T, dP^T
  decltype(Of::dk()) tk;
  decltype(Of::dv()) tv;
  decltype(Of::dq()) tq;
  decltype(Of::weights()) lse_weights, delta_weights;
  Recorder recorder;

  uint32_t n = 0;        // visits so far: places this thread in every ring of visits
  bool pending = false;  // dQ of the visit before is to be finished

  __device__ __forceinline__ uint32_t lane() const { return tid % 32; }
  /// The thread's first KV row in the tile; the second is 8 below.
  __device__ __forceinline__ int k_row() const {
    return static_cast<int>(tid / 32 * 16 + lane() / 4);
  }
  __device__ __forceinline__ static uint32_t stage(uint32_t visit) { return visit % C::kStages; }
  __device__ __forceinline__ void release(uint64_t& bar) const {  // one arrival a warp
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(&bar);
  }

  /// The visits of a chain, of which n is the first. S of the next visit is computed behind dK.
  /// Behind the last one it is computed from whatever is there and not used: ptxas serialises all
  /// wgmma if one of them is conditional.
  __device__ __forceinline__ void do_visits(const Chain90& chain) {
    issue_scores(n, true);
    DropoutPlace place;
    if (C::kExtras && p.common.scalars.dropout.enabled()) {
      place = DropoutPlace::of(p.common, chain, smem.visit[n % C::kVisitRing].row);
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(ts);
    for (bool last = false; !last; ++n) {
      Recorder::disturb();
      const int64_t begin = recorder.now();
      const Visit& visit = smem.visit[n % C::kVisitRing];
      const int32_t row = visit.row;
      last = visit.head.last;
      const bool completes = visit.head.rows > 0;
      const uint32_t halves = C::kHalves ? __shfl_sync(~0u, shown_halves<C>(visit), 0) : 3;
      // A branch around whole visits: wgmma in flight where paths meet would be serialised.
      if constexpr (C::kWide) {
        do_wide_visit(visit, chain, last);
      } else if (halves % 4 == 3) {
        do_visit<true, true>(visit, chain, place, halves, last);
      } else if (halves >> half & 1) {
        do_visit<true, false>(visit, chain, place, halves, last);
      } else {
        do_visit<false, true>(visit, chain, place, halves, last);
      }
      recorder.note(RecordKind::compute, begin, row, chain.key);
      Recorder::disturb();
      release(smem.rows_empty[stage(n)]);
      if (!C::kWide && pending) finish_row(n - 1);
      pending = completes;
    }
  }

  /// Visit n, whose scores are there, up to the scores of the next. kSees, kOther: whether a query
  /// sees this warpgroup's keys, the other's. P and dS of hidden keys are 0: products with them are
  /// left out, and a warpgroup whose keys are hidden has a part in dQ alone. `halves`: what
  /// shown_halves() says, where it is asked.
  template <bool kSees, bool kOther>
  __device__ __forceinline__ void do_visit(const Visit& visit, const Chain90& chain,
                                           const DropoutPlace& place, uint32_t halves, bool last) {
    const int s = stage(n);
    Tensor rp = Of::rounded(), rds = Of::rounded();  // (MMA,1,TQ/16)
    if constexpr (kSees) {
      Kept kept;
      draw(kept, visit, place);  // before dP is in flight: a draw needs registers
      issue(mma_dp, delta_weights, stats, p_v, p_do(_, _, _, s), tp);
      scale_scores();
      const bool cut = C::kHalves ? (halves >> (2 + half) & 1) == 0 : visit.head.bands > 0;
      if (cut) hide(visit, chain);
      weigh_scores(kept, rp, rds);
      store_ds(rds, s, 0);
      gemm(mma_dv, true, rp, v_do(_, _, _, s), tv);
    } else {
      release(smem.stats_empty);
    }
    if (last) release(smem.v_empty);
    ptx::fence_async_shared();
    ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::scores_stored), kConsumerThreads);

    if constexpr (kSees && kOther) {
      gemm(mma_dq, false, q_ds(_, _, _, s), q_k, tq);
    } else {
      const int seen = kSees ? half : 1 - half;
      gemm(mma_dq, false, of_half(q_ds(_, _, _, s), seen), of_half(q_k, seen), tq);
    }
    if constexpr (kSees) gemm(mma_dk, true, rds, k_q(_, _, _, s), tk);
    wait_empty(smem.dq_empty, n);
    warpgroup_wait<kSees ? 1 : 0>();  // dQ(n)
    warpgroup_fence_operand(tq);
    if (last) release(smem.k_empty);
    store_dq(tq, s, 0);
    Recorder::disturb();
    release(smem.dq_full[s]);  // the proxy fence is the writer's: it costs less there
    issue_scores(n + 1, !last);
    warpgroup_wait<0>();  // dK(n), S(n + 1)
    if constexpr (kSees) {
      warpgroup_fence_operand(tk);
      warpgroup_fence_operand(tv);
    }
    warpgroup_fence_operand(ts);
  }

  /// do_visit() of wide heads, whose sums leave registers for half of S and dP, and a sixth of dQ.
  /// The first half of S is there.
  __device__ __forceinline__ void do_wide_visit(const Visit& visit, const Chain90& chain,
                                                bool last) {
    keep_bases();
    const int s = stage(n);
    const bool cut = visit.head.bands > 0;
    uint32_t seen[1];
    if (cut) visible_bits<C>(seen, p.common.plan.orders, visit, chain, k_row());
    const auto issue_dp = [&](int h) {
      issue(mma_dp, delta_weights, queries(stats, h), p_v, queries(p_do(_, _, _, s), h), tp);
    };
    const auto make_p = [&](int h) {
      scale_scores();
      if (cut) {
        const uint32_t own[1] = {seen[0] >> kScores * h};
        hide_unseen(own, kScores, [&](int, int bit) -> float& { return ts(bit); });
      }
#pragma unroll
      for (int i = 0; i < kScores; ++i) ts(i) = ptx::exp2_approx(ts(i));
    };
    Tensor rp = Of::rounded(), rds = Of::rounded();
    issue_dp(0);
    make_p(0);
    wait_empty(smem.ds_empty, n);
    warpgroup_wait<0>();
    warpgroup_fence_operand(tp);
    round_products(rp, rds);
    issue(mma_s, lse_weights, queries(stats, 1), s_k, queries(s_q(_, _, _, s), 1), ts);
    store_ds(rds, 0, 0);
    gemm(mma_dv, true, rp, steps(v_do(_, _, _, s), 0), tv);
    gemm(mma_dk, true, rds, steps(k_q(_, _, _, s), 0), tk);
    warpgroup_wait<2>();  // the second half of S
    warpgroup_fence_operand(ts);
    make_p(1);
    warpgroup_wait<0>();
    warpgroup_fence_operand(tv);
    warpgroup_fence_operand(tk);
    issue_dp(1);
    warpgroup_wait<0>();
    warpgroup_fence_operand(tp);
    release(smem.stats_empty);
    if (last) release(smem.v_empty);
    round_products(rp, rds);
    store_ds(rds, 0, 2);
    gemm(mma_dv, true, rp, steps(v_do(_, _, _, s), 1), tv);
    gemm(mma_dk, true, rds, steps(k_q(_, _, _, s), 1), tk);
    if (pending) finish_row(n - 1);  // this visit's dQ takes its place
    ptx::fence_async_shared();
    ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::scores_stored), kConsumerThreads);

    auto others = Of::dq();  // with tq in turn
    const auto issue_dq = [&](int g, auto& acc) {
      gemm(mma_dq, false, q_ds(_, _, _, 0), columns(C::dq_column(half) + 32 * g), acc);
    };
    const auto store_columns = [&](int g, auto& acc) {
      warpgroup_fence_operand(acc);
      store_dq(acc, 0, 4 * g);
    };
    issue_dq(0, tq);
    warpgroup_wait<1>();
    warpgroup_fence_operand(tv);
    warpgroup_fence_operand(tk);
    issue_dq(1, others);
    wait_empty(smem.dq_empty, n);
    warpgroup_wait<1>();
    store_columns(0, tq);
    issue_dq(2, tq);
    warpgroup_wait<1>();
    store_columns(1, others);
    keep_bases();
    issue_scores(n + 1, !last);
    warpgroup_wait<1>();
    if (last) release(smem.k_empty);
    release(smem.ds_empty);
    store_columns(2, tq);
    Recorder::disturb();
    release(smem.dq_full[0]);
    warpgroup_wait<0>();  // half of S(n + 1)
    warpgroup_fence_operand(ts);
  }

  /// Hides from the compiler that descriptors are the same again: it would keep one for each k
  /// step.
  __device__ __forceinline__ void keep_bases() {
    const auto keep = [](auto&... descriptors) {
      (..., [](uint32_t& low) {
        asm volatile("" : "+r"(low));
      }(descriptors.data().desc_.reg32_[0]));
    };
    keep(s_k, s_q, p_v, p_do, stats, v_do, k_q, q_ds, q_k);
  }
  /// Of two halves of a visit's queries: operands of S and dP, and k steps of dV and dK.
  template <class Operand>
  __device__ __forceinline__ static auto queries(const Operand& operand, int h) {
    return logical_divide(operand, make_tile(_, _1{}))(_, make_coord(_, h), _);
  }
  template <class Steps>
  __device__ __forceinline__ static auto steps(const Steps& all, int h) {
    return logical_divide(all, make_tile(_, _, Int<C::kQueries / 16>{}))(_, _, make_coord(_, h));
  }
  /// K from column `first` on, a multiple of 32. The swizzle is one of addresses, so a descriptor
  /// may begin inside of 64 columns.
  __device__ __forceinline__ auto columns(int first) const {
    const auto block = queries(q_k, first / 64);
    return make_tensor(block.data() + first % 64 / 8, block.layout());  // in units of 16 bytes
  }
  /// From P and dP to P and dS in 16 bits.
  template <class Rounded>
  __device__ __forceinline__ void round_products(Rounded& rp, Rounded& rds) const {
    Tensor p_words = recast<uint32_t>(rp);
    Tensor ds_words = recast<uint32_t>(rds);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      ds_words(i) = pack<Element>(ts(2 * i) * tp(2 * i), ts(2 * i + 1) * tp(2 * i + 1));
    }
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) p_words(i) = pack<Element>(ts(2 * i), ts(2 * i + 1));
  }

  /// The k steps of dQ that a warpgroup's keys make.
  template <class Steps>
  __device__ __forceinline__ static auto of_half(const Steps& steps, int which) {
    return logical_divide(steps, make_tile(_, _, Int<64 / 16>{}))(_, _, make_coord(_, which));
  }

  /// S or dP. Softcap and dropout come before LSE and delta are subtracted.
  template <class Mma, class Weights, class Stats, class A, class B, class Acc>
  __device__ __forceinline__ void issue(Mma& mma, const Weights& weights, const Stats& rows,
                                        const A& a, const B& b, Acc& acc) {
    if constexpr (C::kExtras) {
      gemm(mma, false, a, b, acc);
    } else {
      gemm(mma_stats, weights, rows, mma, a, b, acc);
    }
  }
  __device__ __forceinline__ void issue_scores(uint32_t visit, bool there) {
    if (there) wait_full(smem.rows_full, visit);
    const auto rows = s_q(_, _, _, stage(visit));
    if constexpr (C::kWide) {
      issue(mma_s, lse_weights, queries(stats, 0), s_k, queries(rows, 0), ts);
    } else {
      issue(mma_s, lse_weights, stats, s_k, rows, ts);
    }
  }

  __device__ __forceinline__ void scale_scores() {
    const Softcap& softcap = p.softcap;
    if (C::kExtras && softcap.cap != 0) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        ts(i) = softcap.cap * tanh_from_log2(ts(i) * softcap.argument);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kScores; ++i) ts(i) *= p.common.scalars.scale_log2;
    }
  }
  __device__ __forceinline__ void hide(const Visit& visit, const Chain90& chain) {
    uint32_t seen[C::kTileQ / 64];
    visible_bits<C>(seen, p.common.plan.orders, visit, chain, k_row());
    hide_unseen(seen, 32, [&](int w, int bit) -> float& { return ts(32 * w + bit); });
  }
  /// Which elements dropout keeps.
  __device__ __forceinline__ void draw(Kept& kept, const Visit& visit,
                                       const DropoutPlace& place) const {
    if constexpr (C::kExtras) {
#pragma unroll
      for (uint32_t& word : kept) word = ~0u;
      const Dropout& dropout = p.common.scalars.dropout;
      if (dropout.enabled()) {
        kept_bits(kept, dropout, place.sequence, p.common.plan.first_q_head + visit.q_head,
                  visit.q_begin - place.q, place.k + tid / 32 * 16);
      }
    }
  }
  /// From scores to P and dS in 16 bits, once dP is there.
  template <class Rounded>
  __device__ __forceinline__ void weigh_scores(const Kept& kept, Rounded& rp, Rounded& rds) {
    Tensor p_words = recast<uint32_t>(rp);
    Tensor ds_words = recast<uint32_t>(rds);
    if constexpr (C::kExtras) {
      warpgroup_wait<0>();  // dP(n)
      warpgroup_fence_operand(tp);
      weigh<C>(ts, tp, smem.stats, kept, p.softcap.inverse, p.common.scalars.dropout.scale, p_words,
               ds_words);
      release(smem.stats_empty);
    } else {
      // No branch from here to dS, so that the compiler mixes exponentials and arithmetic.
#pragma unroll
      for (int i = 0; i < kScores; ++i) ts(i) = ptx::exp2_approx(ts(i));
      warpgroup_wait<0>();  // dP(n)
      warpgroup_fence_operand(tp);
      release(smem.stats_empty);
      round_products(rp, rds);
    }
  }

  /// dS^T to stage `s`, from its 16 queries number `first` on. Of two stages: who passed the last
  /// barrier has finished with the dS before.
  template <class Rounded>
  __device__ __forceinline__ void store_ds(const Rounded& rds, int s, int first) {
    Tensor words = recast<const uint32_t>(rds);
    // Where this lane's row starts; 16-byte piece i of the row lies at `^ 16 * i`, blocks of 64
    // columns lie behind each other (the layout that LayoutDs describes).
    const uint32_t row = ptx::smem_address(smem.ds) + (tid / 32 * 16 + lane() % 16) * 128 +
                         ((lane() / 16 ^ lane() % 8) * 16);
#pragma unroll
    for (int i = 0; i < size(words) / 4; ++i) {
      const int block = first + i;
      const uint32_t to = row + s * C::kDsBytes + block / 4 * (C::kTileKv * 128);
      ptx::store_matrices(to ^ (block % 4 * 32), words(4 * i), words(4 * i + 1), words(4 * i + 2),
                          words(4 * i + 3));
    }
  }
  /// Parts of dQ, from number `first` on, to stage `s`.
  template <class Acc>
  __device__ __forceinline__ void store_dq(const Acc& acc, int s, int first) {
    float4* dq = reinterpret_cast<float4*>(smem.dq[s][half]) + 128 * first + tid % 128;
#pragma unroll
    for (int i = 0; i < size(acc) / 4; ++i) {
      dq[128 * i] = make_float4(acc(4 * i), acc(4 * i + 1), acc(4 * i + 2), acc(4 * i + 3));
    }
  }

  /// Scales, rounds and writes dQ of a visit, once its sum is complete in its buffer.
  __device__ __forceinline__ void finish_row(uint32_t visit_number) {
    const Visit& visit = smem.visit[visit_number % C::kVisitRing];
    wait_full(smem.sum_full, visit_number);
    const auto* dq =
        reinterpret_cast<const float4*>(smem.dq[visit_number % C::kProductStages][half]) +
        tid % 128;
    const int row = C::dq_row(half);
    store_dq_rows<C>(
        half, [&](int i) { return dq[128 * i]; }, p.common.scalars.scale,
        p.common.dq.template at<Element>(visit.batch, visit.q_at + row, visit.q_head),
        p.common.dq.row, tid % 128 / 32 * 16 + lane() / 4, visit.head.rows - row,
        p.common.sizes.head_dim);
  }

  /// dK and dV join those of other chains on the tile; the last one writes them.
  __device__ __forceinline__ void end_chain(const Chain90& chain) {
    if (chain.addends > 1) share_key_tile<Element>(p, chain, half, k_row(), tk, tv);
    if (chain.addend + 1 != chain.addends) return;
    const auto store = [&](const TensorRef& tensor, const auto& acc, float scale, int columns) {
      Element* base = tensor.template at<Element>(chain.batch, chain.kv_at, chain.kv_head);
      store_rows<Element, size(decltype(acc){}) / 4>(
          [&](int i) { return result_of(acc(i), scale); }, base, tensor.row, k_row(), chain.kv_rows,
          columns);
    };
    store(p.common.dk, tk, p.common.scalars.scale, p.common.sizes.head_dim);
    store(p.common.dv, tv, C::kExtras ? p.common.scalars.dropout.scale : 1.0f,
          p.common.sizes.head_dim_v);
  }
};

}  // namespace verbatim::cuda::sm90::bwd
