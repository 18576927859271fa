// Random compositions: entries of unequal lengths padded or packed into one problem, and each of
// them alone. What an entry's rows and keys get must be the same bits in both.
#pragma once

#include <string>
#include <vector>

#include "support/guarded_tensor.h"
#include "verbatim/verbatim.h"

namespace verbatim::test {

/// Bounds of what is drawn.
struct CompositionCaps {
  int64_t q_len = 5000, kv_len = 20000;  // of an entry; drawn log-uniformly, so most are shorter
  double work = 1e11;         // visible positions * query heads * head dim, all entries together
  double elements = 1 << 28;  // of all tensors of the composition together
  std::vector<int64_t> head_dims{64, 96, 128, 192};
  std::vector<Dtype> dtypes{Dtype::bf16, Dtype::f16};
};

enum class Arrangement {
  padded_right,  // batch entries, real rows and keys first
  padded_left,   // ... last
  packed,        // one batch entry, documents one behind the other
};

struct Composition {
  struct Entry {
    Problem problem;  // of batch size 1
    Mask mask;
    int64_t b, q_begin, k_begin;  // where its rows and keys lie in the composition
  };

  uint64_t seed = 0;
  Arrangement arrangement{};
  Problem problem;
  Mask mask;  // hides all rows and keys that belong to no entry
  std::vector<Entry> entries;

  /// The same composition for the same arguments, on every machine.
  static Composition draw(uint64_t seed, const CompositionCaps& caps = {});
  /// All of it in one line, for the message of a failure.
  std::string text() const;
};

/// Dense tensors of one problem in host memory.
struct HostTensors {
  GuardedTensor q, k, v, dout, o, lse, dq, dk, dv;

  /// All bytes 0xff.
  explicit HostTensors(const Problem& problem);
  ForwardTensors forward() const;
  BackwardTensors backward() const;
};

/// The inputs of an entry alone.
HostTensors tensors_of(const Composition& composition, size_t entry);
/// Those of all entries where they lie in the composition; NaN, infinities and large numbers in
/// every other row and key, and in all outputs.
HostTensors tensors_of(const Composition& composition);
/// The same garbage in the rows of o and lse that belong to no entry: to call after the forward.
void spoil_padding(const Composition& composition, const HostTensors& tensors);

/// Names the first row of the entry whose o, lse, dq, dk or dv differs by a bit, after both passes
/// over both; empty if none does.
std::string difference(const Composition& composition, size_t entry, const HostTensors& alone,
                       const HostTensors& all);
/// Names the first row or key that belongs to no entry and has other results than o, dq, dk, dv of
/// 0 and lse of -inf; empty if none has. Call it before spoil_padding() for o and lse.
std::string leak(const Composition& composition, const HostTensors& all, Pass pass);

}  // namespace verbatim::test
