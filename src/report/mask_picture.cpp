#include "report/mask_picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/format.h"

namespace verbatim::report {
namespace {

constexpr double kPlane = 420;      // pixels of the longer axis
constexpr double kMargin = 56;      // left and top, for the axis labels
constexpr double kLegend = 76;      // below the plane
constexpr int32_t kMaxTiles = 160;  // tiles along an axis that are drawn one by one
constexpr size_t kMaxShapes = 4000;

using Points = std::vector<std::pair<double, double>>;

/// Keeps the part of a convex polygon where a * q + b * k <= c.
Points clip(const Points& polygon, double a, double b, double c) {
  Points kept;
  for (size_t i = 0; i < polygon.size(); ++i) {
    const auto [k0, q0] = polygon[i];
    const auto [k1, q1] = polygon[(i + 1) % polygon.size()];
    const double d0 = a * q0 + b * k0 - c, d1 = a * q1 + b * k1 - c;
    if (d0 <= 0) kept.emplace_back(k0, q0);
    if ((d0 < 0 && d1 > 0) || (d0 > 0 && d1 < 0)) {
      const double t = d0 / (d0 - d1);
      kept.emplace_back(k0 + t * (k1 - k0), q0 + t * (q1 - q0));
    }
  }
  return kept;
}

/// Corners (k, q) of a slice, positions drawn as unit squares and the band's stairs as a line.
Points outline(const Slice& slice) {
  const auto q0 = static_cast<double>(slice.q_begin), q1 = static_cast<double>(slice.q_end);
  const auto k0 = static_cast<double>(slice.k_begin), k1 = static_cast<double>(slice.k_end);
  Points points{{k0, q0}, {k1, q0}, {k1, q1}, {k0, q1}};
  if (slice.hi < slice.k_end - slice.q_begin) {
    points = clip(points, -1, 1, static_cast<double>(slice.hi) + 0.5);
  }
  if (slice.lo > slice.k_begin - slice.q_end) {
    points = clip(points, 1, -1, 0.5 - static_cast<double>(slice.lo));
  }
  return points;
}

/// The shape, doubled without its breaks until both axes have few enough cells to draw.
TileMap drawable(const HeadMask& mask, TileShape shape, bool* coarse) {
  const auto fits = [](const TileMap& tiles) {
    return tiles.q_tiles() <= kMaxTiles && tiles.kv_tiles() <= kMaxTiles;
  };
  TileMap tiles(mask, shape);
  *coarse = !fits(tiles);
  if (!*coarse) return tiles;
  HeadMask unbroken = mask;
  unbroken.q_breaks.clear();
  unbroken.k_breaks.clear();
  while (mask.q_len > kMaxTiles * shape.q) shape.q *= 2;
  while (mask.kv_len > kMaxTiles * shape.kv) shape.kv *= 2;
  return TileMap(unbroken, shape);
}

}  // namespace

TileClasses tile_classes(const TileMap& tiles) {
  TileClasses classes;
  classes.full = tiles.count_full();
  classes.partial = tiles.count() - classes.full;
  classes.empty = static_cast<int64_t>(tiles.q_tiles()) * tiles.kv_tiles() - tiles.count();
  return classes;
}

Picture mask_picture(const HeadMask& mask, TileShape shape) {
  const TileClasses classes = tile_classes(TileMap(mask, shape));
  bool coarse = false;
  const TileMap tiles = drawable(mask, shape, &coarse);

  const auto longest = static_cast<double>(std::max<int64_t>({mask.q_len, mask.kv_len, 1}));
  const double unit = kPlane / longest;
  // A very flat plane still gets a few pixels.
  const double wide = std::max(24.0, unit * static_cast<double>(mask.kv_len));
  const double high = std::max(24.0, unit * static_cast<double>(mask.q_len));
  const double k_scale = mask.kv_len ? wide / static_cast<double>(mask.kv_len) : 0;
  const double q_scale = mask.q_len ? high / static_cast<double>(mask.q_len) : 0;
  const auto x = [&](double k) { return kMargin + k * k_scale; };
  const auto y = [&](double q) { return kMargin + q * q_scale; };

  Picture picture(kMargin + std::max(wide, kPlane) + 12, kMargin + high + kLegend);
  picture.rect(kMargin, kMargin, wide, high, "empty");
  for (int32_t kv = 0; kv < tiles.kv_tiles(); ++kv) {
    const auto k0 = static_cast<double>(tiles.kv_edges[kv]);
    const auto k1 = static_cast<double>(tiles.kv_edges[kv + 1]);
    for (const TileRun& run : tiles.column(kv)) {
      const auto q0 = static_cast<double>(tiles.q_edges[run.first]);
      const auto q1 = static_cast<double>(tiles.q_edges[run.last]);
      picture.rect(x(k0), y(q0), x(k1) - x(k0), y(q1) - y(q0), run.full() ? "full" : "partial");
    }
  }
  if (mask.slices.size() <= kMaxShapes) {
    for (const Slice& slice : mask.slices) {
      Points points = outline(slice);
      if (points.size() < 3) continue;
      for (auto& [k, q] : points) k = x(k), q = y(q);
      picture.polygon(points, "shape");
    }
  }
  // Tile edges disappear when they would be most of what one sees.
  if (tiles.kv_tiles() <= 64 && tiles.q_tiles() <= 64) {
    for (const int64_t k : tiles.kv_edges) {
      picture.line(x(static_cast<double>(k)), kMargin, x(static_cast<double>(k)), kMargin + high,
                   "grid");
    }
    for (const int64_t q : tiles.q_edges) {
      picture.line(kMargin, y(static_cast<double>(q)), kMargin + wide, y(static_cast<double>(q)),
                   "grid");
    }
  }
  for (const int64_t k : mask.k_breaks) {
    const double at = x(static_cast<double>(k));
    picture.line(at, kMargin - 7, at, kMargin, "break");
  }
  for (const int64_t q : mask.q_breaks) {
    const double at = y(static_cast<double>(q));
    picture.line(kMargin - 7, at, kMargin, at, "break");
  }
  picture.rect(kMargin, kMargin, wide, high, "frame");

  picture.text(kMargin, kMargin - 12, "0");
  picture.text(kMargin + wide, kMargin - 12, count(mask.kv_len), "label", Picture::Anchor::end);
  picture.text(kMargin + wide / 2, kMargin - 12, "keys", "strong", Picture::Anchor::middle);
  picture.vertical_text(kMargin - 14, kMargin + high / 2, "queries", "strong");
  picture.text(kMargin - 10, kMargin + high, count(mask.q_len), "label", Picture::Anchor::end);

  const double row = kMargin + high + 26;
  double at = kMargin;
  const auto entry = [&](std::string_view css, const std::string& label) {
    picture.rect(at, row - 10, 12, 12, css);
    picture.text(at + 18, row, label);
    at += 34 + 6.6 * static_cast<double>(label.size());
  };
  entry("full", "full " + count(classes.full));
  entry("partial", "partial " + count(classes.partial));
  entry("empty", "empty " + count(classes.empty));
  std::string note = fmt::format("tiles of {} queries x {} keys", shape.q, shape.kv);
  if (coarse) {
    note += fmt::format(", drawn in cells of {} x {}", tiles.shape.q, tiles.shape.kv);
  } else if (!mask.q_breaks.empty() || !mask.k_breaks.empty()) {
    note += ", cut anew at every break (red)";
  }
  picture.text(kMargin, row + 24, note);
  return picture;
}

std::string mask_ascii(const HeadMask& mask, int columns) {
  if (mask.q_len == 0 || mask.kv_len == 0) return "(empty)\n";
  const int64_t rows = std::min<int64_t>(std::max(columns / 2, 1), mask.q_len);
  const int64_t cells = std::min<int64_t>(columns, mask.kv_len);
  HeadMask unbroken = mask;
  unbroken.q_breaks.clear();
  unbroken.k_breaks.clear();
  const TileMap tiles(unbroken,
                      {(mask.q_len + rows - 1) / rows, (mask.kv_len + cells - 1) / cells});
  std::string text;
  for (int32_t q = 0; q < tiles.q_tiles(); ++q) {
    std::vector<const char*> line(tiles.kv_tiles(), "·");
    for (const TileRun& run : tiles.row(q)) {
      std::fill(line.begin() + run.first, line.begin() + run.last, run.full() ? "█" : "▒");
    }
    for (const char* cell : line) text += cell;
    text += '\n';
  }
  return text;
}

}  // namespace verbatim::report
