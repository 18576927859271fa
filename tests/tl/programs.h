// Programs for tests: the shipped sketches, and one with the names of the paper's listings.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/file.h"
#include "verbatim/error.h"
#include "verbatim/tl.h"

namespace verbatim::test {

/// kernels/tl/NAME.tl.
inline std::string sketch(const std::string& name) { return read_text(SKETCHES + name + ".tl"); }

inline tl::ReasonOptions reason_options(int64_t head_dim, const std::string& target = "a100",
                                        TileShape tile = {0, 0}) {
  tl::ReasonOptions options;
  options.problem.head_dim = options.problem.head_dim_v = head_dim;
  options.problem.dtype = tl::find_target(target).takes(Dtype::bf16) ? Dtype::bf16 : Dtype::f16;
  options.tile = tile;
  options.target = target;
  return options;
}

/// The tile that a refusal names as the nearest which works.
inline TileShape nearest_tile(const Error& error) {
  TileShape tile{0, 0};
  const std::string& nearest = error.details().nearest;
  if (std::sscanf(nearest.c_str(), "--tile-q %ld --tile-kv %ld", &tile.q, &tile.kv) != 2)
    throw std::runtime_error("no tile is named: " + std::string(error.what()));
  return tile;
}

/// TL code of a shipped sketch.
inline std::string code(const std::string& name, int64_t head_dim = 64) {
  return tl::reason(sketch(name), name, reason_options(head_dim));
}

/// The sketch around the lines of QiMeng-Attention's listings 1 and 2.
inline constexpr const char* kListing = R"(param pass = forward

Copy Q from global to shared and get Q_shared
Compute Fill Smax with -inf
Compute Fill Ssum with 0
Compute Fill O_reg with 0
for i = 0:N
  Copy K from global to shared and get K_shared
  Copy V from global to shared and get V_shared
  Compute GEMM Q_shared, K_shared^T and get S
  Compute Multiply S, scale and get new S
  Compute Mask S
  Compute Softmax S with Smax and Ssum
  Compute GEMM S, V_shared and accumulate O_reg
end
Compute Divide O_reg, Ssum and get new O_reg
Compute LogSumExp Smax, Ssum and get L
Copy O_reg from register to global and get O
Copy L from register to global
)";

/// `text` with the first `from` replaced by `to`; `from` must be there.
inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("not in the text: " + std::string(from));
  return text.replace(at, from.size(), to);
}

/// The number of the line that holds the first `part`.
inline int64_t line_of(std::string_view text, std::string_view part) {
  const size_t at = text.find(part);
  if (at == std::string_view::npos)
    throw std::runtime_error("not in the text: " + std::string(part));
  return tl::place_of(text, static_cast<int64_t>(at)).line;
}

/// "CODE@LINE" of every fault.
inline std::vector<std::string> found(std::string_view text, const tl::CheckOptions& options = {}) {
  std::vector<std::string> all;
  for (const tl::Diagnostic& fault : tl::check(text, options))
    all.push_back(fault.code + "@" + std::to_string(tl::place_of(text, fault.begin).line));
  return all;
}

}  // namespace verbatim::test
