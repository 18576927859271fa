#include "dist/mpi.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <thread>

#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

constexpr const char* kOperation = "dist.mpi";

const VerbatimMpi* find_library() {
  const char* const given = std::getenv("VERBATIM_MPI");
  std::error_code none;
  const std::string path =
      given ? given
            : (std::filesystem::read_symlink("/proc/self/exe", none).parent_path() /
               "libverbatim_mpi.so")
                  .string();
  void* file = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);  // MPI's own plug-ins look there
  void* function = file ? dlsym(file, "verbatim_mpi") : nullptr;
  if (!function)
    throw Error(ErrorCode::unsupported, kOperation, "the library for MPI cannot be loaded",
                {"world", dlerror(), "a build that found MPI, or its path in VERBATIM_MPI",
                 "the engine replay"});
  return reinterpret_cast<VerbatimMpiFunction>(function)();
}

int32_t number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? std::atoi(text) : 0;
}

}  // namespace

const VerbatimMpi& load_mpi() {
  static const VerbatimMpi* const library = find_library();
  return *library;
}

Mpi::Mpi() : library_(load_mpi()) { library_.start(&rank_, &size_); }

void Mpi::send(int32_t to, Words frame) {
  if (std::ssize(frame) > std::numeric_limits<int32_t>::max())
    throw Error(ErrorCode::unsupported, kOperation, "a message is too large",
                {"message", fmt::format("{} words of 8 bytes", frame.size()), "fewer than 2^31",
                 "more ranks"});
  drop_sent();
  frames_.push_back(std::move(frame));
  library_.send(to, frames_.back().data(), std::ssize(frames_.back()));
}

std::optional<Wire::Arrival> Mpi::poll() {
  drop_sent();
  Arrival arrival;
  const int64_t words = library_.arrived(&arrival.from);
  if (words < 0) return std::nullopt;
  arrival.frame.resize(static_cast<size_t>(words));
  library_.take(arrival.frame.data());
  return arrival;
}

void Mpi::drop_sent() {
  for (const int64_t sent = library_.sent(); dropped_ < sent; ++dropped_) frames_.pop_front();
}

void Mpi::stop() {
  while (drop_sent(), !frames_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  library_.stop();
}

void Mpi::abort(int code) {
  library_.abort(code);
  std::_Exit(code);
}

std::optional<Launched> launched() {
  const Launched found{number_in("OMPI_COMM_WORLD_RANK"), number_in("OMPI_COMM_WORLD_SIZE"),
                       number_in("OMPI_COMM_WORLD_LOCAL_SIZE")};
  return found.size > 0 ? std::optional(found) : std::nullopt;
}

}  // namespace verbatim::dist
