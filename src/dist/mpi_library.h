// What libverbatim_mpi.so offers. It is compiled with MPI and loaded when asked for, so that
// nothing else needs MPI. An error of MPI ends all processes.
#pragma once

#include <cstdint>

struct VerbatimMpi {
  /// Comes before all others.
  void (*start)(int* rank, int* size);
  /// Sends `count` words, at most 2^31 - 1. They must stay until `sent` counts this call.
  void (*send)(int to, const int64_t* words, int64_t count);
  /// How many calls of `send`, the oldest first, are done with their words.
  int64_t (*sent)();
  /// Words of a frame that is there, and its sender; -1: none is.
  int64_t (*arrived)(int* from);
  /// Fills `words` with that frame.
  void (*take)(int64_t* words);
  /// Waits for all processes to stop.
  void (*stop)();
  /// Ends all processes.
  void (*abort)(int code);
};

/// The function `verbatim_mpi` of the library.
using VerbatimMpiFunction = const VerbatimMpi* (*)();
