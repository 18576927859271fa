// Lesson 2: a mask is a set of slices; area, tile classes and other forms follow from it.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "verbatim/verbatim.h"

int main() {
  using namespace verbatim;
  const std::vector<int64_t> documents{300, 500, 224};
  const Mask mask = masks::causal_document(documents);
  const HeadMask& head = mask.head(0, 0);
  std::printf("%zu slices, area %lld of %lld positions\n", head.slices.size(),
              static_cast<long long>(head.area()), 1024LL * 1024);

  // Tiles restart at every document, so a document has the same tiles alone and packed.
  const TileMap tiles(head, {64, 128});
  const int64_t partial = tiles.count() - tiles.count_full();
  std::printf("%d x %d tiles: %lld full, %lld partial\n", tiles.q_tiles(), tiles.kv_tiles(),
              static_cast<long long>(tiles.count_full()), static_cast<long long>(partial));

  // A batch of two entries, the second of 700 tokens and padding. Its tiles restart at 700.
  const std::vector<int64_t> lengths{1024, 700};
  const Mask padded = masks::causal(1024, 1024).with_lengths(lengths, lengths);
  const TileMap second(padded.head(1, 0), {64, 128});
  const bool hidden = padded.head(1, 0).row(700).empty() &&
                      std::ranges::count(second.q_edges, 700) == 1 &&
                      padded.head(1, 0).area() == 700 * 701 / 2;
  std::printf("padded: %zu masks for a batch of two\n", padded.variants().size());

  // Row 299 ends a document, row 300 starts the next and sees one key.
  const bool cut = head.row(299) == std::vector<Interval>{{0, 300}} &&
                   head.row(300) == std::vector<Interval>{{300, 301}};
  int64_t area = 0;
  for (const int64_t length : documents) area += length * (length + 1) / 2;
  return cut && hidden && head.area() == area && to_cu_seqlens(head).has_value() ? 0 : 1;
}
