// Forward attention for Hopper: O = softmax(S) V and LSE, visit by visit as the plan says.
// Online softmax after Milakov and Gimelshein (2018); the overlap of softmax and GEMMs, inside a
// warpgroup and between warpgroups, after FlashAttention-3 (Shah et al., 2024, section 3).
//
//   warp                      does                                    registers
//   0                         decoder: takes tickets, reads the plan  56 or 32
//   1                         loader: TMA of Q and K tiles            56 or 32
//   2                         loader: TMA of V tiles                  56 or 32
//   3                         leaves at once
//   4 .. 3 + 4 * consumers    64 query rows each warpgroup            224 or 160
//
//   decoder --visit_full--> loaders --q_full, k_full, v_full (TMA bytes)--> consumers
//      ^                       ^------q_empty, k_empty, v_empty----------------|
//      |---------------------------------visit_empty----------------(and from the loaders)
//
// All rings are in order, so a consumer that sees k_full of a visit may read its record. One turn
// token walks round the consumers; whoever holds it issues Q K^T of this visit and P V of the
// previous one, passes it on, and does its softmax while the others' GEMMs run.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <cute/tensor.hpp>

#include "backend/cuda/sm90/fragment.cuh"
#include "backend/cuda/sm90/fwd/config.h"
#include "backend/cuda/sm90/fwd/decode.cuh"
#include "backend/cuda/sm90/fwd/mask.cuh"
#include "backend/cuda/sm90/fwd/softmax.cuh"
#include "backend/cuda/sm90/pipeline.cuh"

