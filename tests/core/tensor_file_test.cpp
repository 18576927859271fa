#include "core/tensor_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "core/file.h"
#include "core/sha256.h"
#include "support/corpus.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
  return text;
}

std::string npy(std::string dictionary, size_t data_bytes, int major = 1) {
  return std::string("\x93NUMPY") + static_cast<char>(major) + '\0' +
         little_endian(dictionary.size(), major == 1 ? 2 : 4) + dictionary +
         std::string(data_bytes, '\1');
}

std::string safetensors(std::string header, size_t data_bytes) {
  return little_endian(header.size(), 8) + header + std::string(data_bytes, '\1');
}

const std::string kGoodNpy =
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24);
const std::string kGoodSafetensors = safetensors(
    R"({"__metadata__":{"by":"hand"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
    R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}  )",
    12);

class TensorFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) /
              ("verbatim_" + std::string(test->name()) + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST(Npy, ReadsAllVersionsAndKeyOrders) {
  const char* kDictionary = "{'shape': (3,), 'fortran_order': False, 'descr': \"<f2\"}   \n";
  for (int major : {1, 2, 3}) {
    const TensorFile file = parse_npy(bytes_of(npy(kDictionary, 6, major)));
    EXPECT_EQ(file.tensors[0].dtype, Dtype::f16);
    EXPECT_EQ(file.tensors[0].shape, std::vector<int64_t>{3});
    EXPECT_EQ(file.bytes, bytes_of(std::string(6, '\1')));
  }
  const TensorFile scalar =
      parse_npy(bytes_of(npy("{'descr': '<f4', 'fortran_order': False, 'shape': ()}\n", 4)));
  EXPECT_TRUE(scalar.tensors[0].shape.empty());
}

TEST(Npy, RefusesMalformedFiles) {
  const auto header = [](std::string descr, std::string order, std::string shape) {
    return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  };
  const std::vector<std::string> malformed = {
      "",
      "\x93NUMPY",
      "\x93NUMPX" + kGoodNpy.substr(6),
      "PK\3\4" + kGoodNpy,
      npy(header("'<f4'", "False", "(2, 3)"), 24, 0),                // version 0
      npy(header("'<f4'", "False", "(2, 3)"), 24, 4),                // version 4
      npy(header("'<f4'", "True", "(2, 3)"), 24),                    // column-major
      npy(header("'<f4'", "false", "(2, 3)"), 24),                   // not Python
      npy(header("'<f4'", "0", "(2, 3)"), 24),                       // not a bool
      npy(header("'|O'", "False", "(2, 3)"), 24),                    // pickled objects
      npy(header("'>f4'", "False", "(2, 3)"), 24),                   // big-endian
      npy(header("'<f8'", "False", "(2, 3)"), 48),                   // double
      npy(header("'<i2'", "False", "(2, 3)"), 12),                   // short integers
      npy(header("'<u4'", "False", "(2, 3)"), 24),                   // unsigned ones
      npy(header("'<i8'", "False", "(2, 3)"), 24),                   // half of them
      npy(header("'<V2'", "False", "(2, 3)"), 12),                   // what bf16 becomes in NumPy
      npy(header("[('a', '<f4')]", "False", "(2, 3)"), 24),          // records
      npy(header("<f4", "False", "(2, 3)"), 24),                     // unquoted
      npy(header("'<f4", "False", "(2, 3)"), 24),                    // a quote too few
      npy(header("'<f4'", "False", "(2, 3"), 24),                    // a bracket too few
      npy(header("'<f4'", "False", "[2, 3]"), 24),                   // a list
      npy(header("'<f4'", "False", "6"), 24),                        // a number
      npy(header("'<f4'", "False", "(6)"), 24),                      // no tuple
      npy(header("'<f4'", "False", "(2L, 3L)"), 24),                 // Python 2
      npy(header("'<f4'", "False", "(-2, -3)"), 24),                 // negative
      npy(header("'<f4'", "False", "(2.0, 3)"), 24),                 // fraction
      npy(header("'<f4'", "False", "(2,, 3)"), 24),                  //
      npy(header("'<f4'", "False", "(,)"), 4),                       //
      npy(header("'<f4'", "False", "(2, 4)"), 24),                   // data too short
      npy(header("'<f4'", "False", "(2, 2)"), 24),                   // data too long
      npy(header("'<f4'", "False", "()"), 24),                       //
      npy(header("'<f4'", "False", "(0, 3)"), 24),                   //
      npy(header("'<f4'", "False", "(4611686018427387904, 4)"), 0),  // bytes overflow to 0
      npy(header("'<f4'", "False", "(4294967296, 4294967296)"), 0),  // elements overflow to 0
      npy(header("'<f4'", "False", "(99999999999999999999,)"), 24),  // beyond 64 bits
      npy(header("'<f4'", "False", "(" + std::string(40, '1') + ",)"), 24),
      npy("{'descr': '<f4', 'fortran_order': False}\n", 24),   // no shape
      npy("{'descr': '<f4', 'shape': (2, 3)}\n", 24),          // no order
      npy("{'fortran_order': False, 'shape': (2, 3)}\n", 24),  // no descr
      npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", 24),
      npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'x': 1}", 24),  // a fourth key
      npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} + {}", 24),     // more text
      npy("{'descr' '<f4', 'fortran_order': False, 'shape': (6,)}", 24),           // no colon
      npy("{'descr': '<f4' 'fortran_order': False, 'shape': (6,)}", 24),           // no comma
      npy("{", 24),
      npy("", 24),
      npy("{}", 24),
      npy("[]", 24),
      npy(std::string(100, '{'), 24),
      npy(header(
              "'<f4'", "False",
              "(" +
                  [] {
                    std::string ones;
                    for (int i = 0; i < 40; ++i) ones += "1, ";
                    return ones;
                  }() +
                  ")"),
          4),                                                                  // 40 dimensions
      npy(header("'<f4'", "False", "(6,)") + std::string(70000, ' '), 24, 2),  // long header
      std::string("\x93NUMPY\2\0\xff\xff\xff\xff{", 13),                       // a header of 4 GB
      std::string("\x93NUMPY\1\0\xff\xff{", 11),  // a header beyond the file
      std::string("\x93NUMPY\2\0\0\0", 10),       // ends inside the length
  };
  ASSERT_NO_THROW(parse_npy(bytes_of(kGoodNpy)));
  for (const std::string& text : malformed) EXPECT_THROW(parse_npy(bytes_of(text)), Error) << text;
  for (size_t length = 0; length < kGoodNpy.size(); ++length)
    EXPECT_THROW(parse_npy(bytes_of(kGoodNpy.substr(0, length))), Error) << "cut at " << length;
  EXPECT_THROW(parse_npy(bytes_of(kGoodNpy + '\0')), Error);
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const TensorFile file = parse_safetensors(bytes_of(kGoodSafetensors));
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].name, "a");
  EXPECT_EQ(file.at("b").dtype, Dtype::bf16);
  EXPECT_EQ(file.at("b").begin, 8);
  EXPECT_EQ(file.bytes.size(), 12u);
  EXPECT_NO_THROW(parse_safetensors(bytes_of(safetensors("{}", 0))));
}

