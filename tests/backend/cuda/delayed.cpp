// Compiled into both programs: whether its Hopper backward stops for random whiles.
#include "backend/cuda/load.h"

const bool verbatim::test::kDelayed = DELAYED;
