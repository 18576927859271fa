#include "report/html.h"

#include <gtest/gtest.h>

#include "verbatim/error.h"

namespace verbatim::report {
namespace {

TEST(Html, RefusesWhatIsNoResult) {
  for (const char* text : {"", "[]", "{}", "3", R"({"command":"run","version":"1","mask":{}})"}) {
    EXPECT_THROW(html_report(text), Error) << text;
  }
}

TEST(Html, EscapesEveryStringAndForbidsEverythingElse) {
  const std::string page =
      html_report(R"({"command":"<script>","version":"<b>","arguments":["<i>"],"level":"<u>",)"
                  R"("bits":{"repeats":3,"identical":false,"sha256":{"dq":"<s>"}}})");
  for (const char* tag : {"<script>", "<b>", "<i>", "<u>", "<s>"}) {
    EXPECT_EQ(page.find(tag), std::string::npos) << tag;
  }
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(page.find("bits differ"), std::string::npos);
}

}  // namespace
}  // namespace verbatim::report