TEST(Safetensors, RefusesMalformedFiles) {
  const auto one = [](std::string dtype, std::string shape, std::string offsets,
                      size_t data_bytes) {
    return safetensors(R"({"q":{"dtype":)" + dtype + R"(,"shape":)" + shape +
                           R"(,"data_offsets":)" + offsets + "}}",
                       data_bytes);
  };
  const auto two = [](std::string first, std::string second, size_t data_bytes) {
    return safetensors(R"({"q":{"dtype":"F32","shape":[2],"data_offsets":)" + first +
                           R"(},"k":{"dtype":"F32","shape":[2],"data_offsets":)" + second + "}}",
                       data_bytes);
  };
  ASSERT_NO_THROW(parse_safetensors(bytes_of(one("\"F32\"", "[2]", "[0,8]", 8))));
  ASSERT_NO_THROW(parse_safetensors(bytes_of(two("[8,16]", "[0,8]", 16))));
  const std::vector<std::string> malformed = {
      "",
      "1234567",
      little_endian(2, 8),
      little_endian(UINT64_MAX, 8) + "{}",
      little_endian(100'000'001, 8) + "{}",
      little_endian(3, 8) + "{}",
      safetensors("", 0),
      safetensors("[]", 0),
      safetensors(" {}", 0),
      safetensors("{", 0),
      safetensors("{}{}", 0),
      safetensors("null", 0),
      safetensors("{\"q\":1}", 0),
      safetensors("{\"q\":[]}", 0),
      safetensors("{\"q\":{}}", 0),
      safetensors("{}", 1),
      safetensors(std::string(100000, '{'), 0),
      safetensors(R"({"a":{"b":[[1]]}})", 0),
      safetensors(R"({"__metadata__":1})", 0),
      safetensors(R"({"__metadata__":{"a":1}})", 0),
      safetensors(R"({"__metadata__":{"a":["b"]}})", 0),
      safetensors(R"({"q":{"shape":[2],"data_offsets":[0,8]}})", 8),
      safetensors(R"({"q":{"dtype":"F32","data_offsets":[0,8]}})", 8),
      safetensors(R"({"q":{"dtype":"F32","shape":[2]}})", 8),
      safetensors(R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":0}})", 8),
      safetensors(R"({"q":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
      safetensors(R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                  8),
      one("\"F64\"", "[1]", "[0,8]", 8),
      one("\"I16\"", "[4]", "[0,8]", 8),
      one("\"I64\"", "[2]", "[0,8]", 8),
      one("\"f32\"", "[2]", "[0,8]", 8),
      one("32", "[2]", "[0,8]", 8),
      one("null", "[2]", "[0,8]", 8),
      one("\"F32\"", "2", "[0,8]", 8),
      one("\"F32\"", "\"2\"", "[0,8]", 8),
      one("\"F32\"", "[2.0]", "[0,8]", 8),
      one("\"F32\"", "[-2]", "[0,8]", 8),
      one("\"F32\"", "[-1,-2]", "[0,8]", 8),
      one("\"F32\"", "[\"2\"]", "[0,8]", 8),
      one("\"F32\"", "[[2]]", "[0,8]", 8),
      one("\"F32\"", "[3]", "[0,8]", 8),
      one("\"F32\"", "[1]", "[0,8]", 8),
      one("\"F32\"", "[]", "[0,8]", 8),
      one("\"F32\"", "[2]", "[0,8]", 7),
      one("\"F32\"", "[2]", "[0,8]", 9),
      one("\"F32\"", "[2]", "[8,0]", 8),
      one("\"F32\"", "[2]", "[1,9]", 9),
      one("\"F32\"", "[2]", "[-8,0]", 8),
      one("\"F32\"", "[2]", "[0]", 8),
      one("\"F32\"", "[2]", "[0,8,8]", 8),
      one("\"F32\"", "[2]", "[0,\"8\"]", 8),
      one("\"F32\"", "[2]", "{}", 8),
      one("\"F32\"", "[2]", "[0,18446744073709551616]", 8),
      one("\"F32\"", "[2]", "[0,18446744073709551615]", 8),
      one("\"F32\"", "[0]", "[8,8]", 8),
      one("\"F32\"", "[4611686018427387904]", "[0,0]", 0),
      one("\"F32\"", "[4294967296,4294967296]", "[0,0]", 0),
      one("\"F32\"", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]",
          4),
      two("[0,8]", "[0,8]", 8),
      two("[0,8]", "[4,12]", 12),
      two("[0,8]", "[12,20]", 20),
      two("[4,12]", "[12,20]", 20),
      two("[0,8]", "[8,16]", 20),
      two("[0,8]", "[8,16]", 12),
  };
  for (const std::string& text : malformed)
    EXPECT_THROW(parse_safetensors(bytes_of(text)), Error) << text.substr(0, 200);
  for (size_t length = 0; length < kGoodSafetensors.size(); ++length)
    EXPECT_THROW(parse_safetensors(bytes_of(kGoodSafetensors.substr(0, length))), Error)
        << "cut at " << length;
}