namespace verbatim::cuda::sm90 {

/// Fetches head_dim / 64 boxes of (64, rows), one behind the other; completes on `full`.
template <class Config, class Element>
__device__ void fetch(const CUtensorMap& map, uint64_t& full, cute::TMA::CacheHintSm90 hint,
                      Element* to, int32_t rows, int32_t begin, int32_t head, int32_t batch) {
  Mbarrier::arrive_and_expect_tx(&full, rows * Config::head_dim * sizeof(Element));
#pragma unroll
  for (int part = 0; part < Config::head_dim / kSwizzleSpan; ++part) {
    cute::SM90_TMA_LOAD_4D::copy(&map, &full, static_cast<uint64_t>(hint),
                                 to + part * rows * kSwizzleSpan, part * kSwizzleSpan, begin, head,
                                 batch);
  }
}

/// Calls f(flags, place, k_at) for every visit, and for the stop. One lane of a loader warp.
template <class Tile, class Element, class F>
__device__ void for_each_visit(SharedStorage<Tile, Element>& smem, F&& f) {
  using Config = FwdConfig<Tile>;
  uint32_t flags = 0;
  for (Ring<Config::visits> visits; !(flags & Visit<Config>::stop); visits.advance()) {
    const int slot = visits.slot();
    wait(smem.visit_full[slot], visits.phase());
    flags = smem.visit[slot].flags[0];
    const Place place = smem.visit[slot].place;
    const int32_t k_at = smem.visit[slot].k_at;
    arrive(smem.visit_empty[slot]);
    f(flags, place, k_at);
  }
}

/// Loader of Q and K. K and V have a warp each: a K slot is free half a visit before a V slot.
template <class Tile, class Element>
__device__ void load_keys(const FwdArgs& args, SharedStorage<Tile, Element>& smem) {
  using Config = FwdConfig<Tile>;
  using Record = Visit<Config>;
  using Hint = cute::TMA::CacheHintSm90;
  Ring<Config::q_stages> queries;
  Ring<Config::k_stages> keys;
  for_each_visit(smem, [&](uint32_t flags, const Place& place, int32_t k_at) {
    if ((flags & Record::first) && !(flags & Record::stop)) {
      const int slot = queries.slot();
      wait(smem.q_empty[slot], queries.free());
      fetch<Config>(args.q_map, smem.q_full[slot], Hint::EVICT_FIRST, smem.q[slot], Config::tile_q,
                    place.q_at, place.q_head, place.batch);
      queries.advance();
    }
    const int slot = keys.slot();
    wait(smem.k_empty[slot], keys.free());
    if (flags & (Record::empty | Record::stop)) {
      arrive(smem.k_full[slot]);
    } else {
      fetch<Config>(args.k_map, smem.k_full[slot], Hint::EVICT_LAST, smem.k[slot], Config::tile_kv,
                    k_at, place.kv_head, place.batch);
    }
    keys.advance();
  });
}

/// Loader of V.
template <class Tile, class Element>
__device__ void load_values(const FwdArgs& args, SharedStorage<Tile, Element>& smem) {
  using Config = FwdConfig<Tile>;
  using Record = Visit<Config>;
  Ring<Config::v_stages> values;
  for_each_visit(smem, [&](uint32_t flags, const Place& place, int32_t k_at) {
    if (flags & Record::stop) return;
    const int slot = values.slot();
    wait(smem.v_empty[slot], values.free());
    if (flags & Record::empty) {
      arrive(smem.v_full[slot]);
    } else {
      fetch<Config>(args.v_map, smem.v_full[slot], cute::TMA::CacheHintSm90::EVICT_LAST,
                    smem.v[slot], Config::tile_kv, k_at, place.kv_head, place.batch);
    }
    values.advance();
  });
}

/// Issues C = A B, or C += A B with `add`, as one wgmma group. The caller waits.
template <class Mma, class A, class B, class C>
__device__ void issue(Mma& mma, bool add, const A& a, const B& b, C& c) {
  cute::warpgroup_fence_operand(c);
  cute::warpgroup_arrive();
  mma.accumulate_ = add ? cute::GMMA::ScaleOut::One : cute::GMMA::ScaleOut::Zero;
#pragma unroll
  for (int k = 0; k < cute::size<2>(a); ++k) {
    cute::gemm(mma, a(cute::_, cute::_, k), b(cute::_, cute::_, k), c);
    mma.accumulate_ = cute::GMMA::ScaleOut::One;
  }
  cute::warpgroup_commit_batch();
}

/// The GEMMs, fragments and shared-memory layouts of one warpgroup.
template <class Tile, class Element>
struct FwdMma {
  using Config = FwdConfig<Tile>;
  using Rows = cute::Int<kRows>;
  using Dim = cute::Int<Config::head_dim>;
  using Keys = cute::Int<Config::tile_kv>;
  using KStages = cute::Int<Config::k_stages>;
  using VStages = cute::Int<Config::v_stages>;
  using KMajor = cute::GMMA::Layout_K_SW128_Atom<Element>;
  using MnMajor = cute::GMMA::Layout_MN_SW128_Atom<Element>;

  using QLayout = decltype(cute::tile_to_shape(
      KMajor{}, cute::Shape<cute::Int<Config::tile_q>, Dim, cute::Int<Config::q_stages>>{}));
  using KLayout = decltype(cute::tile_to_shape(KMajor{}, cute::Shape<Keys, Dim, KStages>{}));
  // V as (dim, key): the same bytes as K's layout, read across.
  using VLayout = decltype(cute::tile_to_shape(MnMajor{}, cute::Shape<Dim, Keys, VStages>{},
                                               cute::Step<cute::_2, cute::_1, cute::_3>{}));

  using Scores = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float, cute::Shape<Rows, Keys, Dim>>()));
  using Output = decltype(cute::make_tiled_mma(
      cute::GMMA::rs_op_selector<Element, Element, float, cute::Shape<Rows, Dim, Keys>,
                                 cute::GMMA::Major::K, cute::GMMA::Major::MN>()));
};

/// Writes the LSE of a chain's rows `row` and `row` + 8; returns in `factor` what O is still to be
/// multiplied with.
template <class Config>
__device__ void finish(const FwdArgs& args, const Visit<Config>& visit,
                       const OnlineSoftmax& softmax, int32_t row, float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = softmax.row_sum(r);
    factor[r] = sum == 0 ? 0 : __fdividef(args.dropout.scale, sum);
    if (threadIdx.x % 4 == 0 && row + 8 * r < visit.place.q_rows) {
      constexpr float kLn2 = 0.693147180559945309f;
      const int64_t q = visit.place.q_at + row + 8 * r;
      args.lse[args.sizes.row_index(visit.place.batch, visit.place.q_head, q)] =
          sum == 0 ? -INFINITY : kLn2 * (softmax.base[r] + log2f(sum));
    }
  }
}

