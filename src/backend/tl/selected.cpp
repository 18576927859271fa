// The interpreter without a plan: a chain is a tile of queries of one head, and its visits are what
// a list says.
#include "backend/selected.h"

#include <utility>

#include "backend/tl/interpreter.h"
#include "backend/tl/state.h"
#include "contract/contract.h"
#include "core/threads.h"

namespace verbatim {
namespace {

constexpr const char* kOperation = "tl.selected";

int threads_of(const RunOptions& run) { return run.threads > 0 ? run.threads : core_count(); }

class TlSelected final : public SelectedKernel {
 public:
  TlSelected(const std::string& program, Level level) {
    tl::Examined found =
        tl::examine_code(program, "kernel", {.target = {}, .level = level}, kOperation);
    if (found.kernel.index.empty())
      throw Error(ErrorCode::invalid_argument, kOperation, "a plan names the blocks of the program",
                  {"kernel", "a program without an index tensor", "param sel = index", ""});
    kernel_ = std::move(found.kernel);
    arithmetic_ = contract::kTl + tl::hash_of(found.program);
  }

  void check(const Problem& problem, const Mask& mask) const override {
    tl::check_problem(kernel_, problem);
    tl::check_mask(kernel_, mask);
  }
  TileShape tile() const override { return kernel_.tile; }
  const std::string& index() const override { return kernel_.index; }
  const std::string& arithmetic() const override { return arithmetic_; }
  int64_t workspace_bytes(const TileMap&, const SelectedBlocks&,
                          const RunOptions& run) const override {
    return threads_of(run) * tl::ProgramState::bytes(kernel_);
  }

  void forward(const Problem& problem, const TileMap& tiles, const ForwardTensors& t,
               const SelectedBlocks& blocks, const RunOptions& run) const override {
    const tl::Tensors tensors{.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    const int64_t rows = tiles.q_tiles(), heads = problem.q_heads;
    for_each_in_parallel(threads_of(run), problem.batch * heads * rows, [&](int64_t i) {
      tl::ProgramState state(kernel_, problem, tensors);
      do_chain(state, tiles, blocks,
               {.b = i / rows / heads,
                .kv_head = i / rows % heads / (heads / problem.kv_heads),
                .q_head = i / rows % heads},
               i % rows);
    });
  }

 private:
  void do_chain(tl::ProgramState& state, const TileMap& tiles, const SelectedBlocks& blocks,
                tl::Visit visit, int64_t q_tile) const {
    visit.queries = {tiles.q_edges[q_tile], tiles.q_edges[q_tile + 1]};
    const auto row = tiles.row(static_cast<int32_t>(q_tile));
    for (const tl::Step& step : kernel_.before) state.execute(step, visit);
    for (const int32_t block : blocks.list(visit.b, visit.kv_head, q_tile)) {
      const TileRun& run = *find_run(row, block);
      visit.keys = {tiles.kv_edges[block], tiles.kv_edges[block + 1]};
      state.find_pairs(tiles, run.slice_begin, run.slice_count, visit);
      for (const tl::Step& step : kernel_.visit) state.execute(step, visit);
    }
    for (const tl::Step& step : kernel_.after) state.execute(step, visit);
  }

  tl::Kernel kernel_;
  std::string arithmetic_;
};

}  // namespace

std::unique_ptr<SelectedKernel> make_tl_selected(const std::string& program, Level level) {
  return std::make_unique<TlSelected>(program, level);
}

}  // namespace verbatim
