// The words: every line of the paper parses, the layout is one, and faults name their place.
#include <gtest/gtest.h>

#include "support/corpus.h"
#include "tl/parser.h"
#include "tl/programs.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

/// Lines of TL as QiMeng-Attention's text has them, each alone.
constexpr const char* kQuoted[] = {
    // Section 3.2
    "Copy Q from global to shared",
    "Copy Q (BM, HeadDim) in coor [L= block_idx] from global to shared memory",
    "reshape rS from mma_C to mma_A",
    // Listing 2
    "Compute GEMM Q_shared, K_shared and get S //K_shared should be transposed",
    "Compute Softmax S with Smax and Ssum",
    "Reshape S from (MMA_C, MMA_M, MMA_N) to (MMA_A, MMA_M, MMA_N_new)",
    "Compute GEMM S, V_shared and accumulate O_reg",
    // Listing 3
    "Copy A from global to shared",
    "Compute GEMM A, B and get S",
    "Compute GEMM A, B and accumulate S",
    "Compute Multiply A, x and get new A",
    "Compute Multiply A, x and get B",
    "Compute Softmax A",
    "for i = 0:N ... end",
    "for i=0:N ... end",
    // Listing 4
    "Allocate A in global (M, K) with offset batch_offset\nCopy A from global to shared\n. . .",
    "Copy A (BM, BK) in coordinate [L = i]\nfrom global to shared",
    "for i in 0:K:\n  Compute GEMM A, B and get C",
    "for i in 0:K: Compute GEMM A, B and get C",
    "Allocate C in register (BM, BN)\nfor i in 0:K:\n    Compute GEMM A, B and get C",
    "Compute GEMM E, F and get G\n... //There might be other operations, such as `Compute Softmax "
    "G`\nReshape G from (MMA_C, MMA_M, MMA_N)\nto (MMA_A, MMA_M, MMA_N_new)\nCompute GEMM G, H and "
    "accumulate I",
};

std::string fault_of(std::string_view text) {
  const tl::Parsed parsed = tl::parse(text);
  if (!parsed.fault) return "";
  const tl::Place place = tl::place_of(text, parsed.fault->begin);
  return parsed.fault->code + "@" + std::to_string(place.line) + ":" + std::to_string(place.column);
}

TEST(Language, EveryLineOfThePaperParses) {
  for (const char* text : kQuoted) EXPECT_EQ(fault_of(text), "") << text;
}

TEST(Language, Corpus) {
  check_corpus("tl", [](const std::string& text) { tl::format(text, "corpus"); });
}

TEST(Language, FormattingTwiceIsFormattingOnce) {
  std::vector<std::string> texts{kListing,           sketch("forward"), sketch("backward"),
                                 sketch("selected"), code("forward"),   code("backward"),
                                 code("selected")};
  texts.insert(texts.end(), std::begin(kQuoted), std::end(kQuoted));
  texts.emplace_back(
      "// head\n\n\n// second\n\nparam a = 1 // one\n// x\nfor i in 0:N: // loop\n\n"
      " // in\n  Wait A\n // before the end\nend // behind\n\n// last\n//\n");
  for (const std::string& text : texts) {
    const std::string once = tl::format(text, "text");
    EXPECT_EQ(tl::format(once, "text"), once) << text;
  }
}

TEST(Language, FormattingKeepsEveryNumber) {
  for (const char* number : {"0", "-0", "1", "-1.5", "0.00000001", "-inf", "10000000000000000000",
                             "170141183460469231731687303715884105728", "0.6931471805599453"}) {
    const std::string text = std::string("Compute Add A, ") + number + " and get new A\n";
    EXPECT_EQ(tl::format(text, "text"), text);
  }
}

