// The same sums for fewer workers: chains whose tasks wait for later ones, cut where they wait.
#pragma once

#include <memory>

#include "verbatim/plan.h"

namespace verbatim::order {

/// `order` with every sum as it was, and chains cut between two runs wherever their task would wait
/// for a later one: the pieces continue each other (Chain::continues). Any number of workers can
/// run it, where the whole chains of a rotation must all be under way at once. Null if a cut would
/// have to go through a run.
std::shared_ptr<const HeadOrder> cut_at_waits(const HeadOrder& order);

}  // namespace verbatim::order
