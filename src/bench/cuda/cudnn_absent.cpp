// Stands in for cuDNN where its headers were not found.
#include "bench/cuda/cudnn.h"
#include "verbatim/error.h"

namespace verbatim::bench {

const CudnnFacts& cudnn_facts() {
  static const CudnnFacts facts{
      .version = "",
      .missing =
          "built without cuDNN (its headers and cudnn-frontend's go into CMAKE_INCLUDE_PATH)"};
  return facts;
}

Passes make_cudnn(const Device&, const Problem&, const Mask&, const Tensors&, bool) {
  throw Error(ErrorCode::unsupported, "bench.cudnn", cudnn_facts().missing);
}

}  // namespace verbatim::bench
