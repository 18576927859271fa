// What engines share whose ranks are processes or threads: calls that return when a rank is done,
// on whatever transport. Plans number their messages from 0; those of these calls are below.
#pragma once

#include <string>
#include <vector>

#include "dist/executor.h"
#include "dist/shard_memory.h"
#include "verbatim/error.h"

namespace verbatim::dist {

/// All ranks throw it alike: they do not fit together, or one has bad input.
class Refused : public Error {
 public:
  using Error::Error;
};

/// Compares the whole specifications of all ranks, JSON objects: version, problem, mask, options.
/// A fingerprint would not do, for it holds no scale, softcap or seed. Throws Refused at every rank
/// when one differs, naming the first member that does and the rank. A rank whose input is bad
/// gives that error instead; then all throw that, of its code.
void agree(Transport& transport, int32_t rank, int32_t world, const std::string& specification,
           const Error* bad_input = nullptr);

/// A message of a plan or of these calls, as errors name it: "message 3 of rank 1", or what rank 1
/// answers to which call.
std::string name_of_message(int64_t message, int32_t from);

/// Runs all steps of a rank. `home` are the tensors of its shard. An Error that a transfer raises
/// names rank and step.
void run_rank(const DistPlan& plan, int32_t rank, const Backend& backend, const LocalTensors& home,
              const RunOptions& run, Transport& transport, const RankRun& asked = {});

/// Copies the outputs of all shards to rank 0's tensors of the problem; a rank's own are copied to
/// its own, too. Returns the reports of all ranks at rank 0, elsewhere nothing.
std::vector<RankReport> gather(const DistPlan& plan, int32_t rank, ShardMemory& shard,
                               const RankReport& report, const LocalTensors& whole,
                               Transport& transport);

}  // namespace verbatim::dist
