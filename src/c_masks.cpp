// Masks of the C interface: by name, as arrays, of blocks.
#include "c_api.h"
#include "core/json.h"
#include "mask/distinct.h"
#include "mask/kept.h"
#include "mask/row_intervals.h"
#include "mask/slice.h"

namespace {

using namespace verbatim;
using namespace verbatim::c;
using Json = nlohmann::ordered_json;

/// masks::make(), refused when a mask that knows its lengths has others.
Mask mask_of_lengths(const char* operation, const char* text, int64_t q_len, int64_t kv_len,
                     int64_t kv_heads) {
  Mask mask = masks::make(text_of(text, "mask"), q_len, kv_len, kv_heads);
  if (mask.q_len() != q_len || mask.kv_len() != kv_len) {
    throw Error(ErrorCode::invalid_argument, operation, "the mask has other lengths",
                {"q_len, kv_len", std::to_string(q_len) + ", " + std::to_string(kv_len),
                 std::to_string(mask.q_len()) + ", " + std::to_string(mask.kv_len()), ""});
  }
  return mask;
}

/// Entries of an array [batch, kv_heads, q_len, kv_len]. Throws Error naming the size at fault.
int64_t entries(const char* operation, int64_t batch, int64_t kv_heads, int64_t q_len,
                int64_t kv_len) {
  int64_t count = in_range(operation, "q_len", q_len, 0, kMaxLength) *
                  in_range(operation, "kv_len", kv_len, 0, kMaxLength);
  const int64_t heads = in_range(operation, "batch", batch, 1, kMaxHeads) *
                        in_range(operation, "kv_heads", kv_heads, 1, kMaxHeads);
  if (__builtin_mul_overflow(count, heads, &count))
    throw Error(ErrorCode::invalid_argument, operation, "no array has so many entries",
                {"batch, kv_heads", std::to_string(batch) + ", " + std::to_string(kv_heads),
                 "sizes whose product is below 2^63", ""});
  return count;
}

/// One mask a head, as `mask_of(head)` makes it, each kept once.
template <class F>
Mask of_heads(int64_t batch, int64_t kv_heads, F&& mask_of) {
  DistinctHeads heads;
  for (int64_t head = 0; head < batch * kv_heads; ++head)
    heads.variant_of.push_back(heads.id_of(mask_of(head).variants().front()));
  return Mask("dense", "{}", std::move(heads.variants), std::move(heads.variant_of), batch,
              kv_heads);
}

template <class T>
std::span<const T> array_of(const char* operation, const T* values, int64_t count,
                            const char* name) {
  if (count < 0 || (!values && count > 0))
    throw Error(ErrorCode::invalid_argument, operation, std::string(name) + " is missing",
                {name, values ? std::to_string(count) + " entries" : "NULL",
                 "an array and the number of its entries", ""});
  return {values, static_cast<size_t>(count)};
}

Mask from_dense(const uint8_t* dense, int64_t batch, int64_t kv_heads, int64_t q_len,
                int64_t kv_len) {
  constexpr const char* kOperation = "mask.from_dense";
  const auto all =
      array_of(kOperation, dense, entries(kOperation, batch, kv_heads, q_len, kv_len), "dense");
  const auto positions = static_cast<size_t>(q_len * kv_len);
  return of_heads(batch, kv_heads, [&](int64_t head) {
    const auto plane = all.subspan(static_cast<size_t>(head) * positions, positions);
    return masks::from_dense(plane, q_len, kv_len);
  });
}

Mask from_rows(const int64_t* row_begin, const int32_t* begins, const int32_t* ends, int64_t count,
               int64_t batch, int64_t kv_heads, int64_t q_len, int64_t kv_len) {
  constexpr const char* kOperation = "mask.from_rows";
  const int64_t lists = entries(kOperation, batch, kv_heads, q_len, 1);
  const auto rows = array_of(kOperation, row_begin, lists + 1, "row_begin");
  const auto first = array_of(kOperation, begins, count, "begins");
  const auto last = array_of(kOperation, ends, count, "ends");
  return of_heads(batch, kv_heads, [&](int64_t head) {
    const auto own = rows.subspan(head * q_len, static_cast<size_t>(q_len) + 1);
    return masks::from_row_intervals({own, first, last}, kv_len);
  });
}

Mask mask_of(const verbatim_blocks& b) {
  constexpr const char* kOperation = "mask.from_blocks";
  const masks::BlockLists lists{b.batch, b.kv_heads,
                                array_of(kOperation, b.row_begin, b.row_begins, "row_begin"),
                                array_of(kOperation, b.columns, b.column_count, "columns")};
  if (!b.q_edges && !b.k_edges)
    return masks::uniform_block_sparse(b.q_len, b.kv_len, b.block_q, b.block_k, lists);
  const auto edges = [&](const int64_t* values, const char* name, int64_t blocks,
                         const char* count) {
    return array_of(kOperation, values, in_range(kOperation, count, blocks, 0, kMaxLength) + 1,
                    name);
  };
  return masks::variable_block_sparse(edges(b.q_edges, "q_edges", b.q_blocks, "q_blocks"),
                                      edges(b.k_edges, "k_edges", b.k_blocks, "k_blocks"), lists);
}

/// What the JSON of a mask calls the arrays that its blocks came from.
std::string blocks_of(const nlohmann::json& mask) {
  constexpr const char* kOperation = "mask.release";
  return json_text(json_member(json_member(mask, "params", kOperation), "blocks", kOperation),
                   "blocks", kOperation);
}

std::string from_blocks(const verbatim_blocks& blocks) {
  const Mask mask = mask_of(blocks);
  const Json json{{"name", mask.name()}, {"params", Json::parse(mask.params_json())}};
  masks::own(blocks_of(json), mask);
  return json.dump();
}

}  // namespace

