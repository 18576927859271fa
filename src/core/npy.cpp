// NumPy's .npy format: magic, version, length of the header, the header as a Python dictionary
// literal, the data (numpy.lib.format, versions 1.0 to 3.0).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <optional>

#include "core/tensor_file_formats.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr const char* kOperation = "npy";
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeader = 65536;

[[noreturn]] void fail(std::string message, Error::Details details,
                       ErrorCode code = ErrorCode::invalid_argument) {
  throw Error(code, kOperation, std::move(message), std::move(details));
}

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// Reads the one shape of dictionary that NumPy writes, keys in any order.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  Header read() {
    Header header;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !header.descr) {
        header.descr = quoted();
      } else if (key == "fortran_order" && !header.fortran_order) {
        header.fortran_order = boolean();
      } else if (key == "shape" && !header.shape) {
        header.shape = tuple();
      } else {
        fail("the header has a key that does not belong there or comes twice",
             {"header", "'" + key + "'", "'descr', 'fortran_order' and 'shape', each once", ""});
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!text_.empty()) unexpected("nothing after the dictionary");
    if (!header.descr || !header.fortran_order || !header.shape)
      fail("the header lacks a key",
           {"header",
            fmt::format("no '{}'", !header.descr           ? "descr"
                                   : !header.fortran_order ? "fortran_order"
                                                           : "shape"),
            "'descr', 'fortran_order' and 'shape'", ""});
    return header;
  }

 private:
  [[noreturn]] void unexpected(std::string expected) {
    fail("the header is not the dictionary that NumPy writes",
         {"header", text_.empty() ? "its end" : fmt::format("{:?}", text_.substr(0, 24)),
          std::move(expected), ""});
  }
  void skip_space() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n')) text_.remove_prefix(1);
  }
  bool accept(char c) {
    skip_space();
    if (text_.empty() || text_[0] != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) unexpected(fmt::format("'{}'", c));
  }
  std::string quoted() {
    skip_space();
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) unexpected("a quoted string");
    const size_t end = text_.find(text_[0], 1);
    if (end == std::string_view::npos) unexpected("a closing quote");
    const std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }
  bool boolean() {
    skip_space();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      return value;
    }
    unexpected("True or False");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!accept(')')) {
      skip_space();
      int64_t value = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
      if (error != std::errc() || value < 0) unexpected("an extent from 0 to 2^63 - 1");
      text_.remove_prefix(end - text_.data());
      values.push_back(value);
      if (values.size() > kMaxRank) unexpected(fmt::format("at most {} dimensions", kMaxRank));
      if (!accept(',')) {
        if (values.size() == 1) unexpected("',': a tuple of one ends in a comma");
        expect(')');
        break;
      }
    }
    return values;
  }

  std::string_view text_;
};

}  // namespace

TensorFile parse_npy(std::vector<std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(text[i])); };
  if (!text.starts_with(kMagic) || text.size() < 10)
    fail("not a .npy file", {"file", fmt::format("{:?}", text.substr(0, 10)),
                             "the bytes \\x93NUMPY, a version and a header length", ""});
  const size_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0)
    fail("unknown version", {"version", fmt::format("{}.{}", major, minor), "1.0, 2.0 or 3.0", ""},
         ErrorCode::unsupported);
  const size_t header_begin = major == 1 ? 10 : 12;
  if (text.size() < header_begin)
    fail("the file ends inside its header",
         {"file", fmt::format("{} bytes", text.size()), "more", ""});
  size_t header_bytes = byte(8) | byte(9) << 8;
  if (major > 1) header_bytes |= byte(10) << 16 | byte(11) << 24;
  if (header_bytes > kMaxHeader)
    fail("the header is too long", {"header", fmt::format("{} bytes", header_bytes),
                                    fmt::format("at most {}", kMaxHeader), ""});
  if (text.size() < header_begin + header_bytes)
    fail("the file ends inside its header",
         {"header", fmt::format("{} of its bytes", text.size() - header_begin),
          fmt::format("{}", header_bytes), ""});

  const Header header = HeaderReader(text.substr(header_begin, header_bytes)).read();
  TensorFile::Entry entry{"", Dtype::f32, *header.shape, 0, 0};
  if (*header.descr == "<f2") {
    entry.dtype = Dtype::f16;
  } else if (*header.descr == "<i4" || *header.descr == "<i8") {
    entry.integer_bytes = header.descr->back() - '0';
  } else if (*header.descr != "<f4") {
    fail(
        "unsupported dtype",
        {"descr", "'" + *header.descr + "'", "'<f4', '<f2', '<i4' or '<i8'", "array.astype('<f4')"},
        ErrorCode::unsupported);
  }
  if (*header.fortran_order)
    fail("column-major data is not read",
         {"fortran_order", "True", "False", "numpy.ascontiguousarray(array)"},
         ErrorCode::unsupported);
  const int64_t bytes = entry.end = byte_count(entry.shape, entry.element_bytes(), kOperation);
  const size_t data_begin = header_begin + header_bytes;
  if (static_cast<uint64_t>(bytes) != file.size() - data_begin)
    fail("the data does not fill the shape",
         {"data", fmt::format("{} bytes", file.size() - data_begin),
          fmt::format("{} for shape [{}]", bytes, fmt::join(entry.shape, ", ")), ""});

  TensorFile result;
  result.tensors.push_back(std::move(entry));
  file.erase(file.begin(), file.begin() + static_cast<int64_t>(data_begin));
  result.bytes = std::move(file);
  return result;
}

std::string npy_header(std::span<const NamedTensor> tensors) {
  if (tensors.size() != 1)
    fail("a .npy file holds one tensor",
         {"tensors", fmt::to_string(tensors.size()), "1", ".safetensors"}, ErrorCode::unsupported);
  const NamedTensor& tensor = tensors[0];
  if (tensor.dtype != Dtype::f32 && tensor.dtype != Dtype::f16) {
    const std::string dtype(to_string(tensor.dtype));
    fail("NumPy has no " + dtype, {tensor.name, dtype, "f32 or f16", ".safetensors"},
         ErrorCode::unsupported);
  }
  std::string dictionary =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                  tensor.dtype == Dtype::f32 ? "<f4" : "<f2", fmt::join(tensor.shape, ", "),
                  tensor.shape.size() == 1 ? "," : "");
  while ((10 + dictionary.size() + 1) % 64 != 0) dictionary += ' ';  // NumPy aligns the data so
  dictionary += '\n';
  std::string header(kMagic);
  header += {1, 0, static_cast<char>(dictionary.size()), static_cast<char>(dictionary.size() >> 8)};
  return header + dictionary;
}

}  // namespace verbatim
