// Asynchronous products of the sm90 kernels: each a wgmma group, for which the caller waits.
#pragma once

#include <cute/tensor.hpp>

namespace verbatim::cuda::sm90 {

using namespace cute;

/// C = A B, or C += A B with `add`, over the K blocks of the operands: part of a group.
template <class Mma, class A, class B, class Acc>
__device__ __forceinline__ void multiply(Mma& mma, bool add, const A& a, const B& b, Acc& c) {
  mma.accumulate_ = add ? GMMA::ScaleOut::One : GMMA::ScaleOut::Zero;
#pragma unroll
  for (int k = 0; k < size<2>(a); ++k) {
    cute::gemm(mma, a(_, _, k), b(_, _, k), c);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
}

/// C = A B, or C += A B with `add`.
template <class Mma, class A, class B, class Acc>
__device__ __forceinline__ void gemm(Mma& mma, bool add, const A& a, const B& b, Acc& c) {
  warpgroup_fence_operand(c);
  warpgroup_arrive();
  multiply(mma, add, a, b, c);
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
#pragma unroll
  for (int k = 0; k < size<2>(a); ++k) cute::gemm(mma, a(_, _, k), b(_, _, k), c);
  warpgroup_commit_batch();
}

}  // namespace verbatim::cuda::sm90
