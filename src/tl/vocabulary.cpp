#include "tl/vocabulary.h"

#include <algorithm>
#include <array>
#include <utility>

namespace verbatim::tl {
namespace {

using enum Tensor::Role;

constexpr std::array kTensors{
    Tensor{"Q", true, "HeadDim", in, in},        Tensor{"K", false, "HeadDim", in, in},
    Tensor{"V", false, "HeadDimV", in, in},      Tensor{"O", true, "HeadDimV", out, absent},
    Tensor{"L", true, nullptr, out, in},                                                  // LSE
    Tensor{"dO", true, "HeadDimV", absent, in},  Tensor{"D", true, nullptr, absent, in},  // delta
    Tensor{"dQ", true, "HeadDim", absent, out},  Tensor{"dK", false, "HeadDim", absent, out},
    Tensor{"dV", false, "HeadDimV", absent, out}};

constexpr std::array<std::pair<std::string_view, Operation>, 9> kOperations{
    {{"GEMM", Operation::gemm},
     {"Fill", Operation::fill},
     {"Add", Operation::add},
     {"Subtract", Operation::subtract},
     {"Multiply", Operation::multiply},
     {"Divide", Operation::divide},
     {"Mask", Operation::mask},
     {"Softmax", Operation::softmax},
     {"LogSumExp", Operation::logsumexp}}};

constexpr std::array kIndexMasks{"causal", "causal_document"};

}  // namespace

std::span<const Tensor> tensors() { return kTensors; }

std::span<const char* const> index_masks() { return kIndexMasks; }

const Tensor* find_tensor(std::string_view name) {
  const auto found = std::ranges::find(kTensors, name, &Tensor::name);
  return found == kTensors.end() ? nullptr : &*found;
}

std::optional<Operation> find_operation(std::string_view word) {
  for (const auto& [known, operation] : kOperations)
    if (known == word) return operation;
  return std::nullopt;
}

std::vector<std::string> operation_words() {
  std::vector<std::string> words;
  for (const auto& [word, operation] : kOperations) words.emplace_back(word);
  return words;
}

}  // namespace verbatim::tl
