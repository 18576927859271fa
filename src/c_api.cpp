// The C interface: the facade without exceptions or templates.
#include "c_api.h"

#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include "core/json.h"
#include "mask/distinct.h"
#include "mask/kept.h"
#include "mask/row_intervals.h"
#include "mask/slice.h"
#include "verbatim/tl.h"

namespace {

using namespace verbatim;
using namespace verbatim::c;
using Json = nlohmann::ordered_json;

thread_local std::string last_error, last_text;

verbatim_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return verbatim_invalid_argument;
    case ErrorCode::unsupported:
      return verbatim_unsupported;
    case ErrorCode::invalid_plan:
      return verbatim_invalid_plan;
    case ErrorCode::device:
      return verbatim_device_error;
    case ErrorCode::io:
      return verbatim_io_error;
  }
  return verbatim_internal_error;
}

Dtype dtype_of(verbatim_dtype dtype) {
  switch (dtype) {
    case verbatim_f32:
      return Dtype::f32;
    case verbatim_bf16:
      return Dtype::bf16;
    case verbatim_f16:
      return Dtype::f16;
    case verbatim_e4m3:
      return Dtype::e4m3;
  }
  throw Error(ErrorCode::invalid_argument, "c", "there is no such dtype",
              {"dtype", std::to_string(dtype), "a verbatim_dtype", "verbatim_f32"});
}

Pass pass_of(verbatim_pass pass) {
  switch (pass) {
    case verbatim_forward_pass:
      return Pass::forward;
    case verbatim_backward_pass:
      return Pass::backward;
  }
  throw Error(ErrorCode::invalid_argument, "c", "there is no such pass",
              {"pass", std::to_string(pass), "a verbatim_pass", "verbatim_backward_pass"});
}

TensorView view_of(const verbatim_tensor& t) {
  TensorView view{.data = t.data, .dtype = dtype_of(t.dtype)};
  std::copy(t.shape, t.shape + 4, view.shape.begin());
  std::copy(t.stride, t.stride + 4, view.stride.begin());
  return view;
}

RowView rows_of(const Problem& p, const float* lse) {
  return {const_cast<float*>(lse), {p.batch, p.q_heads, p.q_len}};
}

std::vector<std::string> kernels_of(const nlohmann::json& json, const AttentionOptions& options,
                                    const char* operation) {
  if (!json_list(json, "kernels", operation).empty() && !options.plan.arithmetic.empty())
    throw Error(ErrorCode::invalid_argument, operation, "a program has an arithmetic of its own",
                {"arithmetic", options.plan.arithmetic, "kernels without it", ""});
  std::vector<std::string> kernels;
  for (const nlohmann::json& kernel : json)
    kernels.push_back(json_text(kernel, "kernels", operation));
  return kernels;
}

AttentionOptions options_of(const nlohmann::json& json) {
  constexpr const char* kOperation = "options";
  static const std::vector<std::string> kKnown{
      "arithmetic", "device",        "level",   "order",     "tile",
      "workers",    "forward_order", "kernels", "placement", "defer_backward"};
  require_known_members(json, kKnown, kOperation);
  const auto text = [&](const char* key, const char* otherwise) -> std::string {
    return json.contains(key) ? json_text(json[key], key, kOperation) : otherwise;
  };
  AttentionOptions options;
  options.device = text("device", "cpu");
  options.forward_order = text("forward_order", "auto");
  options.plan.level = level_from_string(text("level", "invariant"));
  options.plan.order = text("order", "auto");
  options.plan.placement = text("placement", "auto");
  options.plan.arithmetic = text("arithmetic", "");
  if (json.contains("tile")) options.plan.tile = tile_of(json, kOperation);
  if (json.contains("workers")) {
    options.plan.workers = json_int32(json["workers"], "workers", kOperation);
  }
  if (json.contains("defer_backward"))
    options.defer_backward = json_bool(json["defer_backward"], "defer_backward", kOperation);
  if (json.contains("kernels")) options.kernels = kernels_of(json["kernels"], options, kOperation);
  return options;
}