TEST(TensorFileErrors, SayWhatWasGotAndExpected) {
  try {
    parse_npy(bytes_of(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}", 24)));
    FAIL() << "doubles were read";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_EQ(e.details().got, "'<f8'");
    EXPECT_EQ(e.details().expected, "'<f4', '<f2', '<i4' or '<i8'");
  }
  TensorFile file = parse_safetensors(bytes_of(kGoodSafetensors));
  try {
    file.view("q");
    FAIL() << "a missing tensor was found";
  } catch (const Error& e) {
    EXPECT_EQ(e.details().expected, "one of 'a', 'b'");
  }
  EXPECT_THROW(file.view("a"), Error) << "rank 2 passed for rank 4";
}

TEST_F(TensorFiles, RoundTripStridedTensors) {
  std::vector<float> wide(100);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(i);
  std::vector<uint16_t> narrow{1, 2, 3};
  const TensorView q{wide.data(), Dtype::f32, {2, 2, 1, 3}, {50, 10, 5, 1}};
  const TensorView expanded{narrow.data(), Dtype::bf16, {3, 1, 1, 3}, {0, 0, 0, 1}};
  const RowView lse{wide.data() + 4, {1, 2, 3}};

  const fs::path path = folder_ / "all.safetensors";
  const NamedTensor tensors[] = {{"o", expanded}, {"q", q}, {"lse", lse}};
  write_tensor_file(path, tensors);
  TensorFile file = read_tensor_file(path);
  const TensorView read = file.view("q");
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t l = 0; l < 2; ++l)
      EXPECT_EQ(std::memcmp(read.row<float>(b, l, 0), q.row<float>(b, l, 0), 12), 0);
  EXPECT_EQ(file.view("o").row<uint16_t>(2, 0, 0)[2], 3);
  EXPECT_EQ(file.at("lse").shape, (std::vector<int64_t>{1, 2, 3}));

  write_tensor_file(folder_ / "q.npy", std::span(tensors).subspan(1, 1));
  TensorFile single = read_tensor_file(folder_ / "q.npy");
  EXPECT_EQ(std::memcmp(single.view("q").row<float>(1, 1, 0), q.row<float>(1, 1, 0), 12), 0);
}

