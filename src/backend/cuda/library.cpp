#include "backend/cuda/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

namespace verbatim::cuda {
namespace {

constexpr const char* kOperation = "cuda.kernel";

const Library& open(const std::string& path) {
  // With a slash in it, so that it is not searched for elsewhere.
  const std::string whole = std::filesystem::absolute(path).string();
  void* handle = dlopen(whole.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw Error(ErrorCode::io, kOperation, dlerror());
  const auto* library = static_cast<const Library*>(dlsym(handle, "verbatim_library"));
  if (!library && dlsym(handle, "verbatim_selected"))
    throw Error(ErrorCode::unsupported, kOperation,
                "an index tensor names the blocks of the library's program: no plan runs it",
                {"kernel", path, "a library of a program whose blocks the plan names",
                 "verbatim run --device cpu, of the program"});
  if (!library)
    throw Error(ErrorCode::invalid_argument, kOperation, "the library holds no kernel",
                {"kernel", path, "what `verbatim tl build` makes", ""});
  if (library->version != kLibraryVersion)
    throw Error(ErrorCode::unsupported, kOperation, "the library is of another version",
                {"kernel", path, "one that this version has built",
                 "what `verbatim tl build` makes of its program"});
  return *library;
}

/// Empty when the library is for the problem and tile; else what it is for.
std::string lacks(const Library& library, const Problem& p, const TileShape& tile) {
  if (p.dtype == library.dtype && p.head_dim == library.head_dim &&
      p.head_dim_v == library.head_dim_v && tile == library.tile && p.softcap == 0 &&
      p.dropout == 0)
    return "";
  return fmt::format("dtype {}, head dims {} and {}, {}, no softcap, no dropout",
                     to_string(library.dtype), library.head_dim, library.head_dim_v,
                     tiles_of(library.tile));
}

/// The launch of either pass.
template <class Params>
auto launcher(const Library& library, cudaError_t (*start)(const Params&, const Start&)) {
  std::function<void(const Params&, const LaunchContext&)> launch;
  if (!start) return launch;
  launch = [&library, start](const Params& params, const LaunchContext& context) {
    int resident = 0;
    check(library.residents(&resident), library.name);
    const int64_t workers = workers_of(library.name, resident, context, params.plan.unit_count);
    check(start(params, {.workers = workers,
                         .together = context.together,
                         .empty_rows = context.empty_rows,
                         .stream = context.stream}),
          library.name);
  };
  return launch;
}

/// dQ in f32, rows without gaps.
int64_t dq_sum_floats(const Problem& problem, int32_t) { return problem.q_len * problem.head_dim; }

}  // namespace

LoadedKernel load_kernel(const std::string& path) {
  const Library& library = open(path);
  return {&library,
          {.name = library.name,
           .summary = "a library",
           .arch = library.arch,
           .family = library.arch == 90 ? 100 : 1000,  // wgmma is of 9.0 alone
           .pass = library.pass,
           .arithmetic = library.arithmetic,
           .lacks = [&library](const Problem& problem,
                               const TileShape& tile) { return lacks(library, problem, tile); },
           .shared_bytes = [&library](const Problem&,
                                      const TileShape&) { return library.shared_bytes; },
           .workspace_bytes =
               [&library](const Problem& problem, const PlanExtent& extent) {
                 return library.workspace_bytes
                            ? library.workspace_bytes(sizes_of(problem), extent.shared_tiles,
                                                      extent.piece)
                            : 0;
               },
           .dq_sum_floats = library.backward ? dq_sum_floats : nullptr,
           .forward = launcher<ForwardParams>(library, library.forward),
           .backward = launcher<BackwardParams>(library, library.backward)}};
}

}  // namespace verbatim::cuda
