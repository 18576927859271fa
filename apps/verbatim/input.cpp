#include "input.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

namespace verbatim::app {
namespace {

const std::vector<std::string> kNames{"q", "k", "v", "do", "q_scale", "k_scale", "v_scale"};

bool is_scale(const std::string& name) { return name.ends_with("_scale"); }

/// Sets `option` to what a tensor says, or checks that both agree.
void settle(std::optional<int64_t>& option, int64_t value, const std::string& argument,
            const std::string& source) {
  if (option && *option != value) {
    fail(fmt::format("does not fit {}", source),
         {argument, fmt::to_string(*option), fmt::to_string(value),
          fmt::format("{} {}", argument, value)});
  }
  option = value;
}

TensorFile read_input(const std::string& path) try {
  return read_tensor_file(path);
} catch (const Error& error) {  // of one file among several
  throw Error(error.code(), "--input " + path, error.what());
}

}  // namespace

InputFiles::InputFiles(const std::vector<std::string>& files, std::string index)
    : index_(std::move(index)) {
  std::vector<std::string> names = kNames;
  if (std::ranges::find(names, index_) != names.end())
    fail("the index tensor is called like an input",
         {"--kernel", fmt::format("param {} = index", index_), "another name", "sel"});
  if (!index_.empty()) names.push_back(index_);
  for (const std::string& file : files) {
    const size_t equals = file.find('=');
    const std::string path = equals == std::string::npos ? file : file.substr(equals + 1);
    files_.push_back(read_input(path));
    const bool npy = path.ends_with(".npy");
    for (const TensorFile::Entry& entry : files_.back().tensors) {
      const std::string name = equals != std::string::npos ? file.substr(0, equals)
                               : npy ? std::filesystem::path(path).stem().string()
                                     : entry.name;
      if (std::ranges::find(names, name) == names.end()) {
        // A file of everything may hold other tensors too; one .npy file is meant.
        if (!npy) continue;
        fail("the tensor has no role",
             {"--input", name, fmt::format("{}", fmt::join(names, ", ")), "q=" + path});
      }
      for (const Source& other : sources_) {
        if (other.name == name) {
          fail("a tensor is given twice", {"--input", name, "each name once", ""});
        }
      }
      if ((name == index_) != (entry.integer_bytes > 0))
        fail("a tensor has elements of another kind",
             {"--input", fmt::format("{} of {}", name, path),
              name == index_ ? "integers of 32 or 64 bits" : "f32, bf16, f16 or e4m3", ""});
      sources_.push_back(
          {name, fmt::format("{} of {}", name, path), files_.size() - 1, entry.name});
    }
    if (sources_.empty()) {
      fail("the file holds none of the inputs",
           {"--input", path, fmt::format("tensors named {}", fmt::join(names, ", ")), ""});
    }
  }
}

ProblemOptions InputFiles::complete(ProblemOptions given) const {
  for (const Source& source : sources_) {
    if (is_scale(source.name) || source.name == index_) continue;
    const TensorFile::Entry& entry = files_[source.file].at(source.key);
    if (entry.shape.size() != 4) {
      fail(
          "a tensor has four dimensions",
          {"--input", fmt::format("{} with shape ({})", source.shown, fmt::join(entry.shape, ", ")),
           "(batch, length, heads, dim)", ""});
    }
    const bool queries = source.name == "q" || source.name == "do";
    const bool values = source.name == "v" || source.name == "do";
    settle(given.batch, entry.shape[0], "--batch", source.shown);
    if (given.seqlen) settle(given.seqlen, entry.shape[1], "--seqlen", source.shown);
    settle(queries ? given.q_len : given.kv_len, entry.shape[1], queries ? "--q-len" : "--kv-len",
           source.shown);
    settle(queries ? given.q_heads : given.kv_heads, entry.shape[2],
           queries ? "--q-heads" : "--kv-heads", source.shown);
    settle(values ? given.head_dim_v : given.head_dim, entry.shape[3],
           values ? "--head-dim-v" : "--head-dim", source.shown);
    const std::string dtype(to_string(entry.dtype));
    if (given.dtype && *given.dtype != dtype) {
      fail(fmt::format("does not fit {}", source.shown),
           {"--dtype", *given.dtype, dtype, "--dtype " + dtype});
    }
    given.dtype = dtype;
  }
  return complete_scales(std::move(given));
}

ProblemOptions InputFiles::complete_scales(ProblemOptions given) const {
  for (const Source& source : sources_) {
    if (!is_scale(source.name)) continue;
    const TensorFile::Entry& entry = files_[source.file].at(source.key);
    if (entry.shape.size() != 1 || entry.dtype != Dtype::f32)
      fail("scales are numbers, one a head",
           {"--input",
            fmt::format("{} of {} with shape ({})", source.shown, to_string(entry.dtype),
                        fmt::join(entry.shape, ", ")),
            "f32 with shape (heads)", ""});
    if (given.dtype != "e4m3")
      fail("scales are of e4m3",
           {"--input", source.shown, "tensors of e4m3 beside it", "--dtype e4m3"});
    const bool queries = source.name == "q_scale";
    settle(queries ? given.q_heads : given.kv_heads, entry.shape[0],
           queries ? "--q-heads" : "--kv-heads", source.shown);
  }
  return given;
}

void InputFiles::load(Tensors& tensors) {
  for (const Source& source : sources_) {
    if (source.name == index_) continue;
    Tensor& target = source.name[0] == 'q'   ? tensors.q
                     : source.name[0] == 'k' ? tensors.k
                     : source.name[0] == 'v' ? tensors.v
                                             : tensors.dout;
    TensorFile& file = files_[source.file];
    if (is_scale(source.name)) {
      const TensorFile::Entry& entry = file.at(source.key);
      std::vector<float> scales(entry.shape[0]);
      std::memcpy(scales.data(), file.bytes.data() + entry.begin, scales.size() * sizeof(float));
      target.set_scales(std::move(scales));
      continue;
    }
    const TensorView from = file.view(source.key);
    int64_t elements = 1;
    for (const int64_t size : from.shape) elements *= size;
    std::memcpy(target.view().data, from.data, elements * size_of(from.dtype));
  }
}

std::optional<Lists> InputFiles::lists() const {
  const auto source = std::ranges::find(sources_, index_, &Source::name);
  if (source == sources_.end()) return {};
  const TensorFile::Entry& entry = files_[source->file].at(source->key);
  if (entry.shape.size() != 4)
    fail("an index tensor has four dimensions",
         {"--input", fmt::format("{} with shape ({})", source->shown, fmt::join(entry.shape, ", ")),
          "(batch, KV heads, tiles of queries, blocks)", ""});
  Lists lists{{}, {}, "file"};
  std::ranges::copy(entry.shape, lists.shape.begin());
  for (const int64_t block : files_[source->file].integers(source->key)) {
    if (block != static_cast<int32_t>(block))
      fail("an entry is no block", {"--input", fmt::format("{} in {}", block, source->shown),
                                    "a block, or -1 behind the last", "-1"});
    lists.entries.push_back(static_cast<int32_t>(block));
  }
  return lists;
}

namespace {

/// Of a tensor, where each has a file: "x.npy" is x.o.npy, x.lse.npy, ...
std::string file_of(const std::string& path, const std::string& tensor) {
  return path.substr(0, path.size() - std::string("npy").size()) + tensor + ".npy";
}

}  // namespace

void check_output_file(const std::string& path, Dtype dtype, Passes passes,
                       const OutputOptions& beside, const std::vector<std::string>& input) {
  // A file called ".safetensors" has no extension.
  if (path.empty() || std::filesystem::path(path).extension() == ".safetensors") return;
  if (path.ends_with(".npy")) {
    if (dtype != Dtype::f32 && dtype != Dtype::f16)
      fail(fmt::format("NumPy has no {}", to_string(dtype)),
           {"--output", path, "FILE.safetensors", path.substr(0, path.size() - 3) + "safetensors"});
    std::vector<Given> outputs{{"--json", beside.json}, {"--report", beside.report}}, inputs;
    for (const std::string& name : output_names(passes)) {
      outputs.emplace_back("--output", file_of(path, name));
      require_writable(outputs.back().second, "--output");
    }
    for (const std::string& file : input) inputs.emplace_back("--input", file);
    return require_apart(outputs, inputs);
  }
  fail("tensors are written by extension",
       {"--output", path, "FILE.safetensors or FILE.npy", path + ".safetensors"});
}

void save_outputs(const std::string& path, const Tensors& t, Passes passes) {
  std::vector<NamedTensor> outputs;
  for (const std::string& name : output_names(passes)) {
    if (name == "lse") {
      outputs.emplace_back(name, t.lse_view);
    } else {
      const Tensor& tensor = name == "o" ? t.o : name == "dq" ? t.dq : name == "dk" ? t.dk : t.dv;
      outputs.emplace_back(name, tensor.view());
    }
  }
  if (path.ends_with(".safetensors")) return write_tensor_file(path, outputs);
  for (const NamedTensor& output : outputs)
    write_tensor_file(file_of(path, output.name), {&output, 1});
}

}  // namespace verbatim::app
