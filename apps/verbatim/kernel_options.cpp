// --kernel: programs as they are, as libraries, and what becomes libraries on the way.
#include <fmt/format.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/selected.h"
#include "core/file.h"
#include "options.h"
#include "temporary_folder.h"
#include "tl/kernel.h"

namespace verbatim::app {
namespace {

bool is_library(const std::string& file) {
  return std::filesystem::path(file).extension() == ".so";
}

/// Of a library, as index_of_library(). Says of which option one is refused.
std::optional<std::string> index_in(const std::string& file) {
  try {
    return index_of_library(file);
  } catch (const Error& error) {
    throw Error(error.code(), "verbatim", fmt::format("--kernel: {}", error.what()));
  }
}

std::string build_for_now(const std::string& file, const std::string& level) {
  static const TemporaryFolder folder;
  const tl::Emitted emitted =
      tl::emit(read_text(file), file, {.target = {}, .level = level_from_string(level)});
  return tl::build(emitted, folder.path());
}

}  // namespace

void KernelOptions::add_to(Command command, const char* group) {
  command
      .add_option("--kernel", files,
                  "TL code (tl reason), one a pass, in place of the device's own kernels; "
                  "interpreted on the CPU, on a GPU built with nvcc or what tl build has built; a "
                  "pass without one runs as ever")
      .group(group)
      .type_name("FILE")
      .expected(1, 2);
}

std::optional<KernelOptions::Selected> KernelOptions::selected(const std::string& device) const {
  for (const std::string& file : files) {
    std::optional<std::string> index;
    if (!is_library(file))
      index = tl::examine(read_text(file), {}).kernel.index;
    else if (device_index(device) >= 0)
      index = index_in(file);
    if (!index || index->empty()) continue;
    if (files.size() > 1)
      fail("a program whose blocks an index tensor names runs alone",
           {"--kernel", fmt::format("{} programs", files.size()), "1", "--kernel " + file});
    return Selected{file, *std::move(index)};
  }
  return {};
}

std::string KernelOptions::runnable(const std::string& file, const std::string& device,
                                    const PlanningOptions& planning) {
  if (device_index(device) >= 0) {
    if (is_library(file)) return file;
    make_backend(device);  // which says that there is none before nvcc works for nothing
    return build_for_now(file, planning.level_name());
  }
  if (is_library(file))
    fail("a library runs on a GPU", {"--kernel", file, "TL code, or --device cuda", ""});
  const std::string text = read_text(file);
  const Level level = level_from_string(planning.level_name());
  tl::examine_code(text, file, {.target = {}, .level = level}, "tl.kernel");  // by its file's name
  return text;
}

std::vector<std::string> KernelOptions::read(const std::string& device,
                                             const PlanningOptions& planning) const {
  if (!files.empty() && !planning.arithmetic.empty())
    fail("a program has an arithmetic of its own",
         {"--arithmetic", planning.arithmetic, "--kernel without it", ""});
  if (const auto program = selected(device))
    fail("an index tensor names the blocks of the program: it runs without a plan",
         {"--kernel", fmt::format("param {} = index", program->index),
          "a program whose blocks the plan names", "verbatim run --pass forward"});
  std::vector<std::string> found;
  for (const std::string& file : files) found.push_back(runnable(file, device, planning));
  return found;
}

AttentionOptions KernelOptions::options_for(const std::string& device,
                                            const PlanningOptions& planning) const {
  std::vector<std::string> found = read(device, planning);
  AttentionOptions options = planning.make_both(device);
  if (!found.empty()) options.plan.arithmetic.clear();
  options.kernels = std::move(found);
  return options;
}

}  // namespace verbatim::app