TEST(Language, FormattingKeepsEveryComment) {
  const std::string text = "// a\n\n// b\nWait /* */";
  EXPECT_EQ(fault_of(text), "character@4:6");
  EXPECT_EQ(tl::format("// a\n\n\n// b\ncopy  A from // c\n global // d\nto shared// e\n// f", "x"),
            "// a\n\n// b\nCopy A from global to shared  // e\n// c\n// d\n// f\n");
  EXPECT_EQ(tl::format("for i in 0:N : // a\n  Wait A\n  // b\nWait B // c", "x"),
            "for i = 0:N  // a\n  Wait A\nend\n// b\nWait B  // c\n");
}

TEST(Language, ShippedSketchesAreFormattedAndShort) {
  for (const auto& [name, lines] :
       {std::pair{"forward", 25}, std::pair{"backward", 45}, std::pair{"selected", 25}}) {
    const std::string text = sketch(name);
    EXPECT_EQ(tl::format(text, name), text);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), lines) << name;
  }
}

TEST(Language, FaultsNameTheirPlace) {
  EXPECT_EQ(fault_of("Copy Q from global to shered"), "syntax@1:23");
  EXPECT_EQ(fault_of("Copi Q from global to shared"), "syntax@1:1");
  EXPECT_EQ(fault_of("param a = 1\nend"), "syntax@2:1");
  EXPECT_EQ(fault_of("for i = 0:N\n  Wait A\n"), "syntax@3:1");
  EXPECT_EQ(fault_of("// \xc3\xa9\xc3\xa9\nWait \xc3\xa9"), "character@2:6");
  EXPECT_EQ(fault_of("Wait 'A'"), "character@1:6");
  EXPECT_EQ(fault_of("Allocate A in shared (99999999999, 4)"), "number@1:23");
  EXPECT_EQ(fault_of("Allocate A in shared (4, 2147483648)"), "number@1:26");
  EXPECT_EQ(fault_of("Compute Fill A with -" + std::string(39, '9')), "number@1:22");
  EXPECT_EQ(fault_of("Compute Fill A with 0." + std::string(400, '0') + "1"), "number@1:21");
  EXPECT_EQ(fault_of("Wait from"), "syntax@1:6");
  EXPECT_EQ(fault_of("Wait " + std::string(65, 'x')), "name@1:6");
  EXPECT_EQ(fault_of(std::string("Wait A\0", 7)), "character@1:7");
  EXPECT_EQ(fault_of(std::string((1 << 16) + 1, ' ')), "size@1:1");
  std::string deep;
  for (int i = 0; i < 9; ++i) deep += "for i = 0:N\n";
  EXPECT_EQ(fault_of(deep), "depth@9:1");
}

TEST(Language, AMessageShowsTheLineACaretAndWhatWouldBeRight) {
  try {
    tl::format("param pass = forward\nCopy Q from global to shered\n", "a.tl");
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("a.tl:2:23: syntax: a memory level is missing; got 'shered'\n"
                           "  Copy Q from global to shered\n"
                           "                        ^~~~~~\n"
                           "  right would be: shared\n"),
              std::string::npos)
        << message;
  }
}

TEST(Language, HostileTextsEndWithTheirFault) {
  const std::string newlines(1 << 15, '\n'), blanks(10000, ' ');
  for (const auto& [text, fault] : std::initializer_list<std::pair<std::string, std::string>>{
           {std::string(1 << 16, '('), "syntax@1:1"},
           {std::string(1 << 16, '.'), "syntax@1:65536"},  // behind many `...`
           {newlines + "(", "syntax@32769:1"},
           {"for i in 0:N: " + blanks + "for", "syntax@1:10018"},
           {std::string(1000, '\x80'), "character@1:1"},
           {"Copy \"; rm\" from global to shared", "character@1:6"},
           {"Copy ../../x from", "syntax@1:6"},
           {"Copy A in coordinate [L = sel[i]", "syntax@1:33"},
           {"param BM = 99999999999999999999", "number@1:12"},
           {"Wait A\nCopy \"B\"", "character@2:6"}})
    EXPECT_EQ(fault_of(text), fault) << text.substr(0, 60);
}

}  // namespace
}  // namespace verbatim::test
