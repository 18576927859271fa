// MPI as a wire. The library that knows MPI is loaded when it is asked for.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dist/mpi_library.h"
#include "dist/wire.h"

namespace verbatim::dist {

/// libverbatim_mpi.so: $VERBATIM_MPI, else beside the program. Throws Error(unsupported) saying
/// what is missing.
const VerbatimMpi& load_mpi();

/// The ranks that mpirun started. One object a process.
class Mpi final : public Wire {
 public:
  /// Throws as load_mpi() does, and where MPI has other ranks than mpirun told, as where these are
  /// of two installations and each process is alone.
  Mpi();
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }
  /// At most 16 GiB; more throws Error(unsupported).
  void send(int32_t to, Words frame) override;
  std::optional<Arrival> poll() override;
  /// Waits for all ranks. Sends nothing afterwards.
  void stop();
  /// Ends the processes of all ranks, this one with them.
  [[noreturn]] void abort(int code);

 private:
  struct Transfer {
    int32_t peer;
    Words frame;
    int64_t call;  // of the library
  };
  void drop_sent();

  const VerbatimMpi& library_;
  int rank_ = 0, size_ = 0;
  std::list<Transfer> sending_, receiving_;  // the oldest first
};

/// What mpirun told this process, before MPI is loaded; nothing: it did not start it.
struct Launched {
  int32_t rank, size;
  int32_t beside;  // ranks on this machine ...
  int32_t place;   // ... and its number among them
};
std::optional<Launched> launched();

/// What rank 0 writes to stderr when it has done all that its command asks for, where launch()
/// started it and reads that.
constexpr std::string_view kDone = "verbatim.done";
bool launcher_reads();

using Say = std::function<void(std::string_view)>;

/// Runs `command` as `ranks` processes on this machine by mpirun, which must be on PATH, and waits
/// until all of them are gone, and all other children of this process. Calls `print` with what they
/// print, as it comes, and `say` once if anything fails: with the first line of a rank that starts
/// with "verbatim: ", else with what mpirun tells, as which rank was killed. Returns the exit code
/// of the ranks, or 3 when processes failed. Throws Error(unsupported) when there is no launcher or
/// no library, or in a process that launch() started, which then is no rank; Error(device) when
/// mpirun ended well and rank 0 has not written kDone.
int launch(int32_t ranks, std::span<const std::string> command, const Say& print, const Say& say);

}  // namespace verbatim::dist
