#include "backend/cuda/copy_rows.h"

#include <algorithm>

#include "backend/cuda/launch.cuh"

namespace verbatim::cuda {
namespace {

constexpr int kThreads = 256, kWordsAThread = 4, kWordsACta = kThreads * kWordsAThread;
constexpr int kMostCopies = 64;  // as many as parameters hold

struct Copy {
  uint4* to;
  const uint4* from;
  int64_t to_apart, from_apart;  // words from row to row
  uint32_t words;                // of a row
  int64_t end;                   // words of all copies up to this one
};
struct Copies {
  Copy each[kMostCopies];
  int32_t count;
};

__global__ void __launch_bounds__(kThreads) copy_words(const __grid_constant__ Copies p) {
  int64_t word = int64_t{blockIdx.x} * kWordsACta + threadIdx.x;
  int32_t c = 0;  // the copy that has it
#pragma unroll
  for (int32_t step = kMostCopies / 2; step > 0; step /= 2)
    if (c + step < p.count && p.each[c + step - 1].end <= word) c += step;
  uint4 words[kWordsAThread];
  uint4* places[kWordsAThread];
#pragma unroll
  for (int i = 0; i < kWordsAThread; ++i, word += kThreads) {
    while (c < p.count && p.each[c].end <= word) ++c;
    places[i] = nullptr;
    if (c == p.count) continue;
    const Copy& copy = p.each[c];
    const auto at = static_cast<uint32_t>(word - (c > 0 ? p.each[c - 1].end : 0));
    const uint32_t row = at / copy.words, column = at % copy.words;
    words[i] = copy.from[row * copy.from_apart + column];
    places[i] = copy.to + row * copy.to_apart + column;
  }
#pragma unroll
  for (int i = 0; i < kWordsAThread; ++i)
    if (places[i]) *places[i] = words[i];
}

}  // namespace

bool is_in_words(const RowCopy& copy) {
  const auto whole = [](int64_t bytes) { return bytes % int64_t{sizeof(uint4)} == 0; };
  const auto in_words = [&](const ByteRows& rows) {
    return whole(reinterpret_cast<intptr_t>(rows.at)) && whole(rows.bytes) && whole(rows.apart);
  };
  return in_words(copy.to) && in_words(copy.from) &&
         copy.to.rows * copy.to.bytes < int64_t{1} << 36;
}

void copy_rows(std::span<const RowCopy> copies, cudaStream_t stream) {
  constexpr int64_t kWord = sizeof(uint4);
  while (!copies.empty()) {
    const size_t count = std::min<size_t>(copies.size(), kMostCopies);
    Copies some{.count = static_cast<int32_t>(count)};
    int64_t words = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto& [to, from] = copies[i];
      words += to.rows * to.bytes / kWord;
      some.each[i] = {.to = reinterpret_cast<uint4*>(to.at),
                      .from = reinterpret_cast<const uint4*>(from.at),
                      .to_apart = to.apart / kWord,
                      .from_apart = from.apart / kWord,
                      .words = static_cast<uint32_t>(to.bytes / kWord),
                      .end = words};
    }
    launch_threads("cuda.copy_rows", copy_words, kThreads,
                   (words + kWordsAThread - 1) / kWordsAThread, stream, some);
    copies = copies.subspan(count);
  }
}

}  // namespace verbatim::cuda
