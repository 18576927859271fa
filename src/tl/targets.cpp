// What the checker and the reasoning know of a GPU, from src/tl/targets/*.json.
#include "tl/targets.h"

#include <fmt/format.h>

#include <vector>

#include "core/json.h"
#include "core/names.h"
#include "tl/kernel.h"
#include "verbatim/error.h"

namespace verbatim::tl {
namespace {

constexpr const char* kOperation = "tl.target";
using Json = nlohmann::json;

[[noreturn]] void refuse_size(const char* name, double size) {
  throw Error(ErrorCode::invalid_argument, kOperation, fmt::format("'{}' is too small", name),
              {name, fmt::to_string(size), "above 0", "1"});
}

int64_t size_from(const Json& json, const char* name) {
  const int64_t size = json_int(json_member(json, name, kOperation), name, kOperation);
  if (size <= 0) refuse_size(name, static_cast<double>(size));
  return size;
}

double rate_from(const Json& json, const char* name) {
  const double rate = json_number(json_member(json, name, kOperation), name, kOperation);
  if (rate <= 0) refuse_size(name, rate);
  return rate;
}

std::string text_from(const Json& json, const char* name) {
  return json_text(json_member(json, name, kOperation), name, kOperation);
}

std::vector<Target> read_targets() {
  std::vector<Target> all;
  for (const char* text : kTargetTexts) all.push_back(target_from_json(text));
  return all;
}

}  // namespace

Target target_from_json(const std::string& text) {
  const Json json = parse_json(text, kOperation);
  const Json& mma = json_member(json, "mma", kOperation);
  Target target{.name = text_from(json, "name"),
                .summary = text_from(json, "summary"),
                .multiprocessors = size_from(json, "multiprocessors"),
                .shared_bytes = size_from(json, "shared_bytes"),
                .registers = size_from(json, "registers"),
                .registers_per_thread = size_from(json, "registers_per_thread"),
                .mma = {.m = size_from(mma, "m"),
                        .n = size_from(mma, "n"),
                        .k = size_from(mma, "k"),
                        .warps = size_from(mma, "warps")},
                .async_copies = json_bool(json_member(json, "async_copies", kOperation),
                                          "async_copies", kOperation),
                .tflops = {},
                .memory_gb_per_s = rate_from(json, "memory_gb_per_s")};
  const Json& tflops = json_member(json, "tflops", kOperation);
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::e4m3}) {
    const std::string name(to_string(dtype));
    if (dtype == Dtype::f16 || tflops.contains(name))
      target.tflops[dtype] = rate_from(tflops, name.c_str());
  }
  return target;
}

std::span<const Target> targets() {
  static const std::vector<Target> all = read_targets();
  return all;
}

std::string Target::dtypes() const {
  std::string all;
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::e4m3})
    if (takes(dtype)) all += (all.empty() ? "" : ", ") + std::string(to_string(dtype));
  return all;
}

const Target& find_target(std::string_view name) {
  std::vector<std::string> known;
  std::string all;
  for (const Target& target : targets()) {
    if (name == target.name) return target;
    known.push_back(target.name);
    all += (all.empty() ? "" : ", ") + known.back();
  }
  throw Error(ErrorCode::invalid_argument, "tl", "there is no such target",
              {"target", "'" + std::string(name) + "'", all, nearest_name(name, known)});
}

}  // namespace verbatim::tl
