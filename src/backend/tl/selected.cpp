// The interpreter without a plan: a chain is a tile of queries of one head, and its visits are what
// a list says.
#include "verbatim/selected.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "backend/backend.h"
#include "backend/tl/interpreter.h"
#include "backend/tl/state.h"
#include "contract/contract.h"
#include "core/threads.h"

namespace verbatim {
namespace {

constexpr const char* kOperation = "tl.selected";
constexpr int32_t kNone = -1;  // behind the last entry of a list

int threads_of(const RunOptions& run) { return run.threads > 0 ? run.threads : core_count(); }

/// The run of a row of tiles that holds `tile`; null where no run does.
const TileRun* find_run(std::span<const TileRun> row, int32_t tile) {
  const auto found = std::ranges::upper_bound(row, tile, {}, &TileRun::last);
  return found != row.end() && found->first <= tile ? &*found : nullptr;
}

/// The blocks that a list may name: those of the runs.
std::string shown(std::span<const TileRun> row) {
  if (row.empty()) return "none: its queries see no key";
  return fmt::format("{} to {}", row.front().first, row.back().last - 1);
}

/// Checks the lists one after another.
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
      const auto refuse = [&](const char* why, std::string expected) {
        throw Error(ErrorCode::invalid_argument, kOperation, why,
                    {index_, fmt::format("{}[{}, {}, {}, {}] = {}", index_, b, h, q_tile, i, block),
                     std::move(expected), ""});
      };
      if (block == kNone) {
        ended = true;
        continue;
      }
      if (ended) refuse("a block stands behind the end of its list", "-1 behind a -1");
      if (block < 0 || block >= tiles_.kv_tiles())
        refuse("a list names a block that is not there",
               fmt::format("0 to {}, or -1 behind the last", tiles_.kv_tiles() - 1));
      if (!find_run(row, block))
        refuse("a list names a block of which its queries see no key", shown(row));
      if (std::exchange(seen_[block], number) == number)
        refuse("a list names a block twice", "each block once");
    }
  }

 private:
  const TileMap& tiles_;
  const SelectedBlocks& blocks_;
  const std::string& index_;
  std::vector<int64_t> seen_;  // of each block the last list that has named it
};

}  // namespace

std::span<const int32_t> SelectedBlocks::list(int64_t b, int64_t kv_head, int64_t q_tile) const {
  const std::span all(data + ((b * shape[1] + kv_head) * shape[2] + q_tile) * shape[3],
                      static_cast<size_t>(shape[3]));
  return all.first(std::ranges::find(all, kNone) - all.begin());
}

struct SelectedAttention::Impl {
  Problem problem;
  tl::Kernel kernel;
  TileMap tiles;
  std::string arithmetic;

  void check(const SelectedBlocks& blocks) const {
    const auto [batch, heads, rows, room] = blocks.shape;
    if (batch != problem.batch || heads != problem.kv_heads || rows != tiles.q_tiles() || room < 0)
      throw Error(ErrorCode::invalid_argument, kOperation,
                  "there is a list for each batch entry, KV head and tile of queries",
                  {kernel.index, fmt::format("shape ({})", fmt::join(blocks.shape, ", ")),
                   fmt::format("({}, {}, {}, room for the longest list)", problem.batch,
                               problem.kv_heads, tiles.q_tiles()),
                   ""});
    Lists lists(tiles, blocks, kernel.index);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t tile = 0; tile < rows; ++tile) lists.check(b, h, tile);
  }

  void do_chain(const tl::Tensors& tensors, const SelectedBlocks& blocks, int64_t b, int64_t q_head,
                int64_t q_tile) const {
    tl::ProgramState state(kernel, problem, tensors);
    tl::Visit visit{.b = b,
                    .kv_head = q_head / (problem.q_heads / problem.kv_heads),
                    .q_head = q_head,
                    .queries = {tiles.q_edges[q_tile], tiles.q_edges[q_tile + 1]}};
    const auto row = tiles.row(static_cast<int32_t>(q_tile));
    for (const tl::Step& step : kernel.before) state.execute(step, visit);
    for (const int32_t block : blocks.list(b, visit.kv_head, q_tile)) {
      const TileRun& run = *find_run(row, block);
      visit.keys = {tiles.kv_edges[block], tiles.kv_edges[block + 1]};
      state.find_pairs(tiles, run.slice_begin, run.slice_count, visit);
      for (const tl::Step& step : kernel.visit) state.execute(step, visit);
    }
    for (const tl::Step& step : kernel.after) state.execute(step, visit);
  }
};

SelectedAttention::SelectedAttention(const Problem& problem, const Mask& mask,
                                     const std::string& program, Level level) {
  problem.validate();
  tl::Examined found =
      tl::examine_code(program, "kernel", {.target = {}, .level = level}, kOperation);
  if (found.kernel.index.empty())
    throw Error(ErrorCode::invalid_argument, kOperation, "a plan names the blocks of the program",
                {"kernel", "a program without an index tensor", "param sel = index", ""});
  tl::check_problem(found.kernel, problem);
  tl::check_mask(found.kernel, mask);
  if (mask.variants().size() > 1)
    throw Error(ErrorCode::unsupported, kOperation, "all batch entries have the same tiles here",
                {"mask", fmt::format("{} masks", mask.variants().size()), "one for all entries",
                 "causal_document, packed"});
  if (mask.q_len() != problem.q_len || mask.kv_len() != problem.kv_len)
    throw Error(ErrorCode::invalid_argument, kOperation, "the mask is for other lengths",
                {"mask", fmt::format("{} x {}", mask.q_len(), mask.kv_len()),
                 fmt::format("{} x {}", problem.q_len, problem.kv_len), ""});
  const TileShape tile = found.kernel.tile;
  impl_.reset(new Impl{.problem = problem,
                       .kernel = std::move(found.kernel),
                       .tiles = TileMap(mask.head(0, 0), tile),
                       .arithmetic = contract::kTl + tl::hash_of(found.program)});
}

SelectedAttention::~SelectedAttention() = default;
SelectedAttention::SelectedAttention(SelectedAttention&&) noexcept = default;
SelectedAttention& SelectedAttention::operator=(SelectedAttention&&) noexcept = default;

void SelectedAttention::check(const SelectedBlocks& blocks) const { impl_->check(blocks); }

void SelectedAttention::forward(const ForwardTensors& t, const SelectedBlocks& blocks,
                                const RunOptions& run) const {
  check_tensors(impl_->problem, t);
  impl_->check(blocks);
  const tl::Tensors tensors{.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
  const int64_t rows = impl_->tiles.q_tiles(), heads = impl_->problem.q_heads;
  for_each_in_parallel(threads_of(run), impl_->problem.batch * heads * rows, [&](int64_t i) {
    impl_->do_chain(tensors, blocks, i / rows / heads, i / rows % heads, i % rows);
  });
}

int64_t SelectedAttention::workspace_bytes(const RunOptions& run) const {
  return threads_of(run) * tl::ProgramState::bytes(impl_->kernel);
}
const TileMap& SelectedAttention::tiles() const { return impl_->tiles; }
const std::string& SelectedAttention::index() const { return impl_->kernel.index; }
const std::string& SelectedAttention::arithmetic() const { return impl_->arithmetic; }

}  // namespace verbatim
