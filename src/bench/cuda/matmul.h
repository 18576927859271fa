// A large bf16 matrix product through cuBLAS: what the card itself can do in the same run.
#pragma once

#include <memory>

namespace verbatim::bench {

/// C = A B of n x n bf16 matrices (column-major), f32 accumulation, on the default stream.
class Matmul {
 public:
  /// Null when no cuBLAS is found: by its usual name, or at the path in $VERBATIM_CUBLAS.
  static std::unique_ptr<Matmul> open();
  ~Matmul();
  void run(const void* a, const void* b, void* c, int n) const;

 private:
  struct Library;
  explicit Matmul(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

}  // namespace verbatim::bench
