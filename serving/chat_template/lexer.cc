#include "serving/chat_template/lexer.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "serving/tokenizer/unicode.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier::jinja {
namespace {

// The characters that Python's \s and strip() match.
bool IsSpace(char32_t c) { return IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

size_t SkipSpace(absl::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (!IsSpace(NextCodePoint(text, &next))) break;
    at = next;
  }
  return at;
}

size_t TrimEnd(absl::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t previous = PreviousCharacter(text, end);
    size_t at = previous;
    if (!IsSpace(NextCodePoint(text, &at))) break;
    end = previous;
  }
  return end;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), in_(source_) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (status_.ok() && at_ < in_.size()) Text();
    Put(Token::Type::kEnd, "");
    if (!status_.ok()) return status_;
    return std::move(tokens_);
  }

 private:
  bool Looking(absl::string_view text) const { return absl::StartsWith(in_.substr(at_), text); }

  void Fail(absl::string_view what) {
    if (status_.ok())
      status_ = absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", what));
  }

  void Put(Token::Type type, std::string text, Value value = Value()) {
    tokens_.push_back({type, line_, std::move(text), std::move(value)});
  }

  void MoveTo(size_t to) {
    line_ += static_cast<int>(std::count(in_.begin() + at_, in_.begin() + to, '\n'));
    line_starts_ = to > 0 && in_[to - 1] == '\n';
    at_ = to;
  }

  // Text up to the next tag, and the opening of that tag.
  void Text() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = in_.find('{', tag);
      if (tag == absl::string_view::npos || tag + 1 >= in_.size()) {
        Put(Token::Type::kText, std::string(in_.substr(at_)));
        at_ = in_.size();
        return;
      }
      if (absl::StrContains("{%#", in_.substr(tag + 1, 1))) break;
    }
    const char kind = in_[tag + 1];
    const char sign = tag + 2 < in_.size() ? in_[tag + 2] : '\0';
    absl::string_view text = in_.substr(at_, tag - at_);
    if (sign == '-') {
      text = text.substr(0, TrimEnd(text));
    } else if (sign != '+' && kind != '{') {
      // lstrip_blocks: a tag that is first on its line removes the white space before it.
      const size_t newline = text.rfind('\n');
      const size_t begin = newline == absl::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || line_starts_) && SkipSpace(text, begin) == text.size()) {
        text = text.substr(0, begin);
      }
    }
    if (!text.empty()) Put(Token::Type::kText, std::string(text));
    MoveTo(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (kind == '#') return Comment();
    if (kind == '%' && RawBlock()) return;
    Put(kind == '{' ? Token::Type::kOpenOutput : Token::Type::kOpenBlock, "");
    Inside(kind == '{' ? "}}" : "%}",
           kind == '{' ? Token::Type::kCloseOutput : Token::Type::kCloseBlock);
  }

  // Skips white space after -%}, or one newline after %}. The tag ends at `end`.
  size_t AfterTag(size_t end, char sign, bool trims_newline) const {
    if (sign == '-') return SkipSpace(in_, end);
    if (trims_newline && sign != '+' && end < in_.size() && in_[end] == '\n') return end + 1;
    return end;
  }

  void Comment() {
    const size_t end = in_.find("#}", at_);
    if (end == absl::string_view::npos) return Fail("comment without an end");
    const char sign = end > at_ ? in_[end - 1] : '\0';
    MoveTo(AfterTag(end + 2, sign, true));
  }

  // {% raw %} ... {% endraw %}; the opening {% has been consumed.
  bool RawBlock() {
    size_t at = SkipSpace(in_, at_);
    if (!absl::StartsWith(in_.substr(at), "raw")) return false;
    at = SkipSpace(in_, at + 3);
    const bool strips = at < in_.size() && in_[at] == '-';
    if (strips) ++at;
    if (!absl::StartsWith(in_.substr(at), "%}")) return false;
    const size_t begin = strips ? SkipSpace(in_, at + 2) : at + 2;
    for (size_t open = in_.find("{%", begin); open != absl::string_view::npos;
         open = in_.find("{%", open + 2)) {
      size_t inside = open + 2;
      const char sign = inside < in_.size() ? in_[inside] : '\0';
      if (sign == '-' || sign == '+') ++inside;
      inside = SkipSpace(in_, inside);
      if (!absl::StartsWith(in_.substr(inside), "endraw")) continue;
      inside = SkipSpace(in_, inside + 6);
      const char end_sign = inside < in_.size() ? in_[inside] : '\0';
      if (end_sign == '-' || end_sign == '+') ++inside;
      if (!absl::StartsWith(in_.substr(inside), "%}")) continue;
      absl::string_view text = in_.substr(begin, open - begin);
      if (sign == '-') {
        text = text.substr(0, TrimEnd(text));
      } else if (sign != '+') {
        const size_t newline = text.rfind('\n');
        if (newline != absl::string_view::npos && SkipSpace(text, newline + 1) == text.size()) {
          text = text.substr(0, newline + 1);
        }
      }
      Put(Token::Type::kText, std::string(text));
      MoveTo(AfterTag(inside + 2, end_sign, true));
      return true;
    }
    Fail("raw without endraw");
    return true;
  }

  // The tokens of a tag, up to its end.
  void Inside(absl::string_view closing, Token::Type close) {
    std::string open;  // open brackets
    while (status_.ok()) {
      MoveTo(SkipSpace(in_, at_));
      if (at_ >= in_.size()) return Fail(absl::StrCat("tag without ", closing));
      const bool strips = Looking(absl::StrCat("-", closing));
      const bool keeps = closing == "%}" && Looking("+%}");
      if (open.empty() && (strips || keeps || Looking(closing))) {
        Put(close, "");
        const size_t end = at_ + closing.size() + (strips || keeps ? 1 : 0);
        MoveTo(AfterTag(end, strips ? '-' : keeps ? '+' : '\0', closing == "%}"));
        return;
      }
      const char c = in_[at_];
      if (c == '"' || c == '\'') {
        String(c);
      } else if (absl::ascii_isdigit(static_cast<unsigned char>(c))) {
        Number();
      } else if (absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_') {
        size_t end = at_;
        while (end < in_.size() &&
               (absl::ascii_isalnum(static_cast<unsigned char>(in_[end])) || in_[end] == '_')) {
          ++end;
        }
        Put(Token::Type::kName, std::string(in_.substr(at_, end - at_)));
        at_ = end;
      } else {
        Sign(&open);
      }
    }
  }

  void Sign(std::string* open) {
    static constexpr std::array<absl::string_view, 27> kSigns = {
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">",
        "=",  ".",  ",",  ":",  "|",  "(",  ")", "[", "]", "{", "}", ";", "!"};
    for (const absl::string_view sign : kSigns) {
      if (!Looking(sign)) continue;
      const char c = sign[0];
      if (c == '(' || c == '[' || c == '{') open->push_back(c);
      if (c == ')' || c == ']' || c == '}') {
        const char wanted = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (open->empty() || open->back() != wanted) return Fail(absl::StrCat("unexpected ", sign));
        open->pop_back();
      }
      Put(Token::Type::kSign, std::string(sign));
      at_ += sign.size();
      return;
    }
    Fail(absl::StrCat("unexpected character ", in_.substr(at_, 1)));
  }

  void String(char quote) {
    std::string text;
    size_t at = at_ + 1;
    for (;; ++at) {
      if (at >= in_.size()) return Fail("string without an end");
      const char c = in_[at];
      if (c == quote) break;
      if (c != '\\') {
        text.push_back(c);
        continue;
      }
      if (++at >= in_.size()) return Fail("string without an end");
      if (!EscapeInString(&at, &text)) return;
    }
    const int line = line_;
    Put(Token::Type::kString, "", Value::Of(std::move(text)));
    MoveTo(at + 1);
    tokens_.back().line = line;
  }

  // Python's escapes. *at remains on the last byte of the escape.
  bool EscapeInString(size_t* at, std::string* text) {
    const char c = in_[*at];
    switch (c) {
      case 'n':
        text->push_back('\n');
        return true;
      case 't':
        text->push_back('\t');
        return true;
      case 'r':
        text->push_back('\r');
        return true;
      case 'a':
        text->push_back('\a');
        return true;
      case 'b':
        text->push_back('\b');
        return true;
      case 'f':
        text->push_back('\f');
        return true;
      case 'v':
        text->push_back('\v');
        return true;
      case '\\':
      case '\'':
      case '"':
        text->push_back(c);
        return true;
      case '\n':
        return true;
      case 'x':
      case 'u':
      case 'U': {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t code = 0;
        if (*at + digits >= in_.size() ||
            !absl::SimpleHexAtoi(in_.substr(*at + 1, digits), &code) || code > 0x10FFFF ||
            (code >= 0xD800 && code < 0xE000)) {
          Fail(absl::StrCat("bad escape \\", std::string(1, c)));
          return false;
        }
        AppendUtf8(code, text);
        *at += digits;
        return true;
      }
      default:
        if (c >= '0' && c <= '7') {
          uint32_t code = 0;
          size_t n = 0;
          for (; n < 3 && *at + n < in_.size() && in_[*at + n] >= '0' && in_[*at + n] <= '7'; ++n) {
            code = code * 8 + static_cast<uint32_t>(in_[*at + n] - '0');
          }
          AppendUtf8(code, text);
          *at += n - 1;
          return true;
        }
        text->push_back('\\');  // Python keeps unknown escapes
        text->push_back(c);
        return true;
    }
  }

  void Number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < in_.size() &&
             (absl::ascii_isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == '_'))
        ++end;
    };
    digits();
    bool real = false;
    if (end + 1 < in_.size() && in_[end] == '.' &&
        absl::ascii_isdigit(static_cast<unsigned char>(in_[end + 1]))) {
      real = true;
      ++end;
      digits();
    }
    if (end < in_.size() && (in_[end] == 'e' || in_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < in_.size() && (in_[exponent] == '+' || in_[exponent] == '-')) ++exponent;
      if (exponent < in_.size() && absl::ascii_isdigit(static_cast<unsigned char>(in_[exponent]))) {
        real = true;
        end = exponent;
        digits();
      }
    }
    const std::string text = absl::StrReplaceAll(in_.substr(at_, end - at_), {{"_", ""}});
    int64_t integer = 0;
    double number = 0;
    if (real && absl::SimpleAtod(text, &number)) {
      Put(Token::Type::kFloat, text, Value::Of(number));
    } else if (!real && absl::SimpleAtoi(text, &integer)) {
      Put(Token::Type::kInt, text, Value::Of(integer));
    } else {
      Fail(absl::StrCat("the number ", text, " is beyond 64 bits"));
    }
    at_ = end;
  }

  const std::string source_;
  const absl::string_view in_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Lex(absl::string_view source) {
  if (!IsValidUtf8(source)) return absl::InvalidArgumentError("the template is no valid UTF-8");
  std::string text = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  if (absl::EndsWith(text, "\n")) text.pop_back();
  return Lexer(std::move(text)).Run();
}

}  // namespace espalier::jinja
