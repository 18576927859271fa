#include "report/svg.h"

#include <fmt/format.h>

#include <iterator>

#include "report/format.h"
#include "report/texts.h"

namespace verbatim::report {

void Picture::rect(double x, double y, double width, double height, std::string_view css,
                   std::string_view tip) {
  auto out = std::back_inserter(body_);
  fmt::format_to(out, R"(<rect class="{}" x="{:.6g}" y="{:.6g}" width="{:.6g}" height="{:.6g}")",
                 css, x, y, width, height);
  if (tip.empty()) {
    body_ += "/>\n";
  } else {
    fmt::format_to(out, "><title>{}</title></rect>\n", escape(tip));
  }
}

void Picture::line(double x1, double y1, double x2, double y2, std::string_view css) {
  fmt::format_to(std::back_inserter(body_),
                 R"(<line class="{}" x1="{:.6g}" y1="{:.6g}" x2="{:.6g}" y2="{:.6g}"/>)"
                 "\n",
                 css, x1, y1, x2, y2);
}

void Picture::polygon(const std::vector<std::pair<double, double>>& points, std::string_view css) {
  body_ += fmt::format(R"(<polygon class="{}" points=")", css);
  for (const auto& [x, y] : points) body_ += fmt::format("{:.6g},{:.6g} ", x, y);
  body_ += "\"/>\n";
}

void Picture::text(double x, double y, std::string_view content, std::string_view css,
                   Anchor anchor) {
  constexpr const char* kAnchors[] = {"start", "middle", "end"};
  fmt::format_to(std::back_inserter(body_),
                 R"(<text class="{}" x="{:.6g}" y="{:.6g}" text-anchor="{}">{}</text>)"
                 "\n",
                 css, x, y, kAnchors[static_cast<int>(anchor)], escape(content));
}

void Picture::vertical_text(double x, double y, std::string_view content, std::string_view css) {
  fmt::format_to(std::back_inserter(body_),
                 R"svg(<text class="{}" transform="translate({:.6g} {:.6g}) rotate(-90)")svg"
                 R"svg( text-anchor="middle">{}</text>)svg"
                 "\n",
                 css, x, y, escape(content));
}

std::string Picture::tag(std::string_view title, std::string_view extra) const {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.6g} {:.6g}" role="img" )"
      R"(aria-label="{}"{}>)"
      "\n",
      width_, height_, escape(title), extra);
}

std::string Picture::inline_svg(std::string_view title) const {
  return tag(title, {}) + body_ + "</svg>\n";
}

std::string Picture::document(std::string_view title) const {
  return tag(title, fmt::format(R"( width="{:.6g}" height="{:.6g}")", width_, height_)) +
         fmt::format("<title>{}</title>\n<style>{}</style>\n", escape(title), kPalette) +
         R"(<rect class="paper" width="100%" height="100%"/>)" + "\n" + body_ + "</svg>\n";
}

}  // namespace verbatim::report
