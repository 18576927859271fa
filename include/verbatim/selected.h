// Attention over blocks of keys that an index tensor names: the selected branch of native sparse
// attention (Yuan et al. 2025). Which blocks is data, as elements are: no mask, plan or fingerprint
// knows it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "verbatim/plan.h"
#include "verbatim/problem.h"
#include "verbatim/run.h"

namespace verbatim {

/// For each batch entry, KV head and tile of queries the blocks of keys that they visit, in turn;
/// of a program with `query_index` a tile is one query. All query heads of a group share a list.
/// Lists have room for the longest; -1 stands behind the last entry of the others. They lie on the
/// host, or on the device of the attention.
struct SelectedBlocks {
  const int32_t* data = nullptr;   // dense
  std::array<int64_t, 4> shape{};  // [batch, kv_heads, q_tiles, room]

  /// Without what stands behind its last entry; of lists on the host.
  std::span<const int32_t> list(int64_t b, int64_t kv_head, int64_t q_tile) const;
};

/// A forward by a program whose blocks an index tensor names (`[L = sel[i]]`, docs/tl.md): on a CPU
/// TL code, by its interpreter, on a GPU a library that tl::build() made. A row's O and LSE are a
/// function of its query and of the keys and values of its blocks in the order of their list.
class SelectedAttention {
 public:
  /// `kernel`: as AttentionOptions::kernels, TL code or the path of a library. `mask` is the one
  /// that the program names: it hides the keys behind a query, and supplies the tiles of queries
  /// and blocks of keys, which start anew at every document. Throws Error with the faults of a
  /// program that is refused at `level`, and naming what it is not made for, or a mask that is for
  /// another problem, as make_plan().
  SelectedAttention(const Problem& problem, const Mask& mask, const std::string& kernel,
                    Level level = Level::invariant, std::string_view device = "cpu");
  ~SelectedAttention();
  SelectedAttention(SelectedAttention&&) noexcept;
  SelectedAttention& operator=(SelectedAttention&&) noexcept;

  /// Throws Error(invalid_argument) naming the first entry of lists on the host that is no block, a
  /// block of which no query of its tile sees a key, or one that is there twice. Of lists on the
  /// device nothing but their shape: forward() checks them there.
  void check(const SelectedBlocks& blocks) const;
  /// check() first: nothing runs where it throws. Of RunOptions `threads` counts on a CPU, `stream`
  /// on a GPU, which has the work when this returns. Lists on the host have been read by then; it
  /// throws Error(unsupported) for them on a stream that is being captured. Lists on the device are
  /// read and checked in the stream, without a wait: O and LSE are NaN for the queries of one with
  /// a wrong entry, and the next forward on that device throws Error(invalid_argument) naming it.
  void forward(const ForwardTensors& tensors, const SelectedBlocks& blocks,
               const RunOptions& run = {}) const;

  /// Bytes that forward() allocates at most besides copies of tensors.
  int64_t workspace_bytes(const SelectedBlocks& blocks, const RunOptions& run = {}) const;
  /// Of queries, and of keys: what entries of lists count.
  const TileMap& tiles() const;
  /// What the program calls its index tensor.
  const std::string& index() const;
  /// "tl.2:" and the hash of the program; of a library "tl.1:", also of its target and translator.
  const std::string& arithmetic() const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace verbatim
