// What a chain holds while a program runs, and what each statement does to it. Which tiles a chain
// visits, and in which order, others say: a plan, or an index tensor.
#pragma once

#include <string_view>
#include <vector>

#include "backend/tl/tile.h"
#include "tl/kernel.h"
#include "verbatim/problem.h"
#include "verbatim/tensor.h"

namespace verbatim::tl {

/// The tensors of either pass by their names in TL. What a pass has not has no memory.
struct Tensors {
  TensorView q{}, k{}, v{}, o{}, dout{}, dq{}, dk{}, dv{};
  RowView lse{};

  const TensorView& named(std::string_view name) const;
};

/// Where a visit is, or what surrounds the loop: heads, and the rows of the tiles.
struct Visit {
  int64_t b = 0, kv_head = 0, q_head = 0;
  Interval queries{}, keys{};
};

class ProgramState {
 public:
  ProgramState(const Kernel& kernel, const Problem& problem, const Tensors& tensors);

  /// What a state takes.
  static int64_t bytes(const Kernel& kernel);

  Tile& tile(int variable) { return tiles_[variable]; }
  /// Which pairs of the visit the slices of a run of tiles show; behind the ends of tiles none.
  void find_pairs(const TileMap& map, int32_t slice_begin, int32_t slice_count, const Visit& visit);
  /// Shows so many rows what the first sees.
  void show_alike(int64_t rows);
  void execute(const Step& step, const Visit& visit);
  /// Of a Reduce whose last addend is in: multiplies the sum by what is `with` it, and writes it.
  void finish(const Step& step, const Visit& visit);

 private:
  void compute(const Step& step);
  float scalar_of(const Step& step) const;
  void read(const Step& step, const Visit& visit);
  void read_delta(int64_t h, const Visit& visit, Tile& tile);
  void write(const Step& step, const Visit& visit);

  const Kernel& kernel_;
  const Problem& problem_;
  Tensors tensors_;
  std::vector<Tile> tiles_;  // of kernel_.variables
  Tile dout_, o_;
  Pairs pairs_;
  std::vector<float> scratch_;
  std::vector<Tile*> sums_;
};

}  // namespace verbatim::tl
