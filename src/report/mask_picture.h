// What a mask looks like, and how its tiles fall into classes.
#pragma once

#include <string>

#include "report/svg.h"
#include "verbatim/mask.h"

namespace verbatim::report {

/// Tiles of one head mask by class.
struct TileClasses {
  int64_t full = 0, partial = 0, empty = 0;
};
TileClasses tile_classes(const TileMap& tiles);

/// Queries run down, keys to the right: full tiles, partial tiles with the visible area drawn
/// inside, tile edges, breaks. A mask of more than 160 tiles along an axis is shown in coarser
/// cells, and the legend says so.
Picture mask_picture(const HeadMask& mask, TileShape shape);

/// The same in at most `columns` x `columns / 2` characters: full block, shade, dot = empty.
std::string mask_ascii(const HeadMask& mask, int columns = 64);

}  // namespace verbatim::report
