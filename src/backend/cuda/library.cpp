#include "backend/cuda/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <type_traits>
#include <utility>

#include "backend/selected.h"

namespace verbatim::cuda {
namespace {

constexpr const char* kOperation = "cuda.kernel";

void* open(const std::string& path) {
  // With a slash in it, so that it is not searched for elsewhere.
  std::error_code no_path;  // of a path that is empty
  const std::string whole = std::filesystem::absolute(path, no_path).string();
  void* handle = no_path ? nullptr : dlopen(whole.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw Error(ErrorCode::io, kOperation, "it is no library",
                {"kernel", no_path ? no_path.message() : dlerror(),
                 "what `verbatim tl build` makes", "TL code"});
  return handle;
}

/// What a library exports, or null.
template <class AnyLibrary>
const AnyLibrary* exported(void* handle, const LibraryVersion& version, const std::string& path) {
  constexpr bool kSelected = std::is_same_v<AnyLibrary, SelectedLibrary>;
  const auto* library = static_cast<const AnyLibrary*>(
      dlsym(handle, kSelected ? "verbatim_selected" : "verbatim_library"));
  if (library && library->version != version)
    throw Error(ErrorCode::unsupported, kOperation, "the library is of another version",
                {"kernel", path, "one that this version has built",
                 "what `verbatim tl build` makes of its program"});
  return library;
}
const Library* planned(void* handle, const std::string& path) {
  return exported<Library>(handle, kLibraryVersion, path);
}
const SelectedLibrary* selected(void* handle, const std::string& path) {
  return exported<SelectedLibrary>(handle, kSelectedVersion, path);
}

[[noreturn]] void refuse_empty(const std::string& path) {
  throw Error(ErrorCode::invalid_argument, kOperation, "the library holds no kernel",
              {"kernel", path, "what `verbatim tl build` makes", "TL code"});
}

/// Empty when the library is for the problem and tile; else what it is for.
template <class AnyLibrary>
std::string lacks(const AnyLibrary& library, const Problem& p, const TileShape& tile) {
  if (p.dtype == library.dtype && p.head_dim == library.head_dim &&
      p.head_dim_v == library.head_dim_v && tile == library.tile && p.softcap == 0 &&
      p.dropout == 0)
    return "";
  return fmt::format("dtype {}, head dims {} and {}, {}, no softcap, no dropout",
                     to_string(library.dtype), library.head_dim, library.head_dim_v,
                     tiles_of(library.tile));
}

/// What a kernel is, but for its pass and launches.
template <class AnyLibrary>
Kernel described(const AnyLibrary& library) {
  return {
      .name = library.name,
      .summary = "a library",
      .arch = library.arch,
      .family = library.arch == 90 ? 100 : 1000,  // wgmma is of 9.0 alone
      .pass = Pass::forward,
      .arithmetic = library.arithmetic,
      .lacks = [&library](const Problem& problem,
                          const TileShape& tile) { return lacks(library, problem, tile); },
      .shared_bytes = [&library](const Problem&, const TileShape&) { return library.shared_bytes; },
      .workspace_bytes = {},
      .forward = {},
      .backward = {}};
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
  void* handle = open(path);
  const Library* found = planned(handle, path);
  if (!found && selected(handle, path))
    throw Error(ErrorCode::unsupported, kOperation,
                "an index tensor names the blocks of the library's program: no plan runs it",
                {"kernel", path, "a library of a program whose blocks the plan names",
                 "verbatim run --pass forward"});
  if (!found) refuse_empty(path);
  const Library& library = *found;
  Kernel kernel = described(library);
  kernel.pass = library.pass;
  kernel.workspace_bytes = [&library](const Problem& problem, const PlanExtent& extent) {
    return library.workspace_bytes
               ? library.workspace_bytes(sizes_of(problem), extent.tile_sums, extent.piece)
               : 0;
  };
  kernel.dq_sum_floats = library.backward ? dq_sum_floats : nullptr;
  kernel.forward = launcher<ForwardParams>(library, library.forward);
  kernel.backward = launcher<BackwardParams>(library, library.backward);
  return {&library, std::move(kernel)};
}

LoadedSelected load_selected(const std::string& path) {
  void* handle = open(path);
  const SelectedLibrary* library = selected(handle, path);
  if (!library && planned(handle, path))
    throw Error(ErrorCode::unsupported, kOperation, "a plan names the blocks of the program",
                {"kernel", path, "a library of a program with `param sel = index`", ""});
  if (!library) refuse_empty(path);
  return {library, described(*library)};
}

}  // namespace verbatim::cuda

namespace verbatim {

std::optional<std::string> index_of_library(const std::string& path) {
  void* handle = cuda::open(path);
  if (const cuda::SelectedLibrary* library = cuda::selected(handle, path)) return library->index;
  if (!cuda::planned(handle, path)) cuda::refuse_empty(path);
  return std::nullopt;
}

}  // namespace verbatim
