// VERBATIM_HD marks the few functions that host and kernels share.
#pragma once

#ifdef __CUDACC__
#define VERBATIM_HD __host__ __device__
#else
#define VERBATIM_HD
#endif
