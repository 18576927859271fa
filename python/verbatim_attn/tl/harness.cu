// Runs the attention forward of another file once, on files of raw tensors in this folder: what
// `python -m verbatim_attn.tl generate --run` starts in a process of its own.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" void attention_forward(const void* q, const void* k, const void* v, void* o, float* lse,
                                  int batch, int q_heads, int kv_heads, int q_len, int kv_len,
                                  float scale, cudaStream_t stream);

namespace {

constexpr int kNoGpu = 77;

void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

void* on_device(const char* file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  void* data = nullptr;
  must(cudaMalloc(&data, bytes.size()), "memory");
  must(cudaMemcpy(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "copy");
  return data;
}

/// Full of NaN, in every floating type.
void* unwritten(size_t bytes) {
  void* data = nullptr;
  must(cudaMalloc(&data, bytes), "memory");
  must(cudaMemset(data, 0xff, bytes), "fill");
  return data;
}

void to_file(const char* file, const void* data, size_t bytes) {
  std::vector<char> host(bytes);
  must(cudaMemcpy(host.data(), data, bytes, cudaMemcpyDeviceToHost), "copy");
  std::ofstream(file, std::ios::binary).write(host.data(), static_cast<long>(bytes));
}

}  // namespace

/// harness BATCH Q_HEADS KV_HEADS Q_LEN KV_LEN HEAD_DIM_V SCALE
int main(int, char** words) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return kNoGpu;
  int sizes[6];
  for (int i = 0; i < 6; ++i) sizes[i] = std::atoi(words[i + 1]);
  const auto [batch, q_heads, kv_heads, q_len, kv_len, head_dim_v] = sizes;
  const size_t rows = size_t(batch) * q_heads * q_len;
  const size_t o_bytes = rows * head_dim_v * 2, lse_bytes = rows * sizeof(float);
  const void *q = on_device("q"), *k = on_device("k"), *v = on_device("v");
  void* o = unwritten(o_bytes);
  void* lse = unwritten(lse_bytes);
  attention_forward(q, k, v, o, static_cast<float*>(lse), batch, q_heads, kv_heads, q_len, kv_len,
                    std::strtof(words[7], nullptr), nullptr);
  must(cudaGetLastError(), "launch");
  must(cudaDeviceSynchronize(), "run");
  to_file("o", o, o_bytes);
  to_file("lse", lse, lse_bytes);
}
