#include "core/tensor_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <ostream>

#include "core/file.h"
#include "core/tensor_file_formats.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

[[noreturn]] void unknown_extension(const char* operation, const std::filesystem::path& path) {
  throw Error(ErrorCode::unsupported, operation, "cannot tell the format of the file",
              {path.string(), "'" + path.extension().string() + "'", ".npy or .safetensors",
               ".safetensors"});
}

/// The elements in row-major order, whatever the strides.
void write_elements(std::ostream& out, const NamedTensor& tensor) {
  const int64_t size = size_of(tensor.dtype), rank = std::ssize(tensor.shape);
  if (std::ranges::count(tensor.shape, 0) > 0) return;
  std::vector<int64_t> index(tensor.shape.size(), 0);
  int64_t axis = 0;
  while (axis >= 0) {
    int64_t offset = 0;
    for (int64_t i = 0; i < rank; ++i) offset += index[i] * tensor.stride[i];
    out.write(static_cast<const char*>(tensor.data) + offset * size, tensor.shape.back() * size);
    // The next row, in row-major order: the last dimension is written whole.
    for (axis = rank - 2; axis >= 0; --axis) {
      if (++index[axis] < tensor.shape[axis]) break;
      index[axis] = 0;
    }
  }
}

}  // namespace

const TensorFile::Entry& TensorFile::at(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &Entry::name);
  if (found != tensors.end()) return *found;
  std::vector<std::string> names;
  for (const Entry& entry : tensors) names.push_back("'" + entry.name + "'");
  throw Error(ErrorCode::invalid_argument, "tensor_file", "the file has no such tensor",
              {std::string(name), fmt::format("'{}'", name),
               fmt::format("one of {}", fmt::join(names, ", ")), ""});
}

TensorView TensorFile::view(std::string_view name) {
  const Entry& entry = at(name);
  if (entry.integer_bytes)
    throw Error(ErrorCode::invalid_argument, "tensor_file", "a tensor holds integers",
                {std::string(name), fmt::format("i{}", 8 * entry.integer_bytes),
                 "f32, bf16, f16 or e4m3", "f32"});
  if (entry.shape.size() != 4)
    throw Error(ErrorCode::invalid_argument, "tensor_file", "a tensor has the wrong rank",
                {std::string(name), fmt::format("shape [{}]", fmt::join(entry.shape, ", ")),
                 "[batch, length, heads, dim]", ""});
  return TensorView::dense(bytes.data() + entry.begin, entry.dtype,
                           {entry.shape[0], entry.shape[1], entry.shape[2], entry.shape[3]});
}

std::vector<int64_t> TensorFile::integers(std::string_view name) const {
  const Entry& entry = at(name);
  if (!entry.integer_bytes)
    throw Error(ErrorCode::invalid_argument, "tensor_file", "a tensor holds no integers",
                {std::string(name), std::string(to_string(entry.dtype)), "i32 or i64", "i32"});
  std::vector<int64_t> all;
  for (int64_t at = entry.begin; at < entry.end; at += entry.integer_bytes) {
    int32_t narrow = 0;
    int64_t wide = 0;
    if (entry.integer_bytes == sizeof narrow) {
      std::memcpy(&narrow, bytes.data() + at, sizeof narrow);
      wide = narrow;
    } else {
      std::memcpy(&wide, bytes.data() + at, sizeof wide);
    }
    all.push_back(wide);
  }
  return all;
}

TensorFile read_tensor_file(const std::filesystem::path& path) {
  if (path.extension() == ".safetensors") return parse_safetensors(read_file(path));
  if (path.extension() != ".npy") unknown_extension("tensor_file.read", path);
  TensorFile file = parse_npy(read_file(path));
  file.tensors[0].name = path.stem().string();
  return file;
}

NamedTensor::NamedTensor(std::string name, const TensorView& view)
    : name(std::move(name)),
      dtype(view.dtype),
      shape(view.shape.begin(), view.shape.end()),
      stride(view.stride.begin(), view.stride.end()),
      data(view.data) {}

NamedTensor::NamedTensor(std::string name, const RowView& rows)
    : name(std::move(name)),
      shape(rows.shape.begin(), rows.shape.end()),
      stride{rows.shape[1] * rows.shape[2], rows.shape[2], 1},
      data(rows.data) {}

void write_tensor_file(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  // Wide elements first: every tensor then starts at a multiple of its element size.
  std::vector<NamedTensor> sorted(tensors.begin(), tensors.end());
  std::ranges::stable_sort(sorted, std::greater(),
                           [](const NamedTensor& tensor) { return size_of(tensor.dtype); });
  std::string header;
  if (path.extension() == ".safetensors") {
    header = safetensors_header(sorted);
  } else if (path.extension() == ".npy") {
    header = npy_header(sorted);
  } else {
    unknown_extension("tensor_file.write", path);
  }
  write_file(path, [&](std::ostream& out) {
    out << header;
    for (const NamedTensor& tensor : sorted) write_elements(out, tensor);
  });
}

int64_t byte_count(std::span<const int64_t> shape, int64_t element_bytes, const char* operation) {
  int64_t bytes = element_bytes;
  for (int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes))
      throw Error(ErrorCode::invalid_argument, operation, "the size of a shape overflows",
                  {"shape", fmt::format("[{}]", fmt::join(shape, ", ")),
                   "extents of at least 0 with a product below 2^63", ""});
  }
  return bytes;
}

}  // namespace verbatim
