// Tensors from and to files: q, k, v, do in; o, lse, dq, dk, dv out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/tensor_file.h"
#include "options.h"
#include "selected.h"
#include "tensors.h"

namespace verbatim::app {

/// The files of --input, read whole.
class InputFiles {
 public:
  /// Each is a .safetensors file, "name=file.npy", or a .npy file called like its tensor. Throws
  /// Error naming the file, and the tensors it should hold, when one cannot be used.
  /// They may hold an index tensor, where there is one of this name.
  explicit InputFiles(const std::vector<std::string>& files, std::string index = "");

  /// `given` with what the tensors say filled in. Throws Error naming the option or the other
  /// tensor that says something else.
  ProblemOptions complete(ProblemOptions given) const;
  /// Copies the tensors over those of the same name.
  void load(Tensors& tensors);
  /// What the index tensor holds; nothing where no file has it.
  std::optional<Lists> lists() const;

 private:
  struct Source {
    std::string name;   // q, k, v, do, q_scale, k_scale, v_scale, or the index tensor's
    std::string shown;  // where it came from, for errors
    size_t file;
    std::string key;  // its name in that file
  };
  ProblemOptions complete_scales(ProblemOptions given) const;

  std::string index_;
  std::vector<TensorFile> files_;
  std::vector<Source> sources_;
};

/// Throws Error unless `path` is "" or one that save_outputs() can write, in files apart from those
/// of `beside` and of --input.
void check_output_file(const std::string& path, Dtype dtype, Passes passes,
                       const OutputOptions& beside, const std::vector<std::string>& input);
/// One .safetensors file, or path "x.npy" as x.o.npy, x.lse.npy, ...
void save_outputs(const std::string& path, const Tensors& tensors, Passes passes);

}  // namespace verbatim::app
