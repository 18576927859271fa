// Every inline function of fmt's header (-fkeep-inline-functions), for the files that only declare
// them.
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>
