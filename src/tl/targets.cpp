// What the checker and the reasoning know of a GPU. Sources: CUDA C++ Programming Guide, table of
// technical specifications per compute capability; PTX ISA, shapes of mma and wgmma.
#include <array>
#include <vector>

#include "core/names.h"
#include "verbatim/error.h"
#include "verbatim/tl.h"

namespace verbatim::tl {
namespace {

constexpr int64_t kKiB = 1024, kRegisters = 65536, kPerThread = 255;

constexpr std::array kTargets{
    Target{.name = "t4",
           .summary = "T4, sm_75: mma.sync m16n8k8 in f16, no copies in the background",
           .shared_bytes = 64 * kKiB,
           .registers = kRegisters,
           .registers_per_thread = kPerThread,
           .mma = {.m = 16, .n = 8, .k = 8, .warps = 1},
           .bf16 = false,
           .async_copies = false},
    Target{.name = "rtx8000",
           .summary = "RTX 8000, sm_75: as t4",
           .shared_bytes = 64 * kKiB,
           .registers = kRegisters,
           .registers_per_thread = kPerThread,
           .mma = {.m = 16, .n = 8, .k = 8, .warps = 1},
           .bf16 = false,
           .async_copies = false},
    Target{.name = "a100",
           .summary = "A100, sm_80: mma.sync m16n8k16, cp.async",
           .shared_bytes = 163 * kKiB,
           .registers = kRegisters,
           .registers_per_thread = kPerThread,
           .mma = {.m = 16, .n = 8, .k = 16, .warps = 1},
           .bf16 = true,
           .async_copies = true},
    Target{.name = "l40s",
           .summary = "L40S, sm_89: mma.sync m16n8k16, of e4m3 m16n8k32, cp.async",
           .shared_bytes = 99 * kKiB,
           .registers = kRegisters,
           .registers_per_thread = kPerThread,
           .mma = {.m = 16, .n = 8, .k = 16, .warps = 1},
           .bf16 = true,
           .async_copies = true,
           .e4m3 = true},
    Target{.name = "h200",
           .summary = "H200, sm_90a: wgmma m64nNk16 of four warps, of e4m3 m64nNk32, TMA",
           .shared_bytes = 227 * kKiB,
           .registers = kRegisters,
           .registers_per_thread = kPerThread,
           .mma = {.m = 64, .n = 8, .k = 16, .warps = 4},
           .bf16 = true,
           .async_copies = true,
           .e4m3 = true}};

}  // namespace

std::span<const Target> targets() { return kTargets; }

bool Target::takes(Dtype dtype) const {
  return dtype == Dtype::f16 || (dtype == Dtype::bf16 && bf16) || (dtype == Dtype::e4m3 && e4m3);
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
  for (const Target& target : kTargets) {
    if (name == target.name) return target;
    known.emplace_back(target.name);
    all += (all.empty() ? "" : ", ") + known.back();
  }
  throw Error(ErrorCode::invalid_argument, "tl", "there is no such target",
              {"target", "'" + std::string(name) + "'", all, nearest_name(name, known)});
}

}  // namespace verbatim::tl
