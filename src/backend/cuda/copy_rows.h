// Many rows of bytes copied by few launches: what a rank packs into messages and takes out of them.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "backend/backend.h"

namespace verbatim::cuda {

/// Whether copy_rows() can: addresses, lengths and distances are multiples of 16 bytes, and the
/// bytes fewer than 2^36.
bool is_in_words(const RowCopy& copy);

/// Copies between rows on the device, none of which overlap. Throws Error(device).
void copy_rows(std::span<const RowCopy> copies, cudaStream_t stream);

}  // namespace verbatim::cuda