/// Distinct order names of a plan, in the sequence of its heads.
Json order_names(const Plan& plan) {
  std::set<std::string> seen;
  Json names = Json::array();
  for (const auto& order : plan.orders) {
    if (seen.insert(order->name).second) names.push_back(order->name);
  }
  return names;
}

std::string describe(const verbatim_attention& handle) {
  const Attention& attention = handle.attention;
  const Problem& p = attention.problem();
  const Mask& mask = attention.mask();
  return Json{
      {"device", handle.device},
      {"level", to_string(attention.plan(Pass::backward).level)},
      {"contract", kContractVersion},
      {"problem", Json::parse(to_json(p))},
      {"mask",
       {{"name", mask.name()},
        {"params", Json::parse(mask.params_json())},
        {"area", mask.area(p.batch, p.q_heads, p.kv_heads)}}},
      {"forward", describe_pass(attention, Pass::forward)},
      {"backward", attention.has_backward() ? describe_pass(attention, Pass::backward) : Json()}}
      .dump();
}

Json describe(const OrderInfo& order) {
  return {{"name", order.name},
          {"pass", to_string(order.pass)},
          {"level", to_string(order.level)},
          {"summary", order.summary}};
}

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

std::string info() {
  Json json = {
      {"version", VERBATIM_VERSION}, {"contract", kContractVersion}, {"masks", masks::names()}};
  for (const ArithmeticInfo& each : arithmetics()) {
    json["arithmetics"].push_back(
        {{"id", each.id}, {"family", each.family}, {"summary", each.summary}});
  }
  for (const OrderInfo& order : orders()) json["orders"].push_back(describe(order));
  for (const PlacementInfo& placement : placements()) {
    json["placements"].push_back({{"name", placement.name}, {"summary", placement.summary}});
  }
  for (const tl::Target& target : tl::targets()) {
    json["tl_targets"].push_back({{"name", target.name}, {"summary", target.summary}});
  }
  return json.dump();
}

