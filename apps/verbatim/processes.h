// One command in the processes of a world.
#pragma once

#include <exception>
#include <functional>
#include <memory>

#include "dist/processes.h"
#include "world.h"

namespace verbatim::app {

/// Exit codes of what could not be done.
constexpr int kBadInput = 2, kBroken = 3;

/// Whether this process prints and saves: of those that mpirun started only rank 0 does.
bool is_first_process();

/// Prints an error, if this is the first process of a world; returns the exit code.
int explain(const std::exception& error);
/// The same for a line that cannot be parsed, also when only one rank of a world was given it.
int refuse_usage(const Error& error);

/// What a command does with the other processes of its world; nullptr: alone.
using InProcesses = std::function<int(dist::Processes*)>;

/// Runs `command` alone, or in every process of the world; starts these for "local:N". Until
/// Processes::agree() an error of one is an error of all, printed once; later it ends all.
int in_world(const WorldOptions& options, const InProcesses& command);

/// The action of a command that has the member `world`.
template <class Command>
Action action_in_world(std::shared_ptr<Command> command) {
  return [command] {
    return in_world(command->world,
                    [&](dist::Processes* processes) { return command->run(processes); });
  };
}

}  // namespace verbatim::app
