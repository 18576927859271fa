// The part of the C interface about blocks of keys that lists name.
#include "c_api.h"
#include "core/json.h"
#include "verbatim/selected.h"

struct verbatim_selected {
  verbatim::Problem problem;
  verbatim::SelectedAttention attention;
};

namespace {

using namespace verbatim;
using namespace verbatim::c;
using Json = nlohmann::ordered_json;

constexpr const char* kCreate = "selected.create";

std::string text_or(const nlohmann::json& spec, const char* member, const char* otherwise) {
  return spec.contains(member) ? json_text(spec[member], member, kCreate) : otherwise;
}

verbatim_selected* make(const char* text) {
  const nlohmann::json spec = parse_json(text, kCreate);
  require_known_members(spec, {"problem", "mask", "kernel", "level", "device"}, kCreate);
  const Problem problem = problem_from_json(json_member(spec, "problem", kCreate).dump());
  const Mask mask = masks::make(json_member(spec, "mask", kCreate).dump(), problem.q_len,
                                problem.kv_len, problem.kv_heads);
  return new verbatim_selected{
      problem, SelectedAttention(problem, mask,
                                 json_text(json_member(spec, "kernel", kCreate), "kernel", kCreate),
                                 level_from_string(text_or(spec, "level", "invariant")),
                                 text_or(spec, "device", "cpu"))};
}

}  // namespace

extern "C" {

verbatim_status verbatim_selected_create(const char* spec, verbatim_selected** selected) {
  return guarded([&] {
    verbatim_selected*& made = given(selected, "selected");
    made = make(text_of(spec, "spec"));
  });
}

void verbatim_selected_destroy(verbatim_selected* selected) { delete selected; }

verbatim_status verbatim_selected_forward(const verbatim_selected* selected,
                                          const verbatim_forward_tensors* tensors,
                                          const verbatim_selected_blocks* blocks,
                                          const verbatim_run_options* run) {
  return guarded([&] {
    const verbatim_selected& own = given(selected, "selected");
    const auto& [data, shape] = given(blocks, "blocks");
    own.attention.forward(tensors_of(own.problem, given(tensors, "tensors")),
                          {data, {shape[0], shape[1], shape[2], shape[3]}}, run_of(run));
  });
}

verbatim_status verbatim_selected_describe(const verbatim_selected* selected, const char** json) {
  return answered(json, [&] {
    const SelectedAttention& attention = given(selected, "selected").attention;
    return Json{{"index", attention.index()},
                {"arithmetic", attention.arithmetic()},
                {"q_edges", attention.tiles().q_edges},
                {"kv_edges", attention.tiles().kv_edges}}
        .dump();
  });
}
}
