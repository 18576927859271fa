#include "dist/mpi.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>
#include <thread>
#include <utility>

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

Mpi::Mpi() : library_(load_mpi()) {
  library_.start(&rank_, &size_);
  const auto told = launched();
  if (!told || (told->rank == rank_ && told->size == size_)) return;
  library_.stop();
  throw Error(ErrorCode::unsupported, kOperation, "mpirun and the library for MPI do not agree",
              {"world", fmt::format("rank {} of {} by the library", rank_, size_),
               fmt::format("rank {} of {}, as OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE say",
                           told->rank, told->size),
               "the mpirun of that library's Open MPI"});
}

void Mpi::send(int32_t to, Words frame) {
  if (std::ssize(frame) > std::numeric_limits<int32_t>::max())
    throw Error(ErrorCode::unsupported, kOperation, "a message is too large",
                {"message", fmt::format("{} words of 8 bytes", frame.size()), "fewer than 2^31",
                 "more ranks"});
  drop_sent();
  Transfer& transfer = sending_.emplace_back(Transfer{to, std::move(frame), 0});
  transfer.call = library_.send(to, transfer.frame.data(), std::ssize(transfer.frame));
}

std::optional<Wire::Arrival> Mpi::poll() {
  drop_sent();
  int32_t from = 0;
  if (const int64_t words = library_.arrived(&from); words >= 0) {
    Transfer& transfer =
        receiving_.emplace_back(Transfer{from, Words(static_cast<size_t>(words)), 0});
    transfer.call = library_.take(transfer.frame.data());
  }
  // A short frame may overtake a long one of its sender here, so only the oldest of each counts.
  std::set<int32_t> waiting;
  for (auto at = receiving_.begin(); at != receiving_.end(); ++at) {
    if (!waiting.insert(at->peer).second || !library_.done(at->call)) continue;
    Arrival arrival{at->peer, std::move(at->frame)};
    receiving_.erase(at);
    return arrival;
  }
  return std::nullopt;
}

void Mpi::drop_sent() {
  sending_.remove_if([&](const Transfer& transfer) { return library_.done(transfer.call); });
}

void Mpi::stop() {
  while (drop_sent(), !sending_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  library_.stop();
}

void Mpi::abort(int code) {
  library_.abort(code);
  std::_Exit(code);
}

std::optional<Launched> launched() {
  const Launched found{number_in("OMPI_COMM_WORLD_RANK"), number_in("OMPI_COMM_WORLD_SIZE"),
                       std::max(1, number_in("OMPI_COMM_WORLD_LOCAL_SIZE")),
                       number_in("OMPI_COMM_WORLD_LOCAL_RANK")};
  return found.size > 0 ? std::optional(found) : std::nullopt;
}

}  // namespace verbatim::dist