extern "C" {

verbatim_status verbatim_mask_json(const char* mask, int64_t q_len, int64_t kv_len,
                                   int64_t kv_heads, const char** json) {
  return answered(
      json, [&] { return to_json(mask_of_lengths("mask.json", mask, q_len, kv_len, kv_heads)); });
}

verbatim_status verbatim_mask_mod(const char* mask, int64_t q_len, int64_t kv_len, int64_t kv_heads,
                                  const char** python) {
  return answered(python, [&] {
    return to_mask_mod(mask_of_lengths("mask.mod", mask, q_len, kv_len, kv_heads));
  });
}

verbatim_status verbatim_mask_to_dense(const char* text, int64_t batch, int64_t kv_heads,
                                       int64_t q_len, int64_t kv_len, uint8_t* dense) {
  return guarded([&] {
    constexpr const char* kOperation = "mask.to_dense";
    const int64_t positions = entries(kOperation, batch, kv_heads, q_len, kv_len);
    const Mask mask = mask_of_lengths(kOperation, text, q_len, kv_len, kv_heads);
    const auto fits = [](int64_t own, int64_t asked) { return own == 1 || own == asked; };
    if (!fits(mask.batch(), batch) || !fits(mask.kv_heads(), kv_heads))
      throw Error(ErrorCode::invalid_argument, kOperation,
                  "the mask is for another batch or number of KV heads",
                  {"batch, kv_heads", std::to_string(batch) + ", " + std::to_string(kv_heads),
                   std::to_string(mask.batch()) + ", " + std::to_string(mask.kv_heads()) +
                       " (1 fits any number)",
                   ""});
    if (positions > 0) given(dense, "dense");
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < kv_heads; ++h) {
        const std::vector<uint8_t> plane = to_dense(mask.head(b, h));
        dense = std::copy(plane.begin(), plane.end(), dense);
      }
    }
  });
}

verbatim_status verbatim_mask_area(const char* text, int64_t batch, int64_t q_heads,
                                   int64_t kv_heads, int64_t q_len, int64_t kv_len, int64_t* area) {
  return guarded([&] {
    given(area, "area") =
        mask_of_lengths("mask.area", text, q_len, kv_len, kv_heads).area(batch, q_heads, kv_heads);
  });
}

verbatim_status verbatim_mask_from_dense(const uint8_t* dense, int64_t batch, int64_t kv_heads,
                                         int64_t q_len, int64_t kv_len, const char** json) {
  return answered(json, [&] { return to_json(from_dense(dense, batch, kv_heads, q_len, kv_len)); });
}

verbatim_status verbatim_mask_from_rows(const int64_t* row_begin, const int32_t* begins,
                                        const int32_t* ends, int64_t count, int64_t batch,
                                        int64_t kv_heads, int64_t q_len, int64_t kv_len,
                                        const char** json) {
  return answered(json, [&] {
    return to_json(from_rows(row_begin, begins, ends, count, batch, kv_heads, q_len, kv_len));
  });
}

verbatim_status verbatim_mask_from_blocks(const verbatim_blocks* blocks, const char** json) {
  return answered(json, [&] { return from_blocks(given(blocks, "blocks")); });
}

verbatim_status verbatim_mask_release(const char* mask) {
  return guarded(
      [&] { masks::disown(blocks_of(parse_json(text_of(mask, "mask"), "mask.release"))); });
}

}  // extern "C"
