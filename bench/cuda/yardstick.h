// What the card itself can do in the same run: a large bf16 matrix product through cuBLAS.
#pragma once

#include <cuda_runtime_api.h>

namespace verbatim::bench {

/// C = A B of n x n bf16 matrices (column-major), f32 accumulation. cuBLAS is opened at run time,
/// by its usual name or where PyTorch's wheels keep it; without it available() is false.
class Matmul {
 public:
  Matmul();
  bool available() const { return gemm_ != nullptr; }
  void run(const void* a, const void* b, void* c, int n, cudaStream_t stream) const;

 private:
  void* handle_ = nullptr;  // cublasHandle_t
  void* gemm_ = nullptr;    // cublasGemmEx
  void* set_stream_ = nullptr;
};

}  // namespace verbatim::bench
