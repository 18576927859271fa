// What programs can name: the tensors of a pass, and the operations of Compute.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbatim/problem.h"

namespace verbatim::tl {

/// A tensor in global memory. Rows are queries or keys; columns a head dim, or none: one number a
/// row, in f32.
struct Tensor {
  enum class Role { absent, in, out };
  const char* name;
  bool queries;         // rows are queries, else keys
  const char* columns;  // "HeadDim", "HeadDimV" or null
  Role forward, backward;

  Role role(Pass pass) const { return pass == Pass::forward ? forward : backward; }
  /// Whether a chain keeps its tile of it, and visits those of the other axis.
  bool kept(Pass pass) const { return queries == (pass == Pass::forward); }
  /// The block that a Copy takes: the chain's own tile, or that of visit i.
  std::string block(Pass pass, const std::string& i) const { return kept(pass) ? "block_idx" : i; }
  const char* offset() const { return queries ? "q_head_offset" : "kv_head_offset"; }
  /// Extents of a tile, and of the whole tensor of one head.
  std::vector<std::string> tile() const { return with_columns(queries ? "BM" : "BN"); }
  std::vector<std::string> whole() const { return with_columns(queries ? "M" : "N"); }

 private:
  std::vector<std::string> with_columns(const char* rows) const {
    if (columns == nullptr) return {rows};
    return {rows, columns};
  }
};
std::span<const Tensor> tensors();
/// Null when there is none.
const Tensor* find_tensor(std::string_view name);

/// `param sel = index` declares an index tensor, whose entries name the blocks of visits: a list
/// for each tile of queries. `param sel = query_index`: a list for each query; the rows of its tile
/// are the query heads of a group.
inline constexpr std::string_view kIndex = "index", kQueryIndex = "query_index";
/// Masks that need no plan beside an index tensor: they hide what lies behind a query.
std::span<const char* const> index_masks();

enum class Operation {
  gemm,
  fill,      // A = number
  add,       // A + b: b has A's shape, is a number a row, a number or `scale`
  subtract,  // A - b
  multiply,  // A * b
  divide,    // A / b, and 0 where b is 0: a row without a key
  mask,      // S = -inf for pairs that the mask hides, and behind the end of a tile
  softmax,   // with m and l: one step of the online softmax; with L: exp(S - L)
  logsumexp  // m + log(l)
};
/// By the word of TL, "GEMM"; nothing when there is none.
std::optional<Operation> find_operation(std::string_view word);
std::vector<std::string> operation_words();

}  // namespace verbatim::tl
