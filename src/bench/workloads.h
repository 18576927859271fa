// What is timed and how: bench/workloads.json, which the Python benchmark reads, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace verbatim::bench {

/// The two protocols of measure().
struct Protocols {
  struct {
    double idle_s;
    size_t warm_up_calls, timed_calls;
  } rested;
  struct {
    double warm_up_s, timed_s;
  } sustained;
};
const Protocols& protocols();

/// A problem of a set: bf16, as many queries as keys.
struct Workload {
  std::string name, mask;
  nlohmann::ordered_json params;  // of the mask, as in masks::make()
  int64_t batch, seqlen, q_heads, kv_heads, head_dim;
};
std::vector<std::string> set_names();
/// The problems of one of them: every combination of its lists, the last list fastest.
std::vector<Workload> workloads(const std::string& set);

}  // namespace verbatim::bench
