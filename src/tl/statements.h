// The statements of a program as CUDA C++: each block under its line of TL, in the words of
// src/backend/cuda/device/tiles.cuh and sums.cuh.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "tl/translation.h"

namespace verbatim::tl {

class Statements : public Translation {
 protected:
  explicit Statements(const Examined& found)
      : Translation(found), fold_(folded()), last_product_(last_product()) {}

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    const std::string text = fmt::format(format, std::forward<Args>(args)...);
    if (!text.empty()) out_.append(indent_, ' ').append(text);
    out_ += '\n';
  }
  void blank() { out_ += '\n'; }
  /// The line of TL that what follows stands for.
  void quote(Span at, const char* remark = "");

  /// What a program's parameters are in the code.
  void parameters();
  /// How the kernel that stands in `place` is loaded.
  void registration(const char* place, int arch, const std::string& arithmetic);
  static std::string reference(const Tensor& tensor);
  /// The loads of tiles, in front of the loop and in it.
  std::vector<const Step*> loads() const;
  /// The first of each tensor, which has one map however many copies it has.
  std::vector<const Step*> first_loads() const;
  /// A tensor's name in Maps.
  static std::string member(const Tensor& tensor) { return reference(tensor).substr(2); }
  /// struct Maps, of what TMA copies; and in `launch`, how they are made.
  void define_maps();
  void make_maps();
  void elementwise(const Step& step);
  std::string lse_at(const char* batch) const;
  /// The online softmax right in front of the Reshape of what it makes: the Reshape's code then
  /// does both, and looks for maxima only where it must (weigh() of tiles.cuh). None in e4m3, in
  /// which P has no room for that.
  const Step* softmax_of(const Step& reshape) const;
  bool rounds(const Step& softmax) const;  // whether it is such a one
  /// ", r_O": the sums that a softmax brings along.
  std::string rescaled(const Step& softmax) const;
  static std::string number(double value);

  /// The copies that the loop starts ahead, as lambdas.
  void define_copies();
  /// `first`: in front of the loop, whose first copies follow the last of these.
  void emit(const std::vector<Step>& steps, bool first);
  void loop();

  /// What `scale` of TL is in the code.
  const char* scale() const { return e4m3() ? "scale" : "p.scalars.scale"; }

  const Step* fold_;
  const Step* last_product_;
  std::string out_;
  size_t indent_ = 0;

 private:
  /// The first element that a Copy reads, its row stride, and how many rows count.
  struct Source {
    std::string at, stride, used;
  };
  Source source(const Tensor& tensor) const;
  /// What TMA copies; `buffer`: of a tile that has several.
  void copy_by_map(const Step& step, const std::string& buffer);
  void define_copy(const Step& step);
  void start_copies(const std::vector<Copies::Refill>& refills);

  void emit(const Step& step);
  void load(const Step& step);
  void load_numbers(const Step& step);
  void move(const Step& step);
  void reduce(const Step& step);
  void reshape(const Step& step);
  static bool of_v(const Step& reduce);
  void wait(const Step& step);
  void compute(const Step& step);
  void hide(int tile, const char* value);
  void gemm(const Step& step);
  void store(const Step& step);
};

}  // namespace verbatim::tl
