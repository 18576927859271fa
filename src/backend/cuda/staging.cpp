#include "backend/cuda/staging.h"

#include <string>

namespace verbatim::cuda {
namespace {

/// Bytes from the first element to the last, gaps included; 0 without elements.
int64_t span_bytes(const TensorView& view) {
  int64_t elements = 1;
  for (int d = 0; d < 4; ++d) {
    if (view.shape[d] == 0) return 0;
    elements += (view.shape[d] - 1) * view.stride[d];
  }
  return elements * size_of(view.dtype);
}

int64_t span_bytes(const RowView& rows) {
  return rows.shape[0] * rows.shape[1] * rows.shape[2] * static_cast<int64_t>(sizeof(float));
}

}  // namespace

bool on_host(const void* data, const Device& device) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data), "cuda.tensor");
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device.index) {
    throw Error(ErrorCode::invalid_argument, "cuda.tensor", "a tensor lies on another device",
                {"device", "cuda:" + std::to_string(attributes.device),
                 "cuda:" + std::to_string(device.index), ""});
  }
  return attributes.type == cudaMemoryTypeUnregistered || attributes.type == cudaMemoryTypeHost;
}

void* Staging::stage(void* data, int64_t bytes, bool is_output) {
  if (bytes == 0 || !on_host(data, device_)) return data;
  void* copy = memory_.emplace_back(std::make_unique<Scratch>(device_, bytes, stream_))->data();
  pending_ = true;
  // Outputs too: their gaps belong to the caller and come back as they were.
  check(cudaMemcpyAsync(copy, data, bytes, cudaMemcpyHostToDevice, stream_), "cuda.copy");
  if (is_output) outputs_.push_back({data, copy, static_cast<size_t>(bytes)});
  return copy;
}

TensorView Staging::input(const TensorView& view) {
  TensorView staged = view;
  staged.data = stage(view.data, span_bytes(view), false);
  if (view.scales)
    staged.scales = static_cast<const float*>(
        stage(const_cast<float*>(view.scales), view.shape[2] * int64_t{sizeof(float)}, false));
  return staged;
}
TensorView Staging::output(const TensorView& view) {
  TensorView staged = view;
  staged.data = stage(view.data, span_bytes(view), true);
  return staged;
}
RowView Staging::input(const RowView& rows) {
  RowView staged = rows;
  staged.data = static_cast<float*>(stage(rows.data, span_bytes(rows), false));
  return staged;
}
RowView Staging::output(const RowView& rows) {
  RowView staged = rows;
  staged.data = static_cast<float*>(stage(rows.data, span_bytes(rows), true));
  return staged;
}

Staging::~Staging() {
  if (pending_) cudaStreamSynchronize(stream_);
}

bool Staging::finish() {
  if (!pending_) return false;
  for (const Copy& copy : outputs_) {
    check(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDeviceToHost, stream_),
          "cuda.copy");
  }
  check(cudaStreamSynchronize(stream_), "cuda.copy");
  pending_ = false;
  return true;
}

}  // namespace verbatim::cuda
