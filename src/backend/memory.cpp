// Memory of backends that compute on the host.
#include <chrono>
#include <cstring>

#include "backend/backend.h"

namespace verbatim {
namespace {

/// Of a backend that has ended its work when a call returns.
class HostMoment final : public Moment {
  using Clock = std::chrono::steady_clock;

 public:
  double seconds_since(const Moment& earlier) const override {
    return std::chrono::duration<double>(at_ - static_cast<const HostMoment&>(earlier).at_).count();
  }

 private:
  Clock::time_point at_ = Clock::now();
};

}  // namespace

std::unique_ptr<Moment> Backend::moment(const RunOptions&) const {
  return std::make_unique<HostMoment>();
}

std::shared_ptr<std::byte> Backend::allocate(int64_t bytes, const RunOptions&) const {
  return allocate_on_host(bytes);
}

std::shared_ptr<std::byte> Backend::allocate_on_host(int64_t bytes) const {
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

void Backend::fill(const ByteRows& rows, uint8_t value, const RunOptions&) const {
  for (int64_t r = 0; r < rows.rows; ++r) std::memset(rows.at + r * rows.apart, value, rows.bytes);
}

void Backend::copy(const ByteRows& to, const ByteRows& from, const RunOptions&) const {
  if (to.bytes == 0) return;  // rows of nothing may lie nowhere
  for (int64_t r = 0; r < to.rows; ++r)
    std::memcpy(to.at + r * to.apart, from.at + r * from.apart, to.bytes);
}

void Backend::copy(std::span<const RowCopy> copies, const RunOptions& run) const {
  for (const RowCopy& copy : copies) this->copy(copy.to, copy.from, run);
}

}  // namespace verbatim
