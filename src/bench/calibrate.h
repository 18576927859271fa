// The numbers of a machine file, measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "bench/device.h"
#include "verbatim/schedule.h"

namespace verbatim::bench {

struct Calibration {
  Machine machine;
  std::vector<std::string> measured;  // fields of `machine` that are not the base's
};

/// The machine that `backend` on `device` is for one head dim and dtype. Times come from the
/// kernels themselves: more tiles in a chain give the time of a step, more chains the time around
/// it, one tile the start-up. Reductions, the memory behind L2 and the way of a flag come from
/// Device::hand_off(). Fields that cannot be seen from outside a kernel keep the value of `base`.
/// `say` is told what is being measured. Takes seconds. Throws Error (device) when other work
/// disturbed the measurements so much that a longer chain seems to take no longer.
Calibration calibrate(const Backend& backend, const Device& device, int64_t head_dim, Dtype dtype,
                      const Machine& base, const std::function<void(const std::string&)>& say);

}  // namespace verbatim::bench