/// `size`. Throws Error naming the argument where it is out of range.
int64_t in_range(const char* operation, const char* argument, int64_t size, int64_t least,
                 int64_t most) {
  if (least <= size && size <= most) return size;
  throw Error(
      ErrorCode::invalid_argument, operation, std::string(argument) + " is out of range",
      {argument, std::to_string(size), std::to_string(least) + " to " + std::to_string(most),
       std::to_string(size < least ? least : most)});
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

namespace verbatim::c {

const char* text_of(const char* text, const char* argument) {
  if (!text) refuse_null(argument, "a text");
  return text;
}

void refuse_null(const char* argument, const char* expected) {
  throw Error(ErrorCode::invalid_argument, "c", std::string(argument) + " is missing",
              {argument, "NULL", expected, ""});
}

TileShape tile_of(const nlohmann::json& json, const char* operation) {
  const nlohmann::json& tile = json["tile"];
  if (!tile.is_array() || tile.size() != 2) {
    throw Error(ErrorCode::invalid_argument, operation, "a tile is two numbers",
                {"tile", tile.type_name(), "[q, kv]", "[0, 0]"});
  }
  return {json_int(tile[0], "tile", operation), json_int(tile[1], "tile", operation)};
}

verbatim_status failed(const std::exception& error) noexcept {
  try {
    last_error = dynamic_cast<const std::bad_alloc*>(&error) ? "out of memory" : error.what();
  } catch (const std::exception&) {
    last_error = "out of memory";  // short enough to need none
  }
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours ? status_of(ours->code()) : verbatim_internal_error;
}

const char* answer(std::string text) {
  last_text = std::move(text);
  return last_text.c_str();
}

ForwardTensors tensors_of(const Problem& problem, const verbatim_forward_tensors& t) {
  ForwardTensors tensors{view_of(t.q), view_of(t.k), view_of(t.v), view_of(t.o),
                         rows_of(problem, t.lse)};
  tensors.q.scales = t.q_scales;
  tensors.k.scales = t.k_scales;
  tensors.v.scales = t.v_scales;
  return tensors;
}

BackwardTensors tensors_of(const Problem& problem, const verbatim_backward_tensors& t) {
  return {view_of(t.q),  view_of(t.k),    view_of(t.v),
          view_of(t.o),  view_of(t.dout), rows_of(problem, t.lse),
          view_of(t.dq), view_of(t.dk),   view_of(t.dv)};
}

RunOptions run_of(const verbatim_run_options* run) {
  RunOptions options;
  if (!run) return options;
  options.stream = run->stream;
  options.threads = static_cast<int>(in_range("run", "threads", run->threads, 0, INT32_MAX));
  if (run->seed) options.seed = *run->seed;
  options.seed_at = run->seed_at;
  options.wait_limit = run->wait_limit;
  options.workspace = run->workspace;
  options.workspace_bytes = run->workspace_bytes;
  return options;
}

Asked asked_of(const nlohmann::json& spec, const char* operation) {
  const Problem problem = problem_from_json(json_member(spec, "problem", operation).dump());
  Mask mask = masks::make(json_member(spec, "mask", operation).dump(), problem.q_len,
                          problem.kv_len, problem.kv_heads);
  return {problem, std::move(mask), options_of(json_member(spec, "options", operation))};
}

Json describe_pass(const Attention& attention, Pass pass) {
  const Plan& plan = attention.plan(pass);
  const TileShape tile =
      plan.orders.empty() ? default_tile(plan.problem, pass) : plan.orders.front()->tiles->shape;
  return {{"orders", order_names(plan)},
          {"tile", {tile.q, tile.kv}},
          {"placement", plan.placement.name},
          {"workers", plan.placement.workers},
          {"residency", plan.residency},
          {"fingerprint", plan.fingerprint()},
          {"arithmetic", plan.arithmetic},
          {"kernel", attention.kernel(pass)},
          {"workspace_bytes", attention.workspace_bytes(pass)}};
}

}  // namespace verbatim::c

extern "C" {

const char* verbatim_last_error() { return last_error.c_str(); }

verbatim_status verbatim_info(const char** json) { return answered(json, info); }

verbatim_status verbatim_attention_create(const char* spec, verbatim_attention** attention) {
  return guarded([&] {
    constexpr const char* kOperation = "attention.create";
    verbatim_attention*& made = given(attention, "attention");
    const nlohmann::json json = parse_json(text_of(spec, "spec"), kOperation);
    require_known_members(json, {"problem", "mask", "options"}, kOperation);
    const Asked asked = asked_of(json, kOperation);
    made = new verbatim_attention{Attention(asked.problem, asked.mask, asked.options),
                                  asked.options.device};
  });
}

void verbatim_attention_destroy(verbatim_attention* attention) { delete attention; }

verbatim_status verbatim_attention_forward(const verbatim_attention* handle,
                                           const verbatim_forward_tensors* tensors,
                                           const verbatim_run_options* run) {
  return guarded([&] {
    const Attention& attention = given(handle, "attention").attention;
    attention.forward(tensors_of(attention.problem(), given(tensors, "tensors")), run_of(run));
  });
}

verbatim_status verbatim_attention_backward(const verbatim_attention* handle,
                                            const verbatim_backward_tensors* tensors,
                                            const verbatim_run_options* run) {
  return guarded([&] {
    const Attention& attention = given(handle, "attention").attention;
    attention.backward(tensors_of(attention.problem(), given(tensors, "tensors")), run_of(run));
  });
}

verbatim_status verbatim_attention_workspace(const verbatim_attention* handle, verbatim_pass pass,
                                             const verbatim_run_options* run, int64_t* bytes) {
  return guarded([&] {
    const Attention& attention = given(handle, "attention").attention;
    given(bytes, "bytes") = attention.workspace_bytes(pass_of(pass), run_of(run));
  });
}

verbatim_status verbatim_attention_bytes(const verbatim_attention* handle, int64_t* bytes) {
  return guarded([&] { given(bytes, "bytes") = given(handle, "attention").attention.bytes(); });
}

verbatim_status verbatim_check(const char* device) {
  return guarded([&] { check(text_of(device, "device")); });
}

verbatim_status verbatim_attention_describe(const verbatim_attention* attention,
                                            const char** json) {
  return answered(json, [&] { return describe(given(attention, "attention")); });
}

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
