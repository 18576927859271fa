// One command in the processes of a world.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "dist/processes.h"
#include "world.h"

namespace verbatim::app {

constexpr int kBadInput = 2, kBroken = 3;  // exit codes

/// Prints a message to stderr. Of processes that mpirun started only rank 0 does: what it finds
/// wrong all do.
void complain(const std::string& message);
/// Prints an error likewise; returns its exit code.
int explain(const std::exception& error);
/// Whether this process prints and saves results.
bool is_first_process();

/// What a command does with the other processes of its world; nullptr: alone.
using InProcesses = std::function<int(dist::Processes*)>;

/// Runs `command` alone, or in every process of the world; starts these for "local:N". Until
/// Processes::agree() an error of one is an error of all, printed once; later it ends all.
int in_world(const WorldOptions& options, const InProcesses& command);

}  // namespace verbatim::app
