// The interpreter without a plan: a chain is a tile, of queries of one head or of the heads of a
// group at one query, and its visits are what a list says.
#include "backend/selected.h"

#include <utility>
#include <vector>

#include "backend/tl/interpreter.h"
#include "backend/tl/state.h"
#include "contract/contract.h"
#include "core/threads.h"

namespace verbatim {
namespace {

constexpr const char* kOperation = "tl.selected";

/// The same with queries and heads in each other's place, so that rows of a tile are heads.
TensorView swapped(const TensorView& tensor) {
  TensorView view = tensor;
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.stride[1], view.stride[2]);
  return view;
}

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
    arithmetic_ = contract::kInterpretedTl + tl::hash_of(found.program);
  }

  void check(const Problem& problem, const Mask& mask) const override {
    tl::check_problem(kernel_, problem);
    tl::check_mask(kernel_, mask);
    if (!kernel_.by_query) return;
    check_group(problem, kernel_.tile.q);
    if (problem.dtype == Dtype::e4m3)  // scales are those of heads, which are rows here
      throw Error(ErrorCode::unsupported, kOperation, "rows of a tile have one scale",
                  {"dtype", "e4m3", "bf16 or f16", "bf16"});
  }
  TileShape tile() const override {
    return {kernel_.by_query ? 1 : kernel_.tile.q, kernel_.tile.kv};
  }
  const std::string& index() const override { return kernel_.index; }
  const std::string& arithmetic() const override { return arithmetic_; }
  int64_t workspace_bytes(const TileMap&, const SelectedBlocks& blocks,
                          const RunOptions& run) const override {
    const int64_t queries = blocks.shape[0] * blocks.shape[1] * blocks.shape[2];
    const int64_t lse = kernel_.by_query ? queries * kernel_.tile.q * int64_t{sizeof(float)} : 0;
    return threads_of(run) * tl::ProgramState::bytes(kernel_) + lse;
  }

  void forward(const Problem& problem, const TileMap& tiles, const ForwardTensors& t,
               const SelectedBlocks& blocks, const RunOptions& run) const override {
    if (kernel_.by_query) return forward_by_query(problem, tiles, t, blocks, run);
    const tl::Tensors tensors{.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse};
    const int64_t rows = tiles.q_tiles(), heads = problem.q_heads;
    for_each_in_parallel(threads_of(run), problem.batch * heads * rows, [&](int64_t i) {
      tl::ProgramState state(kernel_, problem, tensors);
      do_chain(state, tiles, blocks,
               {.b = i / rows / heads,
                .kv_head = i / rows % heads / (heads / problem.kv_heads),
                .q_head = i / rows % heads,
                .queries = {tiles.q_edges[i % rows], tiles.q_edges[i % rows + 1]}},
               i % rows);
    });
  }

 private:
  void forward_by_query(const Problem& problem, const TileMap& tiles, const ForwardTensors& t,
                        const SelectedBlocks& blocks, const RunOptions& run) const {
    const int64_t queries = problem.q_len, heads = problem.kv_heads, group = problem.group();
    std::vector<float> sums(problem.batch * queries * problem.q_heads);
    const RowView lse{sums.data(), {problem.batch, queries, problem.q_heads}};
    const tl::Tensors tensors{.q = swapped(t.q), .k = t.k, .v = t.v, .o = swapped(t.o), .lse = lse};
    for_each_in_parallel(threads_of(run), problem.batch * heads * queries, [&](int64_t i) {
      tl::ProgramState state(kernel_, problem, tensors);
      const int64_t b = i / queries / heads, kv_head = i / queries % heads, query = i % queries;
      do_chain(state, tiles, blocks,
               {.b = b,
                .kv_head = kv_head,
                .q_head = query,
                .queries = {kv_head * group, (kv_head + 1) * group}},
               query);
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
        t.lse.row(b, h)[query] = lse.row(b, query)[h];
    });
  }

  /// visit.queries: the rows of its tile.
  void do_chain(tl::ProgramState& state, const TileMap& tiles, const SelectedBlocks& blocks,
                tl::Visit visit, int64_t q_tile) const {
    const Interval queries{tiles.q_edges[q_tile], tiles.q_edges[q_tile + 1]};
    const auto row = tiles.row(static_cast<int32_t>(q_tile));
    for (const tl::Step& step : kernel_.before) state.execute(step, visit);
    for (const int32_t block : blocks.list(visit.b, visit.kv_head, q_tile)) {
      const TileRun& run = *find_run(row, block);
      visit.keys = {tiles.kv_edges[block], tiles.kv_edges[block + 1]};
      state.find_pairs(tiles, run.slice_begin, run.slice_count,
                       {.queries = queries, .keys = visit.keys});
      if (kernel_.by_query) state.show_alike(visit.queries.end - visit.queries.begin);
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