/// Writes a warp's 16 rows of O, of which this lane has `row` and `row` + 8; a row without a key is
/// 0, rows behind the tile's are left alone. They go through the Q tile of their chain, which
/// nobody reads any more: its slot is free once the copy that this begins has been read.
template <class Config, class Element, class Acc>
__device__ void store(const FwdArgs& args, const Place& place, Element* q_tile, Acc& o,
                      const float (&factor)[2], int32_t row) {
  constexpr int kChunk = 8;  // elements that the swizzle moves as one
  constexpr int kChunks = kSwizzleSpan / kChunk;
  const int lane = threadIdx.x % 32;
  const int32_t first = row - lane / 4;
  const auto chunk_at = [&](int32_t r, int chunk) {  // of row `first` + r
    return q_tile + chunk / kChunks * Config::tile_q * kSwizzleSpan + (first + r) * kSwizzleSpan +
           (chunk % kChunks ^ r % kChunks) * kChunk;
  };
  // Each instruction stores 16 rows of 2 chunks; a lane gives where a row of a chunk is.
#pragma unroll
  for (int chunk = 0; chunk < Config::head_dim / kChunk; chunk += 2) {
    const auto word = [&](int i) {
      const float f = factor[i % 2];
      const int at = 4 * chunk + 2 * i;
      return pack<Element>(f == 0 ? 0 : o(at) * f, f == 0 ? 0 : o(at + 1) * f);
    };
    ptx::store_matrices(ptx::smem_address(chunk_at(lane % 16, chunk + lane / 16)), word(0), word(1),
                        word(2), word(3));
  }
  cute::tma_store_fence();
  __syncwarp();
  // A vote, for ptxas has to know that all lanes agree.
  if (__all_sync(~0u, first + kWarpRows <= place.q_rows)) {
    if (lane == 0) {
#pragma unroll
      for (int part = 0; part < Config::head_dim / kSwizzleSpan; ++part) {
        cute::SM90_TMA_STORE_4D::copy(
            &args.o_map, q_tile + (part * Config::tile_q + first) * kSwizzleSpan,
            part * kSwizzleSpan, place.q_at + first, place.q_head, place.batch);
      }
      cute::tma_store_arrive();
    }
    return;
  }
  constexpr int kPerRow = Config::head_dim / kChunk;
  Element* to = args.o.at<Element>(place.batch, place.q_at + first, place.q_head);
#pragma unroll
  for (int i = lane; i < kWarpRows * kPerRow; i += 32) {
    const int r = i / kPerRow, chunk = i % kPerRow;
    if (first + r < place.q_rows) {
      *reinterpret_cast<uint4*>(to + r * args.o.row + chunk * kChunk) =
          *reinterpret_cast<const uint4*>(chunk_at(r, chunk));
    }
  }
}

