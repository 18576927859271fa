// What the two file formats share; used by tensor_file.cpp, npy.cpp and safetensors.cpp only.
#pragma once

#include <span>
#include <string>

#include "core/tensor_file.h"

namespace verbatim {

inline constexpr size_t kMaxRank = 32;  // dimensions of a tensor that is read

/// Everything that precedes the data. Throws Error when the format cannot hold `tensors`.
std::string npy_header(std::span<const NamedTensor> tensors);
std::string safetensors_header(std::span<const NamedTensor> tensors);

/// Bytes of a dense tensor; throws Error in the name of `operation` when they overflow.
int64_t byte_count(std::span<const int64_t> shape, int64_t element_bytes, const char* operation);

}  // namespace verbatim
