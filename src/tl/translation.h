// What a translation to CUDA asks of a kernel: names, how warps share products, which tiles are
// masked; and what is not translated yet, refused by name.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tl/copies.h"
#include "tl/kernel.h"

namespace verbatim::tl {

inline constexpr const char* kEmit = "tl.emit";  // the operation in errors

class Translation {
 public:
  explicit Translation(const Examined& found);

  /// Throws Error(unsupported) with what of the program is not translated yet, its line and what is
  /// nearest.
  void refuse_what_is_missing() const;

 protected:
  /// The statement at a place, as `fmt` writes it.
  std::string text_at(Span at) const;
  const Variable& var(int v) const { return k_.variables[v]; }
  /// In the code: behind a prefix, with the buffer of the current visit.
  std::string name(int v) const;
  std::string rows(const Variable& v) const { return extent(v.shape[0], v.rows); }
  /// "kBM, kHeadDim", or "kBM" of one number a row.
  std::string extents(const Variable& v) const;
  /// "kBN" of a tile (BM, BN).
  std::string columns(const Variable& v) const {
    const std::string both = extents(v);
    return both.substr(both.find(' ') + 1);
  }
  bool backward() const { return k_.pass == Pass::backward; }
  bool background() const { return find_target(k_.target).async_copies; }
  /// Whether warpgroups share products as warps do elsewhere: a backward for Hopper.
  bool by_warpgroups() const { return backward() && find_target(k_.target).mma.warps > 1; }
  /// Whether an index tensor names the blocks, not a plan.
  bool by_index() const { return !k_.index.empty(); }
  bool e4m3() const { return k_.dtype == Dtype::e4m3; }
  /// The dtype of tiles in shared memory, in the code.
  const char* element() const;
  std::string_view pass() const { return to_string(k_.pass); }
  const char* params() const {
    return by_index() ? "SelectedParams" : backward() ? "BackwardParams" : "ForwardParams";
  }
  /// Whether a step copies a tile in the loop, in the background.
  bool is_staged(const Step& step) const {
    return step.kind == Step::Kind::load && var(step.out).staged;
  }
  static const Step* first_of(const std::vector<Step>& steps, Step::Kind kind);

  /// Warps, or warpgroups, along the rows of a product, and along its columns.
  struct Split {
    int64_t rows, columns;
  };
  /// The name of the product that a tile in registers, or numbers of its rows, belong to.
  std::string mma(const Variable& v) const;
  /// Whether a tile in registers sums products of e4m3 whose first factor is P.
  bool is_result(const Variable& v) const;
  /// Those that there are, by name.
  std::map<std::string, Split> products() const;

  /// Whether a tile is made of masked scores, other than by a product; below 0, what is no tile.
  bool is_masked(int v) const { return v >= 0 && masked_[v]; }
  /// The product of a visit whose second factor is `tile`, and whose first is masked; or null.
  const Step* product_by(int tile) const;
  /// The last product of a visit, behind which there is the least to do; or null.
  const Step* last_product() const;
  /// Running sums of online softmaxes, which lanes keep of their own columns.
  std::vector<int> partial_sums() const;
  /// The multiplication of scores by the scale that is left to the exponent of a softmax, which
  /// alone reads them; or null.
  const Step* folded() const;

  [[noreturn]] void refuse(Span at, const char* what, const char* nearest) const;

  const Program& program_;
  const Kernel& k_;
  Copies copies_;

 private:
  static std::string extent(const std::string& of, int64_t value);
  static std::string text_at(const std::vector<Statement>& statements, Span at);
  /// By rows where a product goes on in registers; else what reads least of its factors. Nothing
  /// when none is in blocks of 16 x 16, or of warpgroups 64 x 64.
  std::optional<Split> split_of(const Variable& v) const;
  void find_masked();
  /// Scales of heads reach scores by way of `scale`, and results behind the loop.
  void refuse_what_scales_miss() const;
  /// What only a backward by warpgroups lacks.
  void refuse_what_warpgroups_miss() const;

  std::vector<bool> masked_;
  bool by_rows_;  // a product goes on in registers, so each warp has rows of its own
};

}  // namespace verbatim::tl
