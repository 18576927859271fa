// A picture as SVG text. Colours are CSS classes, so that one style sheet serves pages, light and
// dark, and files of their own.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbatim::report {

class Picture {
 public:
  Picture(double width, double height) : width_(width), height_(height) {}

  enum class Anchor { start, middle, end };

  /// `css` names classes of palette.css; `tip` is shown while the pointer rests on the shape.
  void rect(double x, double y, double width, double height, std::string_view css,
            std::string_view tip = {});
  void line(double x1, double y1, double x2, double y2, std::string_view css);
  void polygon(const std::vector<std::pair<double, double>>& points, std::string_view css);
  void text(double x, double y, std::string_view content, std::string_view css = "label",
            Anchor anchor = Anchor::start);
  /// Text turned a quarter to the left around (x, y), centred.
  void vertical_text(double x, double y, std::string_view content, std::string_view css = "label");

  double width() const { return width_; }
  double height() const { return height_; }
  /// For a page. `title` is read aloud in place of the picture.
  std::string inline_svg(std::string_view title) const;
  /// A file of its own.
  std::string document(std::string_view title) const;

 private:
  std::string tag(std::string_view title, std::string_view extra) const;

  double width_, height_;
  std::string body_;
};

}  // namespace verbatim::report
