#include <gtest/gtest.h>

#include "report/gantt.h"
#include "report/mask_picture.h"

namespace verbatim::report {
namespace {

size_t occurrences(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(MaskPicture, TextShowsTileClasses) {
  EXPECT_EQ(mask_ascii(masks::causal(4, 4).head(0, 0), 4),
            "█▒··\n"
            "███▒\n");
  EXPECT_EQ(mask_ascii(masks::causal(8, 8).head(0, 0), 4),
            "▒▒··\n"
            "██▒▒\n");
  EXPECT_EQ(mask_ascii(masks::full(0, 5).head(0, 0)), "(empty)\n");
}

TEST(MaskPicture, CountsEveryTile) {
  const Mask mask = masks::causal(256, 256);
  const TileClasses classes = tile_classes(TileMap(mask.head(0, 0), {64, 64}));
  EXPECT_EQ(classes.full, 6);
  EXPECT_EQ(classes.partial, 4);
  EXPECT_EQ(classes.empty, 6);
}

TEST(MaskPicture, DrawsRunsSlicesAndBreaks) {
  const std::vector<int64_t> documents{100, 60};
  const Mask mask = masks::causal_document(documents);
  const std::string svg = mask_picture(mask.head(0, 0), {32, 32}).document("two <documents>");
  EXPECT_EQ(occurrences(svg, "<polygon"), 2u);
  EXPECT_EQ(occurrences(svg, "class=\"break\""), 2u);
  EXPECT_NE(svg.find("two &lt;documents&gt;"), std::string::npos);
}

TEST(MaskPicture, HugeMasksStaySmall) {
  const Mask mask = masks::causal(1 << 20, 1 << 20);
  EXPECT_LT(mask_picture(mask.head(0, 0), {64, 128}).document("").size(), 200'000u);
}

TEST(Gantt, DrawsEveryEventOfEveryTimeline) {
  using Kind = TimelineEvent::Kind;
  Timeline timeline{"predicted", "cycles", 2, {}};
  timeline.events = {{Kind::compute, 0, 0, 0, 3, 0, 0, 4}, {Kind::wait, 1, 1, 0, 3, 1, 0, 2}};
  const std::vector<Timeline> both{timeline, timeline};
  const std::string svg = gantt_picture(both, true).document("");
  EXPECT_EQ(occurrences(svg, "query tile 3"), 4u);
  EXPECT_EQ(occurrences(svg, "class=\"wait\""), 3u);  // two bars and the legend
}

}  // namespace
}  // namespace verbatim::report