/// A consumer warpgroup: rows 64 * group .. of every query tile.
template <class Tile, class Element, bool kExtras>
__device__ void consume(const FwdArgs& args, SharedStorage<Tile, Element>& smem, int group) {
  using namespace cute;
  using Config = FwdConfig<Tile>;
  using Record = Visit<Config>;
  using Gemms = FwdMma<Tile, Element>;
  constexpr int kScores = Config::tile_kv / 2;                 // per thread
  constexpr uint32_t kBegins = Record::first | Record::fresh;  // O has nothing of the chain so far
  const int thread = threadIdx.x % kWarpgroup, lane = threadIdx.x % 32, t = lane % 4;
  const int32_t row = kRows * group + thread / 32 * kWarpRows + lane / 4;

  typename Gemms::Scores mma_s;
  typename Gemms::Output mma_o;
  auto all_q = make_tensor(make_smem_ptr(smem.q[0]), typename Gemms::QLayout{});
  auto q =
      local_tile(all_q, make_shape(Int<kRows>{}, typename Gemms::Dim{}, Int<Config::q_stages>{}),
                 make_coord(group, 0, 0));                                    // (64,D,QSTAGE)
  auto k = make_tensor(make_smem_ptr(smem.k[0]), typename Gemms::KLayout{});  // (N,D,STAGE)
  auto v = make_tensor(make_smem_ptr(smem.v[0]), typename Gemms::VLayout{});  // (D,N,STAGE)
  auto frag_q = mma_s.get_slice(0).partition_fragment_A(q);                   // descriptors
  auto frag_k = mma_s.get_slice(0).partition_fragment_B(k);
  auto frag_v = mma_o.get_slice(0).partition_fragment_B(v);
  auto o = partition_fragment_C(mma_o, make_shape(Int<kRows>{}, typename Gemms::Dim{}));
  auto p = make_tensor<Element>(
      partition_shape_A(mma_o, make_shape(Int<kRows>{}, typename Gemms::Keys{})));

  uint32_t n = 0;                  // visits so far: a visit has one tile of K and one of V
  Ring<Config::q_stages> queries;  // of visit n
  Ring<Config::k_stages> keys;     // of visit n
  Ring<Config::v_stages> values;   // of visit n - 1
  OnlineSoftmax softmax;
  softmax.reset();
  clear(o);

  const auto record = [&](uint32_t i) -> const Record& { return smem.visit[i % Config::visits]; };
  const auto release = [&](uint64_t& empty) {
    __syncwarp();
    if (lane == 0) arrive(empty);
  };
  const auto take_turn = [&] {
    cutlass::arch::NamedBarrier::sync(2 * kWarpgroup, static_cast<uint32_t>(Barrier::turn) + group);
  };
  const auto pass_turn = [&] {
    const int next = group + 1 == Config::consumers ? 0 : group + 1;
    cutlass::arch::NamedBarrier::arrive(2 * kWarpgroup,
                                        static_cast<uint32_t>(Barrier::turn) + next);
  };
  // Flags of visit i, the next whose K is waited for. Its record comes before its K.
  const auto look_at = [&](uint32_t i) {
    wait(smem.k_full[keys.slot()], keys.phase());
    return record(i).flags[group];
  };
  uint32_t flags = look_at(0);  // of visit n
  const auto issue_scores = [&](auto& s) {
    issue(mma_s, false, frag_q(_, _, _, queries.slot()), frag_k(_, _, _, keys.slot()), s);
  };
  // 0 * NaN is NaN: V rows that no query of the tile sees are cleared before they are multiplied.
  // Every warpgroup clears for itself; writing zeros twice is harmless.
  const auto clear_tail = [&](Element* tile, int32_t used) {
    constexpr int kLine = kSwizzleSpan * 2;
#pragma unroll 1
    for (int part = 0; part < Config::head_dim / kSwizzleSpan; ++part) {
      auto* lines = reinterpret_cast<uint8_t*>(tile) + part * Config::tile_kv * kLine;
#pragma unroll 1
      for (int at = used * kLine + thread * 16; at < Config::tile_kv * kLine; at += kWarpgroup * 16)
        *reinterpret_cast<uint4*>(lines + at) = make_uint4(0, 0, 0, 0);
    }
    cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(kWarpgroup, static_cast<uint32_t>(Barrier::tail) + group);
  };
  // Of visit n - 1, whose flags are `before`.
  const auto issue_output = [&](uint32_t before) {
    wait(smem.v_full[values.slot()], values.phase());
    if (before & Record::tail) clear_tail(smem.v[values.slot()], record(n - 1).k_used);
    issue(mma_o, !(before & kBegins), p, frag_v(_, _, _, values.slot()), o);
  };
  const auto release_values = [&] {
    release(smem.v_empty[values.slot()]);
    values.advance();
  };
  const auto release_keys = [&] {
    release(smem.k_empty[keys.slot()]);
    keys.advance();
  };
  // The chain of visit n - 1 is over, of whose O `factor` is still to be multiplied with.
  const auto store_output = [&](const float(&factor)[2]) {
    store<Config, Element>(args, record(n - 1).place, smem.q[queries.before()], o, factor, row);
  };
  const auto release_queries = [&] {
    if (lane == 0) cute::tma_store_wait<0>();
    release(smem.q_empty[queries.before()]);
  };
  // Caps and hides the scores of visit n, whose flags are `now`.
  const auto hide_scores = [&](auto& s, uint32_t now) {
    if constexpr (kExtras) {
      if (args.softcap_log2 != 0) {
#pragma unroll
        for (int i = 0; i < kScores; ++i) s(i) = tanh_from_log2(s(i) * args.softcap_log2);
      }
    }
    if (now & Record::masked) hide<Config>(s, record(n), row, t);
  };
  // Where two warpgroups take turns, S is there long before P V is over: time to subtract the base.
  constexpr bool kEarly = Config::consumers == 2;
  float plus[2] = {0, 0};  // what has been subtracted from the scores of visit n
  const auto diminish = [&](auto& s) {
    if constexpr (kEarly) {
      plus[0] = softmax.finite_base(0);
      plus[1] = softmax.finite_base(1);
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        s(i) = fmaf(s(i), args.scale_log2, -plus[i / 2 % 2]);
      }
      warpgroup_fence_operand(s);
    }
  };
  // From the scores of visit n to P. What O has so far keeps in step with the softmax's base.
  const auto weigh = [&](auto& s, auto plain) {
    constexpr bool kPlain = plain;
    uint32_t kept[2] = {~0u, ~0u};
    if constexpr (kExtras) {
      if (args.dropout.enabled()) {
        const Record& visit = record(n);
        const Place& place = visit.place;
        const DropoutOrigin origin = args.plan.dropout_origin(place.head, place.q_tile);
        draw_kept<Config::tile_kv>(kept, args.dropout, origin.sequence,
                                   args.plan.first_q_head + place.q_head,
                                   place.q_begin - origin.q + row, visit.k_begin - origin.k, t);
      }
    }
    auto pairs = recast<uint32_t>(p);
    float weights[kScores], added[2] = {0, 0};
    const float scale = kEarly ? 1.0f : args.scale_log2;
    const auto rebase = [&] {
      float rescale[2];
      softmax.template rebase<kScores>(s, scale, plus, added, rescale);
      if (!kPlain && (flags & Record::first)) return;  // what O holds is of the chain before
#pragma unroll
      for (int i = 0; i < size(o); ++i) o(i) *= rescale[i / 2 % 2];
    };
    const auto exponentiate = [&](auto&& exponent) {
      OnlineSoftmax::exponentiate(weights, exponent, added);
      round_to<Element, kExtras>(pairs, weights, kept);
    };
    const auto exponentiate_from_base = [&] {
      const float rest[2] = {plus[0] - softmax.finite_base(0), plus[1] - softmax.finite_base(1)};
      exponentiate([&](int i) { return fmaf(s(i), scale, rest[i / 2 % 2]); });
    };
    if constexpr (kPlain && kEarly) {
      exponentiate(s);
    } else {
      if (!kPlain && !softmax.based) rebase();
      exponentiate_from_base();
    }
    if (!OnlineSoftmax::fits(added) || (kPlain && !softmax.based)) {
      rebase();
      exponentiate_from_base();
    }
    softmax.sum[0] += added[0];
    softmax.sum[1] += added[1];
  };
  const auto make_scores = [&] {
    return partition_fragment_C(mma_s, make_shape(Int<kRows>{}, typename Gemms::Keys{}));
  };
  // Visit n is the first of its chain: that of visit n - 1 is complete but for P V.
  const auto begin_chain = [&](float(&factor)[2]) {
    if (n > 0) finish(args, record(n - 1), softmax, row, factor);
    softmax.reset();
  };
  uint32_t done = Record::hidden;  // flags of visit n - 1; unless hidden, its P waits for P V
  const auto advance = [&](auto plain) {
    if (plain || n > 0) release(smem.visit_empty[(n - 1) % Config::visits]);
    done = flags;
    flags = look_at(++n);
  };
  // The scores of visit n and the output of visit n - 1. A plain visit is neither masked nor the
  // first of its chain: its code has no jumps over rare cases, each of which waits for
  // instructions.
  const auto step = [&](auto plain) {
    constexpr bool kPlain = plain;
    const uint32_t now = kPlain ? 0 : flags;
    const bool first = now & Record::first, ends = first && n > 0;
    if (ends) queries.advance();
    if (first) wait(smem.q_full[queries.slot()], queries.phase());
    auto s = make_scores();
    take_turn();
    issue_scores(s);
    // A vote, for ptxas has to know that all lanes agree.
    const bool weighed = kPlain || __all_sync(~0u, !(done & Record::hidden));
    if (weighed) {
      issue_output(kPlain ? done & kBegins : done);
    } else {
      warpgroup_commit_batch();  // of nothing: the scores are the last batch but one
    }
    pass_turn();
    float factor[2] = {};  // of O, once its chain is over
    if (first) begin_chain(factor);
    warpgroup_wait<1>();
    warpgroup_fence_operand(s);
    release_keys();
    hide_scores(s, now);
    diminish(s);
    warpgroup_wait<0>();
    warpgroup_fence_operand(o);
    if (weighed) release_values();
    weigh(s, plain);
    if (ends) {
      store_output(factor);
      release_queries();
    }
    advance(plain);
  };
  // The output of visit n - 1 alone: this warpgroup sees nothing of visit n, or there is none.
  const auto pass_by = [&] {
    const bool stops = flags & Record::stop, first = flags & Record::first;
    const bool ends = first && n > 0, weighed = !(done & Record::hidden);
    if (ends) queries.advance();
    if (first && !stops) wait(smem.q_full[queries.slot()], queries.phase());
    take_turn();
    if (weighed) issue_output(done);
    pass_turn();
    float factor[2] = {};  // of O, once its chain is over
    if (first) begin_chain(factor);
    release_keys();
    warpgroup_wait<0>();
    warpgroup_fence_operand(o);
    if (weighed) release_values();
    if (ends) {
      store_output(factor);
      release_queries();
    }
    if (stops) return;
    wait(smem.v_full[values.slot()], values.phase());
    release_values();
    advance(std::false_type{});
    if (done & kBegins) flags |= Record::fresh;
  };
  if (group + 1 == Config::consumers) pass_turn();
  while (true) {
    if ((flags | (done & (Record::hidden | Record::tail))) == 0) {
      step(std::true_type{});
    } else if (!(flags & Record::hidden)) {
      step(std::false_type{});
    } else {
      const bool stops = flags & Record::stop;
      pass_by();
      if (stops) break;
    }
  }
  if (group == 0) take_turn();               // the token that is still on its way
  if (lane == 0) ptx::bulk_wait_complete();  // O is written, not only read from here
}

