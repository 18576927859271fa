#include "plan/check_mask.h"

#include <fmt/format.h>

#include "verbatim/error.h"

namespace verbatim {

void check_mask(const Problem& problem, const Mask& mask, const char* operation) {
  if (mask.q_len() != problem.q_len || mask.kv_len() != problem.kv_len)
    throw Error(ErrorCode::invalid_argument, operation, "the mask has other lengths",
                {"mask", fmt::format("{} queries, {} keys", mask.q_len(), mask.kv_len()),
                 fmt::format("{} queries, {} keys", problem.q_len, problem.kv_len), ""});
  const auto fits = [](int64_t own, int64_t asked) { return own == 1 || own == asked; };
  if (fits(mask.batch(), problem.batch) && fits(mask.kv_heads(), problem.kv_heads)) return;
  throw Error(
      ErrorCode::invalid_argument, operation, "the mask is for another batch or number of KV heads",
      {"mask", fmt::format("batch {}, {} KV heads", mask.batch(), mask.kv_heads()),
       fmt::format("batch {}, {} KV heads (1 fits any number)", problem.batch, problem.kv_heads),
       ""});
}

}  // namespace verbatim