TEST_F(TensorFiles, HoldE4m3) {
  std::array<uint8_t, 6> codes{0x00, 0x38, 0x7e, 0x7f, 0x80, 0xff};
  const NamedTensor tensor("k", TensorView::dense(codes.data(), Dtype::e4m3, {1, 3, 1, 2}));
  const fs::path path = folder_ / "k.safetensors";
  write_tensor_file(path, {&tensor, 1});
  EXPECT_NE(read_text(path).find(R"("dtype":"F8_E4M3")"), std::string::npos);
  TensorFile file = read_tensor_file(path);
  const TensorView view = file.view("k");
  EXPECT_EQ(view.dtype, Dtype::e4m3);
  EXPECT_EQ(view.shape, (std::array<int64_t, 4>{1, 3, 1, 2}));
  EXPECT_EQ(std::memcmp(view.data, codes.data(), codes.size()), 0);
  try {
    write_tensor_file(folder_ / "k.npy", {&tensor, 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.details().got, "e4m3");
    EXPECT_EQ(error.details().nearest, ".safetensors");
  }
}

TEST(TensorFile, HoldsIntegersThatAreNoElements) {
  const auto npy_of = [](const std::string& descr, const std::string& data) {
    const std::string header =
        "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (1, 1, 1, 2), }\n";
    return parse_npy(bytes_of(npy(header, 0) + data));
  };
  const auto safetensors_of = [](const std::string& dtype, const std::string& data) {
    const std::string header = R"({"":{"dtype":")" + dtype +
                               R"(","shape":[1,1,1,2],"data_offsets":[0,)" +
                               std::to_string(data.size()) + "]}}";
    return parse_safetensors(bytes_of(safetensors(header, 0) + data));
  };
  const uint64_t minus_one = ~uint64_t{0};
  const std::string narrow = little_endian(1'000'000, 4) + little_endian(minus_one, 4);
  const std::string wide = little_endian(uint64_t{1} << 40, 8) + little_endian(minus_one, 8);
  const std::vector<int64_t> of_narrow{1'000'000, -1}, of_wide{int64_t{1} << 40, -1};
  EXPECT_EQ(npy_of("<i4", narrow).integers(""), of_narrow);
  EXPECT_EQ(npy_of("<i8", wide).integers(""), of_wide);
  EXPECT_EQ(safetensors_of("I32", narrow).integers(""), of_narrow);
  TensorFile file = safetensors_of("I64", wide);
  EXPECT_EQ(file.integers(""), of_wide);
  EXPECT_THROW(file.view(""), Error);
  EXPECT_THROW(parse_npy(bytes_of(kGoodNpy)).integers(""), Error);
}

TEST_F(TensorFiles, WriteAllOrNothing) {
  const fs::path path = folder_ / "kept.txt";
  write_file(path, "before");
  EXPECT_THROW(write_file(path,
                          [](std::ostream& out) {
                            out << "half";
                            throw Error(ErrorCode::io, "test", "stopped");
                          }),
               Error);
  EXPECT_EQ(read_file(path), bytes_of("before"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "a temporary file is left";

  float x = 0;
  const NamedTensor tensors[] = {{"a", TensorView::dense(&x, Dtype::bf16, {1, 1, 1, 1})}};
  EXPECT_THROW(write_tensor_file(folder_ / "a.npy", tensors), Error) << "bf16 in .npy";
  EXPECT_THROW(write_tensor_file(folder_ / "a.txt", tensors), Error) << "unknown format";
  EXPECT_THROW(write_tensor_file(folder_ / "absent" / "a.safetensors", tensors), Error);
  EXPECT_THROW(read_tensor_file(folder_ / "absent.npy"), Error);
  EXPECT_THROW(read_file(folder_), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "a failure left a file";
}

TEST(Corpus, ParsesOrRaisesError) {
  test::check_corpus("npy", [](const std::string& text) { parse_npy(bytes_of(text)); });
  test::check_corpus("safetensors",
                     [](const std::string& text) { parse_safetensors(bytes_of(text)); });
}

}  // namespace
}  // namespace verbatim