/// One block per multiprocessor, FwdConfig<Tile>::threads threads.
template <class Tile, class Element, bool kExtras>
__global__ void __launch_bounds__(FwdConfig<Tile>::threads, 1)
    forward_kernel(const __grid_constant__ FwdArgs args) {
  using Config = FwdConfig<Tile>;
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& smem = *reinterpret_cast<SharedStorage<Tile, Element>*>(raw);
  if (threadIdx.x == 0) {
    init(smem.visit_full, 1);
    init(smem.visit_empty, Config::consumer_warps + 2);  // and the loaders
    init(smem.q_full, 1);
    init(smem.q_empty, Config::consumer_warps);
    init(smem.k_full, 1);
    init(smem.k_empty, Config::consumer_warps);
    init(smem.v_full, 1);
    init(smem.v_empty, Config::consumer_warps);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::producer_registers>();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const bool leader = threadIdx.x % 32 == 0;
    if (warp == 0) decode<Tile, Element>(args, smem);
    if (warp == 1 && leader) load_keys<Tile, Element>(args, smem);
    if (warp == 2 && leader) load_values<Tile, Element>(args, smem);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::consumer_registers>();
    consume<Tile, Element, kExtras>(args, smem, warpgroup - 1);
  }
}

}  // namespace verbatim::cuda::sm90
