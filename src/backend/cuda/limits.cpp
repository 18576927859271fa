#include "backend/cuda/limits.h"

#include <fmt/format.h>

#include <initializer_list>
#include <string>

#include "verbatim/error.h"

namespace verbatim::cuda {
namespace {

constexpr int64_t kIndex = INT32_MAX;         // also the most CTAs of a grid
constexpr int64_t kTasks = int64_t{1} << 30;  // tickets go on behind the last
constexpr int64_t kRowsOfACta = 8;            // of the kernel that makes delta

/// The product, or INT64_MAX where it is larger.
int64_t product(std::initializer_list<int64_t> factors) {
  int64_t value = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(value, factor, &value)) return INT64_MAX;
  }
  return value;
}

void at_most(int64_t most, int64_t value, const char* argument, const std::string& got,
             const char* of_what) {
  if (value <= most) return;
  throw Error(ErrorCode::unsupported, "cuda", "the problem is too large for one launch",
              {argument, got, fmt::format("at most {}{}", most, of_what), "a smaller batch"});
}

}  // namespace

void check_limits(const Limits& limits, const Problem& p, const PlanCounts& counts) {
  at_most(limits.batch, p.batch, "batch", fmt::to_string(p.batch), "");
  at_most(limits.q_heads, p.q_heads, "q_heads", fmt::to_string(p.q_heads), "");
  at_most(kIndex, product({p.batch, p.kv_heads}), "batch, kv_heads",
          fmt::format("{} x {}", p.batch, p.kv_heads), " KV heads in all");
  at_most(kIndex, product({p.batch, p.q_heads, counts.q_tiles}), "batch, q_heads, q_len",
          fmt::format("{} x {} x {} query tiles", p.batch, p.q_heads, counts.q_tiles),
          " query tiles in all");
  at_most(kIndex, product({p.batch, p.kv_heads, counts.kv_tiles}), "batch, kv_heads, kv_len",
          fmt::format("{} x {} x {} KV tiles", p.batch, p.kv_heads, counts.kv_tiles),
          " KV tiles in all");
  at_most(kIndex * kRowsOfACta, product({p.batch, p.q_heads, p.q_len}), "batch, q_heads, q_len",
          fmt::format("{} x {} x {} rows", p.batch, p.q_heads, p.q_len), " rows in all");
  at_most(kTasks, counts.tasks, "order", fmt::format("{} tasks", counts.tasks), " tasks");
}

}  // namespace verbatim::cuda
