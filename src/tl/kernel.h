// A program with every name resolved: what the checker makes of it, and what runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tl/ast.h"
#include "tl/vocabulary.h"
#include "verbatim/tl.h"

namespace verbatim::tl {

/// A tile in shared memory or registers.
struct Variable {
  std::string name;
  Memory memory;
  std::vector<std::string> shape{};  // names of its extents; empty: nothing says it
  int64_t rows = 0, cols = 0;        // cols 1: one number a row; in a sketch 0
  bool staged = false;               // copied from global memory in the loop: has `stages` buffers
  Span at{};                         // where it is mentioned first, or its Allocate
};

struct Step {
  enum class Kind {
    load,     // a tile of `tensor` to `out`
    store,    // `a` to a tile of `tensor`
    reduce,   // `a` is an addend of a tile of `tensor`
    move,     // `a` between shared memory and registers, to `out`
    wait,     // until `a` has arrived
    compute,  // `out` = operation(a, b, c)
    reshape,  // `a` from the layout of a product to that of a factor: rounded to the dtype
  } kind;
  Operation operation{};
  int out = -1, a = -1, b = -1, c = -1;  // variables
  bool a_transposed = false, b_transposed = false;
  bool accumulate = false;         // gemm: adds to out
  std::optional<double> number{};  // instead of b; reduce: factor of the whole sum
  bool by_scale = false;           // the same: the scale of the scores
  std::vector<int> rescaled{};     // online softmax: sums that are brought to the new maximum
  const Tensor* tensor = nullptr;
  Span at{};
};

struct Kernel {
  Pass pass = Pass::forward;
  std::string target, mask;  // the mask it is made for; empty: any
  std::string index;         // the tensor that names the blocks of visits; empty: the plan does
  bool by_query = false;     // it has a list for each query, whose heads of a group are the rows
  Dtype dtype = Dtype::bf16;
  int64_t head_dim = 0, head_dim_v = 0;
  TileShape tile{0, 0};
  int64_t stages = 1, warps = 0;
  std::vector<Variable> variables;
  std::vector<Step> before, visit, after;  // the loop over visits, and what is around it
};

/// 16 hex digits over all of a program that is not layout or comment.
std::string hash_of(const Program& program);

/// A file of src/tl/targets. Throws Error naming what is wrong.
Target target_from_json(const std::string& text);

struct Examined {
  std::vector<Diagnostic> faults;  // in the order of the text
  Program program;
  Kernel kernel;  // whole when there are no faults and it is no sketch
};
Examined examine(std::string_view text, const CheckOptions& options);
/// The same of TL code without faults. Throws Error(invalid_argument) with those that there are, or
/// saying that it is a sketch.
Examined examine_code(std::string_view text, std::string_view file, const CheckOptions& options,
                      const char* operation);
/// The faults one after another, each as describe() shows it.
std::string described(const std::vector<Diagnostic>& faults, std::string_view text,
                      std::string_view file);

/// Throws Error(unsupported) where the blocks of a program's visits are named by an index tensor,
/// and `operation` wants a plan to name them.
void refuse_index(const Kernel& kernel, const char* operation);

/// Bounds of a program's sizes: rows or columns of a tile, buffers, warps.
inline constexpr int64_t kMostOfATile = 1024, kMostStages = 8, kMostWarps = 32;

/// Of shared memory, in which a CTA keeps where it is in the plan, and the visits to come.
inline constexpr int64_t kPlaceBytes = 768;
/// Where warps have roles: visits and barriers.
inline constexpr int64_t kWalkBytes = 4096;
/// Of every CTA, by the driver.
inline constexpr int64_t kReserved = 1024;

/// Buffers of a tile that is turned: of two, one is read while the next is written.
inline constexpr int64_t kTurnedBuffers = 2;

/// Bytes of a variable; shared memory holds inputs, P and dS in the dtype.
int64_t bytes_of(const Kernel& kernel, const Variable& variable);
/// Bytes of a tile in shared memory with rows and columns exchanged: wgmma reads factors of e4m3
/// along the summed axis alone, so where the rows of a product's second factor lie across it, the
/// tile is turned. 0: of none else.
int64_t turned_bytes(const Kernel& kernel, const Variable& variable);
/// Of both, and of what is kept beside tiles.
int64_t shared_bytes(const Kernel& kernel);
/// CTAs of a multiprocessor in a kernel whose warps have roles. Where one warpgroup computes, two
/// if they fit, so that one multiplies while the other has its softmax; but what decodes a plan has
/// no registers to spare for it.
int64_t ctas_in_roles(const Kernel& kernel);
/// What a visit that no mask cuts asks of the GPU: operations of its products, and bytes that it
/// reads from global memory and adds to sums there.
struct VisitWork {
  int64_t flops = 0, bytes = 0;
};
VisitWork visit_work(const Kernel& kernel);
/// An estimate: 32-bit registers of a thread where most are live, and what is done there. The
/// compiler's own count is the last word.
struct RegisterUse {
  int64_t per_thread = 0;
  Span at{};
};
RegisterUse register_use(const Kernel& kernel, int64_t warps);

}  // namespace verbatim::tl
