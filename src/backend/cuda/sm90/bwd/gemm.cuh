// Asynchronous products of the sm90 backward's consumers.
#pragma once

#include <cute/tensor.hpp>

namespace verbatim::cuda::sm90_bwd {

using namespace cute;

/// C (+)= A B over the K blocks of the operands, asynchronously, as one wgmma group.
template <bool kClear, class Mma, class A, class B, class Acc>
__device__ __forceinline__ void gemm(Mma& mma, const A& a, const B& b, Acc& c) {
  warpgroup_fence_operand(c);
  warpgroup_arrive();
  mma.accumulate_ = kClear ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One;
  CUTE_UNROLL
  for (int k = 0; k < size<2>(a); ++k) {
    cute::gemm(mma, a(_, _, k), b(_, _, k), c);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  warpgroup_commit_batch();
}

/// C = A0 B0 + A B, with one K block of A0 and B0.
template <class Mma0, class A0, class B0, class Mma, class A, class B, class Acc>
__device__ __forceinline__ void gemm(Mma0& mma0, const A0& a0, const B0& b0, Mma& mma, const A& a,
                                     const B& b, Acc& c) {
  warpgroup_fence_operand(c);
  warpgroup_arrive();
  mma0.accumulate_ = GMMA::ScaleOut::Zero;
  cute::gemm(mma0, a0(_, _, 0), b0(_, _, 0), c);
  mma.accumulate_ = GMMA::ScaleOut::One;
  CUTE_UNROLL
  for (int k = 0; k < size<2>(a); ++k) cute::gemm(mma, a(_, _, k), b(_, _, k), c);
  warpgroup_commit_batch();
}

}  // namespace verbatim::cuda::sm90_bwd
