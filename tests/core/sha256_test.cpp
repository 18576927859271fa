#include "core/sha256.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/sha256_blocks.h"

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

TEST(Sha256, OfAProcessorIsThePortableOne) {
  const Sha256Blocks x86 = sha256_blocks_x86();
  if (!x86) GTEST_SKIP() << "no instructions for it";
  std::mt19937 random(7);
  for (size_t count = 0; count < 20; ++count) {
    std::vector<std::byte> blocks(64 * count + 1);
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(random());
    std::array<uint32_t, 8> one{}, other{};
    for (uint32_t& word : one) word = static_cast<uint32_t>(random());
    other = one;
    sha256_blocks_portable(one, blocks.data() + 1, count);  // at any address
    x86(other, blocks.data() + 1, count);
    EXPECT_EQ(one, other) << count;
  }
}

}  // namespace
}  // namespace verbatim
