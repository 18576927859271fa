#include "report/svg.h"

#include <fmt/format.h>

#include <iterator>

#include "report/format.h"

namespace verbatim::report {

// Heads take the eight hues h0..h7 in turn; the tone class separates neighbouring chains.
const std::string_view kPalette = R"(
:root{color-scheme:light dark;--paper:#fdfcf9;--card:#fff;--ink:#1d2733;--muted:#68737f;
--faint:#e4e2dc;--empty:#f1efe9;--full:#2a7f9e;--partial:#bfe0e6;--shape:#12506a;--wait:#d9483b;
--good:#2c7a4b;--bad:#c0392b;--accent:#1f6f8b}
@media (prefers-color-scheme:dark){:root{--paper:#14181d;--card:#1b2127;--ink:#e7e9ea;
--muted:#98a3ad;--faint:#303841;--empty:#1f262d;--full:#3d9cbd;--partial:#24505e;--shape:#9bd8ec;
--wait:#f0705f;--good:#6cc48c;--bad:#f0705f;--accent:#6bbdd8}}
svg{font-family:ui-sans-serif,system-ui,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
.paper{fill:var(--paper)}.empty{fill:var(--empty)}.full{fill:var(--full)}
.partial{fill:var(--partial)}.shape{fill:var(--shape);fill-opacity:.3}
.grid{stroke:var(--paper);stroke-width:1}.axis{stroke:var(--muted);stroke-width:1}
.break{stroke:var(--wait);stroke-width:1.2}.hair{stroke:var(--faint);stroke-width:1}
.frame{fill:none;stroke:var(--muted);stroke-width:1}
.label{fill:var(--muted);font-size:12px}.strong{fill:var(--ink);font-size:13px;font-weight:600}
.inside{fill:#fff;font-size:11px}.lane{fill:var(--empty)}
.wait{fill:var(--wait);fill-opacity:.55}.edge{fill:var(--muted);fill-opacity:.45}
.h0{fill:#2a7f9e}.h1{fill:#7a5ea8}.h2{fill:#c07a2c}.h3{fill:#3f8f5f}.h4{fill:#b2506d}
.h5{fill:#5674b9}.h6{fill:#8a8436}.h7{fill:#9a6450}.tone{fill-opacity:.78}.sum{fill-opacity:.5}
)";

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
