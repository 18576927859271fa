// libverbatim_mpi.so: the only file that is compiled with MPI.
#include "dist/mpi_library.h"

#include <mpi.h>

#include <map>

namespace {

constexpr int kTag = 0;

std::map<int64_t, MPI_Request> requests;  // by call
int64_t calls = 0;
MPI_Message arrived_message;
int arrived_words = 0;

void start(int* rank, int* size) {
  MPI_Init(nullptr, nullptr);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
}

int64_t send(int to, const int64_t* words, int64_t count) {
  MPI_Isend(words, static_cast<int>(count), MPI_INT64_T, to, kTag, MPI_COMM_WORLD,
            &requests[calls]);
  return calls++;
}

int64_t arrived(int* from) {
  int there = 0;
  MPI_Status status;
  MPI_Improbe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &there, &arrived_message, &status);
  if (there == 0) return -1;
  *from = status.MPI_SOURCE;
  MPI_Get_count(&status, MPI_INT64_T, &arrived_words);
  return arrived_words;
}

int64_t take(int64_t* words) {
  MPI_Imrecv(words, arrived_words, MPI_INT64_T, &arrived_message, &requests[calls]);
  return calls++;
}

bool done(int64_t call) {
  int complete = 0;
  MPI_Test(&requests.at(call), &complete, MPI_STATUS_IGNORE);
  if (complete != 0) requests.erase(call);
  return complete != 0;
}

void stop() { MPI_Finalize(); }

void abort_all(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

constexpr VerbatimMpi kLibrary{start, send, arrived, take, done, stop, abort_all};

}  // namespace

extern "C" __attribute__((visibility("default"))) const VerbatimMpi* verbatim_mpi() {
  return &kLibrary;
}
