#include "report/format.h"

#include <gtest/gtest.h>

#include "report/table.h"

namespace verbatim::report {
namespace {

TEST(Format, NumbersAsPeopleReadThem) {
  EXPECT_EQ(count(0), "0");
  EXPECT_EQ(count(999), "999");
  EXPECT_EQ(count(33558528), "33,558,528");
  EXPECT_EQ(count(-1234567), "-1,234,567");
  EXPECT_EQ(bytes(1023), "1023 B");
  EXPECT_EQ(bytes(1536), "1.5 KiB");
  EXPECT_EQ(bytes(int64_t{1} << 30), "1.0 GiB");
  EXPECT_EQ(milliseconds(0.0123), "12.3 us");
  EXPECT_EQ(milliseconds(3.416), "3.42 ms");
  EXPECT_EQ(milliseconds(12345), "12.3 s");
  EXPECT_EQ(number(1234.5), "1,235");
  EXPECT_EQ(cycles(0.5), "0.5");
  EXPECT_EQ(cycles(1234567.8), "1,234,568");
  EXPECT_EQ(cycles(2e306), "2.00e+306");  // more than an integer holds
  EXPECT_EQ(percent(0.4137), "41.4 %");
  EXPECT_EQ(percent(-0.0004), "0.0 %");
  EXPECT_EQ(percent(-0.0006), "-0.1 %");
}

TEST(Format, EscapesMarkupAndDropsControlCharacters) {
  EXPECT_EQ(escape("<a href='x' b=\"y\">&"), "&lt;a href=&#39;x&#39; b=&quot;y&quot;&gt;&amp;");
  EXPECT_EQ(escape(std::string("a\0b\x01", 4)), "ab");
}

TEST(Table, AlignsByCodePointsAndRulesOffTheHeader) {
  Table table({{"name"}, {"n", Table::Align::right}});
  table.row({"é", "7"});
  table.row({"longer", "1,234"});
  EXPECT_EQ(table.str(),
            "name        n\n"
            "─────────────\n"
            "é           7\n"
            "longer  1,234\n");
}

TEST(Format, AnErrorRatioSaysWhatItDoesNotCount) {
  EXPECT_EQ(error_ratio(0.4021, 0), "0.402");
  EXPECT_EQ(error_ratio(0.4021, 25600), "0.402, 25,600 NaN or inf");
}

TEST(Table, QuotesCellsOfOtherForms) {
  Table table({{"name"}, {"n", Table::Align::right}});
  table.row({"a|b", "1,234"});
  table.rule();
  table.row({"say \"x\"", "7"});
  EXPECT_EQ(table.csv(), "name,n\na|b,\"1,234\"\n\"say \"\"x\"\"\",7\n");
  EXPECT_EQ(table.markdown(), "| name | n |\n|---|---:|\n| a\\|b | 1,234 |\n| say \"x\" | 7 |\n");
}

}  // namespace
}  // namespace verbatim::report
