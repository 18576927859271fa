// Blocks that lists name, by a library on a GPU: no plan, no hand-offs, a launch.
#include "backend/selected.h"

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/arguments.h"
#include "backend/cuda/check_lists.h"
#include "backend/cuda/library.h"
#include "backend/cuda/report.h"
#include "backend/cuda/staging.h"
#include "backend/cuda/upload.h"

namespace verbatim::cuda {
namespace {

/// q_edges, kv_edges, and for each tile of queries the blocks that it sees, on the device.
struct Tiles {
  Tiles(const Device& device, const TileMap& tiles)
      : Tiles(device, [&] {
          std::vector<int32_t> words(tiles.q_edges.begin(), tiles.q_edges.end());
          words.insert(words.end(), tiles.kv_edges.begin(), tiles.kv_edges.end());
          for (int32_t tile = 0; tile < tiles.q_tiles(); ++tile) {
            const auto [first, last] = seen_by(tiles, tile);
            words.insert(words.end(), {first, last});
          }
          return words;
        }()) {}

  Upload upload;

 private:
  Tiles(const Device& device, const std::vector<int32_t>& words)
      : upload(device, words.size() * sizeof(int32_t)) {
    upload.copy(std::as_bytes(std::span(words)));
  }
};

/// Tells `upload` of launches on `stream`, or into `graph`, also where an error cuts them short.
class Use {
 public:
  Use(const Device& device, const Upload& upload, cudaStream_t stream, cudaGraph_t graph)
      : device_(device), upload_(upload), stream_(stream), graph_(graph) {
    upload.before_launch(stream, graph);
  }
  ~Use() {
    try {
      if (graph_)
        upload_.keep();  // nobody knows how long it lives
      else
        upload_.in_use_until(std::make_shared<const End>(device_, stream_));
    } catch (const std::exception&) {
      upload_.keep();
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  const Device& device_;
  const Upload& upload_;
  cudaStream_t stream_;
  cudaGraph_t graph_;
};

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
  int64_t workspace_bytes(const TileMap&, const SelectedBlocks& blocks,
                          const RunOptions&) const override {
    return entries(blocks) * int64_t{sizeof(int32_t)};
  }
  bool checks(const SelectedBlocks& blocks) const override {
    return blocks.data && !on_host(blocks.data, device_);
  }

  void forward(const Problem& problem, const TileMap& tiles, const ForwardTensors& tensors,
               const SelectedBlocks& blocks, const RunOptions& run) const override {
    check_limits({}, problem, {tiles.q_tiles(), tiles.kv_tiles(), 0});
    const auto stream = static_cast<cudaStream_t>(run.stream);
    check_report(*device_.report);
    check_report(*device_.lists);
    const DeviceGuard guard(device_.index);
    const cudaGraph_t graph = graph_of(stream);
    const bool checked_here = checks(blocks);
    if (graph && !checked_here)
      throw Error(ErrorCode::unsupported, "cuda", "a graph would replay lists of the host",
                  {"blocks", "lists on the host, a stream that is being captured",
                   "lists on the device", ""});
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

    const Upload& uploaded = tiles_on_device(tiles).upload;
    const Use use(device_, uploaded, stream, graph);
    params.q_edges = static_cast<const int32_t*>(uploaded.data());
    params.kv_edges = params.q_edges + tiles.q_edges.size();
    params.q_tiles = tiles.q_tiles();
    params.room = static_cast<int32_t>(blocks.shape[3]);
    params.diagonal = static_cast<int32_t>(problem.kv_len - problem.q_len);
    const Scratch memory(device_, workspace_bytes(tiles, blocks, run), stream);
    auto* lists = static_cast<int32_t*>(memory.data());
    params.blocks = lists;
    if (checked_here) {
      check_lists({.given = blocks.data,
                   .checked = lists,
                   .seen = params.kv_edges + tiles.kv_edges.size(),
                   .lists = blocks.shape[0] * blocks.shape[1] * blocks.shape[2],
                   .kv_heads = static_cast<int32_t>(problem.kv_heads),
                   .q_tiles = params.q_tiles,
                   .room = params.room,
                   .blocks = tiles.kv_tiles(),
                   .report = device_.lists},
                  stream);
    } else {  // the runtime has copied what is not pinned when its call returns
      const std::vector<int32_t> host(blocks.data, blocks.data + entries(blocks));
      cuda::check(cudaMemcpyAsync(lists, host.data(), host.size() * sizeof(int32_t),
                                  cudaMemcpyHostToDevice, stream),
                  "cuda.copy");
    }
    SelectedParams launched = params;
    launched.by_query = by_query();
    if (launched.by_query) {
      std::swap(launched.q_rows, launched.q_heads);
      for (TensorRef* tensor : {&launched.q, &launched.o, &launched.lse})
        std::swap(tensor->row, tensor->head);
    }
    cuda::check(loaded_.library->forward(launched, stream), loaded_.kernel.name);
    if (checked_here) refuse_lists(params, stream);
    staging.finish();
  }

 private:
  bool by_query() const { return loaded_.library->by_query; }
  static int64_t entries(const SelectedBlocks& blocks) {
    return blocks.shape[0] * blocks.shape[1] * blocks.shape[2] * blocks.shape[3];
  }
  /// Those of all calls.
  const Tiles& tiles_on_device(const TileMap& tiles) const {
    std::call_once(once_, [&] { tiles_.emplace(device_, tiles); });
    return *tiles_;
  }

  const Device& device_;
  LoadedSelected loaded_;
  std::string index_, arithmetic_;
  mutable std::once_flag once_;
  mutable std::optional<Tiles> tiles_;
};

}  // namespace
}  // namespace verbatim::cuda

namespace verbatim {

std::unique_ptr<SelectedKernel> make_cuda_selected(int index, const std::string& path) {
  return std::make_unique<cuda::CudaSelected>(index, path);
}

}  // namespace verbatim
