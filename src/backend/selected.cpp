#include "backend/selected.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "core/threads.h"
#include "plan/check_mask.h"

namespace verbatim {
namespace {

constexpr const char* kOperation = "selected";
constexpr int64_t kListsOfPart = 4096;  // that one thread checks at a time

/// Checks lists one after another.
class Lists {
 public:
  Lists(const TileMap& tiles, const SelectedBlocks& blocks, const std::string& index)
      : tiles_(tiles), blocks_(blocks), index_(index), seen_(tiles.kv_tiles(), -1) {}

  void check(int64_t b, int64_t h, int64_t q_tile) {
    const auto [batch, heads, rows, room] = blocks_.shape;
    const int64_t number = (b * heads + h) * rows + q_tile;
    const std::span entries(blocks_.data + number * room, static_cast<size_t>(room));
    const auto row = tiles_.row(static_cast<int32_t>(q_tile));
    bool ended = false;
    for (int64_t i = 0; i < room; ++i) {
      const int32_t block = entries[i];
      ended |= block == kNoBlock;
      if (block == kNoBlock) continue;
      const ListFault fault = ended                                     ? ListFault::behind_end
                              : block < 0 || block >= tiles_.kv_tiles() ? ListFault::no_block
                              : !find_run(row, block)                   ? ListFault::hidden
                              : std::exchange(seen_[block], number) == number ? ListFault::twice
                                                                              : ListFault::none;
      if (fault == ListFault::none) continue;
      const auto [first, last] = seen_by(tiles_, static_cast<int32_t>(q_tile));
      const WrongEntry wrong{fault,      int32_t(b), int32_t(h), int32_t(q_tile),
                             int32_t(i), block,      first,      last};
      throw Error(ErrorCode::invalid_argument, kOperation, message_of(fault),
                  details_of(wrong, index_, tiles_.kv_tiles()));
    }
  }

 private:
  const TileMap& tiles_;
  const SelectedBlocks& blocks_;
  const std::string& index_;
  std::vector<int64_t> seen_;  // of each block the last list that has named it
};

}  // namespace

void check_group(const Problem& problem, int64_t rows) {
  if (problem.group() <= rows) return;
  throw Error(ErrorCode::unsupported, kOperation, "the heads of a group are rows of one tile",
              {"q_heads", fmt::format("{} for each KV head", problem.group()),
               fmt::format("at most BM, {}", rows), "a program with a larger BM"});
}

struct SelectedAttention::Impl {
  Problem problem;
  std::unique_ptr<const SelectedKernel> kernel;
  TileMap tiles;

  void check(const SelectedBlocks& blocks, int threads) const;
};

SelectedAttention::SelectedAttention(const Problem& problem, const Mask& mask,
                                     const std::string& kernel, Level level,
                                     std::string_view device) {
  problem.validate();
  const int index = device_index(device);
  std::unique_ptr<const SelectedKernel> found =
      index < 0 ? make_tl_selected(kernel, level) : make_cuda_selected(index, kernel);
  found->check(problem, mask);
  if (mask.variants().size() > 1)
    throw Error(ErrorCode::unsupported, kOperation, "all batch entries have the same tiles here",
                {"mask", fmt::format("{} masks", mask.variants().size()), "one for all entries",
                 "causal_document, packed"});
  check_mask(problem, mask, kOperation);
  const TileShape tile = found->tile();
  impl_.reset(new Impl{problem, std::move(found), TileMap(mask.head(0, 0), tile)});
}

SelectedAttention::~SelectedAttention() = default;
SelectedAttention::SelectedAttention(SelectedAttention&&) noexcept = default;
SelectedAttention& SelectedAttention::operator=(SelectedAttention&&) noexcept = default;

void SelectedAttention::Impl::check(const SelectedBlocks& blocks, int threads) const {
  const auto [batch, heads, rows, room] = blocks.shape;
  const std::string& index = kernel->index();
  if (batch != problem.batch || heads != problem.kv_heads || rows != tiles.q_tiles() || room < 0)
    throw Error(ErrorCode::invalid_argument, kOperation,
                "there is a list for each batch entry, KV head and tile of queries",
                {index, fmt::format("shape ({})", fmt::join(blocks.shape, ", ")),
                 fmt::format("({}, {}, {}, room for the longest list)", problem.batch,
                             problem.kv_heads, tiles.q_tiles()),
                 ""});
  if (blocks.data == nullptr && batch * heads * rows > 0 && room > 0)
    throw Error(ErrorCode::invalid_argument, kOperation, fmt::format("no memory of {}", index),
                {index, "a null pointer", "an address", ""});
  if (kernel->checks(blocks)) return;
  // Parts of all lists; what is refused is the first that is wrong.
  const int64_t count = batch * heads * rows, parts = (count + kListsOfPart - 1) / kListsOfPart;
  for_each_in_parallel(threads, parts, [&](int64_t part) {
    Lists lists(tiles, blocks, index);
    const int64_t end = std::min(count, (part + 1) * kListsOfPart);
    for (int64_t list = part * kListsOfPart; list < end; ++list)
      lists.check(list / rows / heads, list / rows % heads, list % rows);
  });
}

void SelectedAttention::check(const SelectedBlocks& blocks) const {
  impl_->check(blocks, core_count());
}

void SelectedAttention::forward(const ForwardTensors& tensors, const SelectedBlocks& blocks,
                                const RunOptions& run) const {
  check_tensors(impl_->problem, tensors);
  impl_->check(blocks, run.threads > 0 ? run.threads : core_count());
  impl_->kernel->forward(impl_->problem, impl_->tiles, tensors, blocks, run);
}

int64_t SelectedAttention::workspace_bytes(const SelectedBlocks& blocks,
                                           const RunOptions& run) const {
  return impl_->kernel->workspace_bytes(impl_->tiles, blocks, run);
}
const TileMap& SelectedAttention::tiles() const { return impl_->tiles; }
const std::string& SelectedAttention::index() const { return impl_->kernel->index(); }
const std::string& SelectedAttention::arithmetic() const { return impl_->kernel->arithmetic(); }

}  // namespace verbatim
