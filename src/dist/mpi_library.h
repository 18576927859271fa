// What libverbatim_mpi.so offers. It is compiled with MPI and loaded when asked for, so that
// nothing else needs MPI. An error of MPI ends all processes.
#pragma once

#include <cstdint>

struct VerbatimMpi {
  /// Comes before all others.
  void (*start)(int* rank, int* size);
  /// Starts to send `count` words, at most 2^31 - 1. Returns a number for `done`.
  int64_t (*send)(int to, const int64_t* words, int64_t count);
  /// Words of a frame that has come, and its sender; -1: none has.
  int64_t (*arrived)(int* from);
  /// Starts to fill `words` with that frame, which a busy sender may still have parts of. Returns a
  /// number for `done`.
  int64_t (*take)(int64_t* words);
  /// Whether MPI is done with the words of a call. To be asked until it is.
  bool (*done)(int64_t call);
  /// Waits for all processes to stop.
  void (*stop)();
  /// Ends all processes.
  void (*abort)(int code);
};

/// The function `verbatim_mpi` of the library.
using VerbatimMpiFunction = const VerbatimMpi* (*)();
