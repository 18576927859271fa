#include "backend/cuda/load.h"

const bool verbatim::test::kDelayed = false;
