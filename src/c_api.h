// What the files of the C interface share.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "verbatim/c.h"
#include "verbatim/verbatim.h"

struct verbatim_attention {
  verbatim::Attention attention;
  std::string device;
};

namespace verbatim::c {

/// Keeps the message for verbatim_last_error().
verbatim_status failed(const std::exception& error) noexcept;
/// Keeps the text until this thread's next one.
const char* answer(std::string text);

/// Throws Error naming the argument that is NULL.
[[noreturn]] void refuse_null(const char* argument, const char* expected);

/// What `pointer` points to. Throws Error naming the argument where it is NULL.
template <class T>
T& given(T* pointer, const char* argument) {
  if (!pointer) refuse_null(argument, "an address");
  return *pointer;
}

/// Runs `action`; an exception becomes a status and a message.
template <class Action>
verbatim_status guarded(Action action) {
  try {
    action();
    return verbatim_ok;
  } catch (const std::exception& error) {
    return failed(error);
  }
}

/// The same for actions that make a text.
template <class Action>
verbatim_status answered(const char** text, Action action) {
  return guarded([&] {
    const char*& result = given(text, "the address of the resulting text");
    result = answer(action());
  });
}

/// `text`. Throws Error naming the argument where it is NULL.
const char* text_of(const char* text, const char* argument);

/// `size`. Throws Error naming the argument where it is out of range.
int64_t in_range(const char* operation, const char* argument, int64_t size, int64_t least,
                 int64_t most);

/// The two numbers of member "tile": queries and keys.
TileShape tile_of(const nlohmann::json& json, const char* operation);

/// `problem` is that of the tensors.
ForwardTensors tensors_of(const Problem& problem, const verbatim_forward_tensors& t);
BackwardTensors tensors_of(const Problem& problem, const verbatim_backward_tensors& t);
RunOptions run_of(const verbatim_run_options* run);

/// What the members say that verbatim_attention_create() knows.
struct Asked {
  Problem problem;
  Mask mask;
  AttentionOptions options;
};
Asked asked_of(const nlohmann::json& spec, const char* operation);
/// A pass of it, as verbatim_attention_describe() has it.
nlohmann::ordered_json describe_pass(const Attention& attention, Pass pass);

}  // namespace verbatim::c
