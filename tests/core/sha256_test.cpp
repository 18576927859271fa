#include "core/sha256.h"

#include <gtest/gtest.h>

namespace verbatim {
namespace {

// The examples of FIPS 180-4 (NIST's "SHA256.pdf" and the long message of FIPS 180-2).
TEST(Sha256, PublishedExamples) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesMakeTheWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i);
  for (size_t length = 0; length < text.size(); ++length) {
    const std::string_view part = std::string_view(text).substr(0, length);
    Sha256 pieces;
    for (size_t i = 0; i < length; i += 7) pieces.update(part.substr(i, 7));
    EXPECT_EQ(pieces.hex(), sha256(part)) << length;
  }
}

}  // namespace
}  // namespace verbatim
