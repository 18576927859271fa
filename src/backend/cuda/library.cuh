// A kernel in a library of its own: what `verbatim tl build` makes and the executor loads. The two
// share no C++ run time, so that only plain data crosses.
#pragma once

#include "backend/cuda/launch.cuh"

namespace verbatim::cuda {

/// What both sides of a library must agree on: raised when the meaning of what kernels are given
/// changes, and the sizes of it.
struct LibraryVersion {
  int32_t number;
  uint64_t forward, backward, order, library;

  bool operator==(const LibraryVersion&) const = default;
};

/// How CTAs of a launch start.
struct Start {
  int64_t workers;
  bool together;    // all at once or not yet
  bool empty_rows;  // as in LaunchContext
  cudaStream_t stream;
};

/// What a library exports as `verbatim_library`.
struct Library {
  LibraryVersion version;  // the only member that can be read of any library
  const char* name;        // "tl.a100.forward"
  const char* arithmetic;  // "tl.1:" and a hash: of the plans that it runs
  const char* mask;        // the one that it is for; empty: any
  int32_t arch;            // least compute capability: 80
  Pass pass;
  Dtype dtype;
  int64_t head_dim, head_dim_v;
  TileShape tile;
  int64_t shared_bytes;  // of a CTA
  /// CTAs that fit on a multiprocessor of the current device.
  cudaError_t (*residents)(int* count);
  /// Bytes of the workspace, as Kernel::workspace_bytes; null: none.
  int64_t (*workspace_bytes)(const Sizes& sizes, int32_t tile_sums, bool piece);
  /// Starts the pass; that of the other is null.
  cudaError_t (*forward)(const ForwardParams&, const Start&);
  cudaError_t (*backward)(const BackwardParams&, const Start&);
};

inline constexpr LibraryVersion kLibraryVersion{4, sizeof(ForwardParams), sizeof(BackwardParams),
                                                sizeof(OrderView), sizeof(Library)};

/// What a library of a program exports as `verbatim_selected` whose blocks an index tensor names.
struct SelectedLibrary {
  LibraryVersion version;
  const char *name, *arithmetic, *mask;  // as in Library
  const char* index;                     // what the program calls that tensor
  bool by_query;                         // SelectedParams::by_query; the tile's rows hold a group
  int32_t arch;
  Dtype dtype;
  int64_t head_dim, head_dim_v;
  TileShape tile;
  int64_t shared_bytes;
  cudaError_t (*forward)(const SelectedParams&, cudaStream_t);
};

inline constexpr LibraryVersion kSelectedVersion{5, sizeof(SelectedParams), 0, 0,
                                                 sizeof(SelectedLibrary)};

}  // namespace verbatim::cuda

extern "C" __attribute__((visibility("default")))
const verbatim::cuda::SelectedLibrary verbatim_selected;
extern "C" __attribute__((visibility("default"))) const verbatim::cuda::Library verbatim_library;
