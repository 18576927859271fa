// What runs a forward over blocks of keys that lists name (verbatim/selected.h): a kernel for each
// kind of device.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "verbatim/error.h"
#include "verbatim/selected.h"

namespace verbatim {

inline constexpr int32_t kNoBlock = -1;  // behind the last entry of a list

/// The first block of which queries of the tile see keys, and one more than the last.
std::pair<int32_t, int32_t> seen_by(const TileMap& tiles, int32_t q_tile);

/// What is wrong with an entry of a list.
enum class ListFault : int32_t { none, behind_end, no_block, hidden, twice };

/// A wrong entry, and the blocks [seen_first, seen_last) of which queries of its tile see keys.
struct WrongEntry {
  ListFault fault;
  int32_t b, kv_head, q_tile, at, block;
  int32_t seen_first, seen_last;
};

/// The words of Error for a wrong entry of `index`, where there are `blocks` in all.
Error::Details details_of(const WrongEntry& entry, const std::string& index, int32_t blocks);
const char* message_of(ListFault fault);

/// The run of a row of tiles that holds `tile`; null where no run does.
const TileRun* find_run(std::span<const TileRun> row, int32_t tile);

/// Of a program with a list for each query: throws Error(unsupported) where the heads of a group
/// are more than the `rows` of a tile.
void check_group(const Problem& problem, int64_t rows);

class SelectedKernel {
 public:
  virtual ~SelectedKernel() = default;
  /// Throws Error(unsupported) naming what of a validated problem, or its mask, it is not made for.
  virtual void check(const Problem& problem, const Mask& mask) const = 0;
  virtual TileShape tile() const = 0;
  /// What the program calls its index tensor.
  virtual const std::string& index() const = 0;
  virtual const std::string& arithmetic() const = 0;
  /// Bytes that a call allocates at most.
  virtual int64_t workspace_bytes(const TileMap& tiles, const SelectedBlocks& blocks,
                                  const RunOptions& run) const = 0;
  /// Whether lists lie where the kernel checks them itself.
  virtual bool checks(const SelectedBlocks&) const { return false; }
  /// Of tensors that were checked, and lists that were, too, unless checks() says so. `tiles` are
  /// the same in all calls.
  virtual void forward(const Problem& problem, const TileMap& tiles, const ForwardTensors& tensors,
                       const SelectedBlocks& blocks, const RunOptions& run) const = 0;
};

/// TL code in the interpreter. Throws Error with the faults of a program that is refused at
/// `level`.
std::unique_ptr<SelectedKernel> make_tl_selected(const std::string& program, Level level);
/// The library at `path` on CUDA device `index`. Throws Error(unsupported) when built without CUDA.
std::unique_ptr<SelectedKernel> make_cuda_selected(int index, const std::string& path);
/// What the program of the library at `path` calls its index tensor; none: it has none, or nothing
/// of this build loads libraries. Needs no GPU. Throws Error(unsupported) when it is another
/// version's, another Error when it holds no kernel.
std::optional<std::string> index_of_library(const std::string& path);

}  // namespace verbatim
