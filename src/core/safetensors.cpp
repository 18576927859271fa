// The .safetensors format: the header's length (8 bytes, little-endian), the header as JSON, the
// data. github.com/huggingface/safetensors states the rules that are enforced here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/json.h"
#include "core/tensor_file_formats.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using nlohmann::json;

constexpr const char* kOperation = "safetensors";
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxTensors = 65536;

[[noreturn]] void fail(std::string message, Error::Details details,
                       ErrorCode code = ErrorCode::invalid_argument) {
  throw Error(code, kOperation, std::move(message), std::move(details));
}

constexpr std::array<std::pair<int64_t, std::string_view>, 2> kIntegers{{{4, "I32"}, {8, "I64"}}};
constexpr std::array<std::pair<Dtype, std::string_view>, 4> kDtypes{
    {{Dtype::f32, "F32"}, {Dtype::bf16, "BF16"}, {Dtype::f16, "F16"}, {Dtype::e4m3, "F8_E4M3"}}};

void set_dtype(TensorFile::Entry& entry, const std::string& name) {
  for (const auto& [bytes, known] : kIntegers)
    if (name == known) return void(entry.integer_bytes = bytes);
  for (const auto& [dtype, known] : kDtypes)
    if (name == known) return void(entry.dtype = dtype);
  fail("unsupported dtype",
       {entry.name, "'" + name + "'", "F32, BF16, F16, F8_E4M3, I32 or I64", "F32"},
       ErrorCode::unsupported);
}

std::string_view name_of(Dtype dtype) {
  return std::ranges::find(kDtypes, dtype, [](const auto& known) { return known.first; })->second;
}

const json& array(const json& value, const std::string& tensor, const char* key) {
  return json_list(json_member(value, key, kOperation), tensor + "." + key, kOperation);
}

TensorFile::Entry entry_of(const std::string& name, const json& value, int64_t data_bytes) {
  TensorFile::Entry entry{};
  entry.name = name;
  set_dtype(entry, json_text(json_member(value, "dtype", kOperation), name, kOperation));
  const json& shape = array(value, name, "shape");
  if (shape.size() > kMaxRank)
    fail("too many dimensions",
         {name, fmt::to_string(shape.size()), fmt::format("at most {}", kMaxRank), ""});
  for (const json& extent : shape) entry.shape.push_back(json_int(extent, name, kOperation));
  const json& offsets = array(value, name, "data_offsets");
  if (offsets.size() != 2)
    fail("'data_offsets' is no pair", {name, fmt::to_string(offsets.size()), "2 offsets", ""});
  if (value.size() != 3)
    fail("a tensor has a member that does not belong there",
         {name, fmt::format("{} members", value.size()), "dtype, shape and data_offsets", ""});
  entry.begin = json_int(offsets[0], name, kOperation);
  entry.end = json_int(offsets[1], name, kOperation);
  const std::string range = fmt::format("[{}, {})", entry.begin, entry.end);
  if (entry.begin < 0 || entry.begin > entry.end || entry.end > data_bytes)
    fail("a tensor leaves the file",
         {name, range, fmt::format("a range inside [0, {})", data_bytes), ""});
  const int64_t bytes = byte_count(entry.shape, entry.element_bytes(), kOperation);
  if (bytes != entry.end - entry.begin)
    fail("a tensor's data does not fill its shape",
         {name, fmt::format("{} bytes", entry.end - entry.begin),
          fmt::format("{} for shape [{}]", bytes, fmt::join(entry.shape, ", ")), ""});
  if (entry.begin % entry.element_bytes() != 0)
    fail("a tensor starts inside an element",
         {name, range, fmt::format("a multiple of {}", entry.element_bytes()), ""});
  return entry;
}

void check_metadata(const json& metadata) {
  if (!metadata.is_object())
    fail("'__metadata__' is no object", {"__metadata__", metadata.type_name(), "an object", ""});
  for (const auto& [key, value] : metadata.items()) json_text(value, key, kOperation);
}

}  // namespace

TensorFile parse_safetensors(std::vector<std::byte> file) {
  if (file.size() < 8)
    fail("not a .safetensors file",
         {"file", fmt::format("{} bytes", file.size()), "at least 8", ""});
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | std::to_integer<uint64_t>(file[i]);
  if (header_bytes > kMaxHeader || header_bytes > file.size() - 8)
    fail("the header is longer than the file or than the limit",
         {"header", fmt::format("{} bytes", header_bytes),
          fmt::format("at most {}", std::min<uint64_t>(kMaxHeader, file.size() - 8)), ""});
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
  if (!text.starts_with('{'))
    fail("the header is no JSON object",
         {"header", fmt::format("{:?}", text.substr(0, 8)), "'{'", ""});
  const json header = parse_json(text, kOperation, {.depth = 3, .bytes = kMaxHeader});
  if (header.size() > kMaxTensors + 1)
    fail("too many tensors",
         {"header", fmt::to_string(header.size()), fmt::format("at most {}", kMaxTensors), ""});

  TensorFile result;
  const size_t data_begin = 8 + header_bytes;
  const int64_t data_bytes = static_cast<int64_t>(file.size() - data_begin);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(value);
    } else {
      result.tensors.push_back(entry_of(name, value, data_bytes));
    }
  }
  std::ranges::stable_sort(result.tensors, {},
                           [](const auto& entry) { return std::pair(entry.begin, entry.end); });
  int64_t covered = 0;
  for (const TensorFile::Entry& entry : result.tensors) {
    if (entry.begin != covered)
      fail(entry.begin < covered ? "two tensors overlap" : "bytes belong to no tensor",
           {entry.name, fmt::format("a start at {}", entry.begin), fmt::to_string(covered), ""});
    covered = entry.end;
  }
  if (covered != data_bytes)
    fail("bytes belong to no tensor",
         {"file", fmt::format("{} bytes of data", data_bytes), fmt::to_string(covered), ""});

  file.erase(file.begin(), file.begin() + static_cast<int64_t>(data_begin));
  result.bytes = std::move(file);
  return result;
}

std::string safetensors_header(std::span<const NamedTensor> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  int64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    if (header.contains(tensor.name) || tensor.name == "__metadata__")
      fail("a name that is taken", {tensor.name, "the name again", "another name", ""});
    const int64_t end = offset + byte_count(tensor.shape, size_of(tensor.dtype), kOperation);
    header[tensor.name] = {
        {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';  // aligns the data
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> 8 * i);
  return length + text;
}

}  // namespace verbatim
