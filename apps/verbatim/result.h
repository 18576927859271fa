// The JSON that commands save and pages are made from (docs/schema.md), and terminal output.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/device.h"
#include "options.h"
#include "report/table.h"
#include "verbatim/verbatim.h"

namespace verbatim::app {

using Json = nlohmann::ordered_json;

/// A result starts with the command, the tool's version and the arguments it was given.
Json new_result(const std::string& command);
/// Called once by main with everything behind the tool's name.
void remember_arguments(int count, const char* const* arguments);
const std::vector<std::string>& arguments();

Json describe(const Problem& problem);
/// Name, parameters, exact area, tile classes of the first head, and the slices when they are few.
Json describe(const Mask& mask, const Problem& problem, TileShape tile);
Json describe(const Plan& plan, const Simulation& simulation, const Machine& machine,
              double plan_seconds);

Json describe(const bench::Facts& facts);

/// Floating-point operations of a pass by the mask's exact area: 4 * area * head dim forward (2 for
/// each of QK^T and PV), 2.5 times that backward.
double flops(const Problem& problem, const Mask& mask, Pass pass);

/// Middle of the sorted values, of which there is one at least; of an even number, the lower one.
double median(std::vector<double> values);

/// Writes the files that were asked for, each whole or not at all.
void save(const OutputOptions& output, const Json& result);

/// Lines of progress on stderr, only while a person watches it; gone when it ends.
class Progress {
 public:
  Progress();
  ~Progress();
  void say(const std::string& what);

 private:
  bool on_;
};

/// "causal_document, 4096 tokens, 8:2 heads of 64, bf16": the first line of every table.
std::string headline(const Problem& problem, const Mask& mask);

}  // namespace verbatim::app
