// The C interface: the facade without exceptions or templates.
#include "c_api.h"

#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include "core/json.h"
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
      "arithmetic", "device",        "level",   "order",     "tile",          "plans",
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
  if (json.contains("plans"))
    for (const nlohmann::json& plan : json_list(json["plans"], "plans", kOperation))
      options.plans.push_back(std::make_shared<const Plan>(plan_from_json(plan.dump())));
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

int64_t in_range(const char* operation, const char* argument, int64_t size, int64_t least,
                 int64_t most) {
  if (least <= size && size <= most) return size;
  throw Error(
      ErrorCode::invalid_argument, operation, std::string(argument) + " is out of range",
      {argument, std::to_string(size), std::to_string(least) + " to " + std::to_string(most),
       std::to_string(size < least ? least : most)});
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
  const TileShape tile = tile_of(plan);
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

verbatim_status verbatim_attention_plan(const verbatim_attention* attention, verbatim_pass pass,
                                        const char** json) {
  return answered(
      json, [&] { return to_json(given(attention, "attention").attention.plan(pass_of(pass))); });
}

verbatim_status verbatim_check(const char* device) {
  return guarded([&] { check(text_of(device, "device")); });
}

verbatim_status verbatim_attention_describe(const verbatim_attention* attention,
                                            const char** json) {
  return answered(json, [&] { return describe(given(attention, "attention")); });
}

}  // extern "C"
