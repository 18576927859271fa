// Blocks that lists name, by a library on a GPU: no plan, no hand-offs, a launch.
#include "backend/selected.h"

#include <utility>
#include <vector>

#include "backend/cuda/arguments.h"
#include "backend/cuda/library.h"
#include "backend/cuda/report.h"
#include "backend/cuda/staging.h"

namespace verbatim::cuda {
namespace {

class CudaSelected final : public SelectedKernel {
 public:
  CudaSelected(int index, const std::string& path)
      : device_(device(index)),
        loaded_(load_selected(path)),
        index_(loaded_.library->index),
        arithmetic_(loaded_.library->arithmetic) {}

  void check(const Problem& problem, const Mask& mask) const override {
    const std::string only = loaded_.library->mask;
    if (mask.name() != only)
      throw Error(ErrorCode::unsupported, "cuda.kernel", "the program is for another mask",
                  {"mask", mask.name(), only, only});
    check_kernel(loaded_.kernel, device_, problem, loaded_.library->tile);
    if (by_query()) check_group(problem, loaded_.library->tile.q);
  }
  TileShape tile() const override {
    const TileShape tile = loaded_.library->tile;
    return by_query() ? TileShape{1, tile.kv} : tile;
  }
  const std::string& index() const override { return index_; }
  const std::string& arithmetic() const override { return arithmetic_; }
  int64_t workspace_bytes(const TileMap& tiles, const SelectedBlocks& blocks,
                          const RunOptions&) const override {
    return words(tiles, blocks) * int64_t{sizeof(int32_t)};
  }

  void forward(const Problem& problem, const TileMap& tiles, const ForwardTensors& tensors,
               const SelectedBlocks& blocks, const RunOptions& run) const override {
    check_limits({}, problem, {tiles.q_tiles(), tiles.kv_tiles(), 0});
    const auto stream = static_cast<cudaStream_t>(run.stream);
    check_report(*device_.report);
    const DeviceGuard guard(device_.index);
    if (graph_of(stream))
      throw Error(ErrorCode::unsupported, "cuda", "a graph would replay lists of the host",
                  {"stream", "one that is being captured", "one that is not", ""});
    Staging staging(device_, stream);
    SelectedParams params{};
    params.sizes = sizes_of(problem);
    params.scalars = scalars_of(problem, run);
    params.q = ref("q", staging.input(tensors.q));
    params.k = ref("k", staging.input(tensors.k));
    params.v = ref("v", staging.input(tensors.v));
    params.o = ref("o", staging.output(tensors.o));
    params.lse = {staging.output(tensors.lse).data, problem.q_heads * problem.q_len, 1,
                  problem.q_len};
    params.q_rows = static_cast<int32_t>(problem.q_len);
    params.q_heads = static_cast<int32_t>(problem.q_heads);
    params.by_query = by_query();
    if (params.by_query) {
      std::swap(params.q_rows, params.q_heads);
      for (TensorRef* tensor : {&params.q, &params.o, &params.lse})
        std::swap(tensor->row, tensor->head);
    }
    // The runtime has copied `host` when its call returns; the device need not have.
    std::vector<int32_t> host(tiles.q_edges.begin(), tiles.q_edges.end());
    host.insert(host.end(), tiles.kv_edges.begin(), tiles.kv_edges.end());
    host.insert(host.end(), blocks.data, blocks.data + entries(blocks));
    const Scratch memory(device_, workspace_bytes(tiles, blocks, run), stream);
    cuda::check(cudaMemcpyAsync(memory.data(), host.data(), host.size() * sizeof(int32_t),
                                cudaMemcpyHostToDevice, stream),
                "cuda.copy");
    params.q_edges = static_cast<const int32_t*>(memory.data());
    params.kv_edges = params.q_edges + tiles.q_edges.size();
    params.blocks = params.kv_edges + tiles.kv_edges.size();
    params.q_tiles = tiles.q_tiles();
    params.room = static_cast<int32_t>(blocks.shape[3]);
    params.diagonal = static_cast<int32_t>(problem.kv_len - problem.q_len);
    cuda::check(loaded_.library->forward(params, stream), loaded_.kernel.name);
    staging.finish();
  }

 private:
  bool by_query() const { return loaded_.library->by_query; }
  static int64_t entries(const SelectedBlocks& blocks) {
    return blocks.shape[0] * blocks.shape[1] * blocks.shape[2] * blocks.shape[3];
  }
  static int64_t words(const TileMap& tiles, const SelectedBlocks& blocks) {
    return std::ssize(tiles.q_edges) + std::ssize(tiles.kv_edges) + entries(blocks);
  }

  const Device& device_;
  LoadedSelected loaded_;
  std::string index_, arithmetic_;
};

}  // namespace
}  // namespace verbatim::cuda

namespace verbatim {

std::unique_ptr<SelectedKernel> make_cuda_selected(int index, const std::string& path) {
  return std::make_unique<cuda::CudaSelected>(index, path);
}

}  // namespace verbatim
