#include "bench/cuda/matmul.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <cstdlib>

#include "verbatim/error.h"

namespace verbatim::bench {

struct Matmul::Library {
  cublasHandle_t handle;
  decltype(&cublasDestroy_v2) destroy;
  // Not decltype(&cublasGemmEx): the header has a C++ overload of that name.
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                         const void*, const void*, cudaDataType, int, const void*, cudaDataType,
                         int, const void*, void*, cudaDataType, int, cublasComputeType_t,
                         cublasGemmAlgo_t);
};

Matmul::Matmul(std::unique_ptr<Library> library) : library_(std::move(library)) {}

Matmul::~Matmul() { library_->destroy(library_->handle); }

std::unique_ptr<Matmul> Matmul::open() {
  const char* const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so",
                               std::getenv("VERBATIM_CUBLAS")};
  void* file = nullptr;
  for (const char* name : names) {
    if (file == nullptr && name != nullptr) file = dlopen(name, RTLD_NOW);
  }
  if (file == nullptr) return nullptr;
  auto library = std::make_unique<Library>();
  const auto find = [file](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
    return function != nullptr;
  };
  decltype(&cublasCreate_v2) create = nullptr;
  if (!find("cublasCreate_v2", create) || !find("cublasDestroy_v2", library->destroy) ||
      !find("cublasGemmEx", library->gemm) || create(&library->handle) != CUBLAS_STATUS_SUCCESS) {
    return nullptr;
  }
  return std::unique_ptr<Matmul>(new Matmul(std::move(library)));
}

void Matmul::run(const void* a, const void* b, void* c, int n) const {
  const float one = 1, zero = 0;
  const cublasStatus_t status = library_->gemm(
      library_->handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, CUDA_R_16BF, n, b, CUDA_R_16BF,
      n, &zero, c, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ErrorCode::device, "bench.matmul",
                "cublasGemmEx failed with status " + std::to_string(status));
  }
}

}  // namespace verbatim::bench
