// Tensors in files: NumPy's .npy (format versions 1 to 3) and .safetensors, read strictly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbatim/tensor.h"

namespace verbatim {

/// Tensors of one file and the memory that holds them: row-major, little-endian.
struct TensorFile {
  struct Entry {
    std::string name;
    Dtype dtype;
    std::vector<int64_t> shape;
    int64_t begin, end;         // bytes [begin, end) of `bytes`
    int64_t integer_bytes = 0;  // 4 or 8: signed integers, of which `dtype` says nothing

    int64_t element_bytes() const { return integer_bytes ? integer_bytes : size_of(dtype); }
  };
  std::vector<Entry> tensors;
  std::vector<std::byte> bytes;

  /// Throws Error naming the tensors there are when `name` is none of them.
  const Entry& at(std::string_view name) const;
  /// Tensor `name` as (batch, length, heads, dim). Throws Error when its rank is not 4, or when it
  /// holds integers.
  TensorView view(std::string_view name);
  /// The elements of a tensor of integers. Throws Error when it holds none.
  std::vector<int64_t> integers(std::string_view name) const;
};

/// A .npy file: one tensor called "". Refused with Error(invalid_argument or unsupported), which
/// says what was found and what would do: dtypes other than '<f4', '<f2', '<i4' and '<i8'
/// (pickled objects included), Fortran order, headers above 64 kB, data shorter or longer than the
/// shape.
TensorFile parse_npy(std::vector<std::byte> file);

/// A .safetensors file: tensors of dtype F32, BF16, F16, F8_E4M3, I32 or I64 in the order of their
/// data.
/// Refused like above: headers above 100 MB, more than 65536 tensors, unknown members, shapes whose
/// size overflows, ranges that leave the file, overlap, leave a hole (the format demands that every
/// byte belongs to a tensor) or do not start at a multiple of the element size.
TensorFile parse_safetensors(std::vector<std::byte> file);

/// Reads a file by its extension, .npy or .safetensors; the tensor of a .npy file is called like
/// the file without extension.
TensorFile read_tensor_file(const std::filesystem::path& path);

/// A tensor to be written; strides count elements and are 1 in the last dimension.
struct NamedTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape, stride;
  const void* data = nullptr;

  NamedTensor(std::string name, const TensorView& view);
  NamedTensor(std::string name, const RowView& rows);
};

/// Writes `tensors` by the extension of `path`, all or nothing; .npy takes one tensor of f32 or
/// f16.
void write_tensor_file(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

}  // namespace verbatim
