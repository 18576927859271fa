#include "tensor_file_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbatim::check_tensor_file(data, size, verbatim::parse_npy);
  return 0;
}
