#include "tl/lexer.h"

#include <fmt/format.h>

#include <algorithm>

namespace verbatim::tl {
namespace {

constexpr size_t kMostBytes = 1 << 16, kMostLetters = 64;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> all() {
    if (text_.size() > kMostBytes)
      fault("size", {0, 0}, fmt::format("the program has {} bytes", text_.size()),
            fmt::format("at most {} bytes", kMostBytes));
    std::vector<Token> found;
    do found.push_back(next());
    while (found.back().kind != Token::Kind::end);
    return found;
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool ended() const { return at_ >= text_.size(); }

  Token next() {
    int newlines = at_ == 0 ? 1 : 0;
    for (; !ended() && (is_blank(peek()) || peek() == '\n'); ++at_) {
      if (peek() != '\n') continue;
      ++newlines;
      line_ = at_ + 1;
    }
    const size_t begin = at_;
    const Token::Kind kind = take();
    std::string_view text = text_.substr(begin, at_ - begin);
    if (kind == Token::Kind::symbol && text.front() == '.') text = "...";
    if (kind == Token::Kind::comment) {
      text.remove_prefix(2);
      while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
      while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    }
    return {kind,
            text,
            {static_cast<int64_t>(begin), static_cast<int64_t>(at_)},
            newlines > 0,
            newlines > 1 && begin > 0,
            static_cast<int64_t>(begin - line_)};
  }

  Token::Kind take() {
    if (ended()) return Token::Kind::end;
    const size_t begin = at_;
    if (peek() == '/' && peek(1) == '/') {
      for (; !ended() && peek() != '\n'; ++at_)
        if (static_cast<unsigned char>(peek()) < ' ' && !is_blank(peek())) unknown_character();
      return Token::Kind::comment;
    }
    if (is_letter(peek())) {
      while (is_letter(peek()) || is_digit(peek())) ++at_;
      if (at_ - begin > kMostLetters)
        fault("name", span(begin), fmt::format("the name has {} letters", at_ - begin),
              fmt::format("at most {} letters", kMostLetters));
      return Token::Kind::word;
    }
    if (is_digit(peek())) {
      while (is_digit(peek())) ++at_;
      if (peek() == '.' && is_digit(peek(1)))
        for (++at_; is_digit(peek());) ++at_;
      return Token::Kind::number;
    }
    if (peek() == '.') {
      for (int dot = 0; dot < 3; ++dot, ++at_) {
        if (dot > 0)
          while (is_blank(peek())) ++at_;
        if (peek() != '.') fault("syntax", span(begin), "a lone dot", "...");
      }
      return Token::Kind::symbol;
    }
    if (std::string_view("()[]=:,^-").find(peek()) == std::string_view::npos || peek() == 0)
      unknown_character();
    ++at_;
    return Token::Kind::symbol;
  }

  Span span(size_t begin) const {
    return {static_cast<int64_t>(begin), static_cast<int64_t>(std::max(at_, begin + 1))};
  }

  [[noreturn]] void unknown_character() const {
    const auto byte = static_cast<unsigned char>(peek());
    fault("character", span(at_),
          byte > ' ' && byte < 0x7f ? fmt::format("'{}' means nothing in TL", peek())
                                    : fmt::format("byte 0x{:02x} means nothing in TL", byte),
          "letters, digits, _ and ( ) [ ] = : , ^ -");
  }

  std::string_view text_;
  size_t at_ = 0, line_ = 0;  // the next byte, and the first of its line
};

}  // namespace

void fault(std::string code, Span at, std::string reason, std::string right) {
  throw Fault{{std::move(code), at.begin, at.end, std::move(reason), std::move(right), {}}};
}

std::vector<Token> tokens(std::string_view text) { return Lexer(text).all(); }

}  // namespace verbatim::tl
