// libverbatim_mpi.so: the only file that is compiled with MPI.
#include "dist/mpi_library.h"

#include <mpi.h>

#include <deque>

namespace {

constexpr int kTag = 0;

std::deque<MPI_Request> requests;  // of sends, the oldest first
int64_t done = 0;
MPI_Message arrived_message;
int arrived_words = 0;

void start(int* rank, int* size) {
  MPI_Init(nullptr, nullptr);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
}

void send(int to, const int64_t* words, int64_t count) {
  MPI_Isend(words, static_cast<int>(count), MPI_INT64_T, to, kTag, MPI_COMM_WORLD,
            &requests.emplace_back());
}

int64_t sent() {
  while (!requests.empty()) {
    int complete = 0;
    MPI_Test(&requests.front(), &complete, MPI_STATUS_IGNORE);
    if (complete == 0) break;
    requests.pop_front();
    ++done;
  }
  return done;
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

void take(int64_t* words) {
  MPI_Mrecv(words, arrived_words, MPI_INT64_T, &arrived_message, MPI_STATUS_IGNORE);
}

void stop() { MPI_Finalize(); }

void abort_all(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

constexpr VerbatimMpi kLibrary{start, send, sent, arrived, take, stop, abort_all};

}  // namespace

extern "C" __attribute__((visibility("default"))) const VerbatimMpi* verbatim_mpi() {
  return &kLibrary;
}
