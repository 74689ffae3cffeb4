#include "serving/output_parsers/python_literal.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "serving/grammar/grammar.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;

bool IsNamePart(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-'; }

}  // namespace

Json PythonLiteralParser::Fail() {
  failed_ = true;
  return nullptr;
}

char PythonLiteralParser::Next() {
  while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool PythonLiteralParser::Take(char c) {
  if (Next() != c) return false;
  ++at_;
  return true;
}

std::string PythonLiteralParser::Name() {
  Next();
  const size_t begin = at_;
  while (at_ < text_.size() && IsNamePart(text_[at_])) ++at_;
  return std::string(text_.substr(begin, at_ - begin));
}

Json PythonLiteralParser::Value() { return ValueAt(0); }

Json PythonLiteralParser::ValueAt(int depth) {
  if (depth > kMaxDepth) return Fail();
  const char c = Next();
  if (c == '"' || c == '\'') {
    std::string text = String();
    return failed_ ? Json() : Json(std::move(text));
  }
  if (Take('[')) return ListUpTo(']', depth);
  if (Take('(')) return ListUpTo(')', depth);
  if (Take('{')) return Dict(depth);
  if (absl::ascii_isdigit(c) || c == '-' || c == '+' || c == '.') return Number();
  const std::string word = Name();
  if (word == "True" || word == "true") return true;
  if (word == "False" || word == "false") return false;
  if (word == "None" || word == "null") return nullptr;
  return Fail();
}

Json PythonLiteralParser::ListUpTo(char close, int depth) {
  Json list = Json::array();
  bool comma = true;
  while (!Take(close)) {
    if (!comma) return Fail();
    list.push_back(ValueAt(depth + 1));
    if (failed_) return nullptr;
    comma = Take(',');
  }
  // (1) is 1, not a tuple.
  if (close == ')' && list.size() == 1 && !comma) return list[0];
  return list;
}

Json PythonLiteralParser::Dict(int depth) {
  Json dict = Json::object();
  bool comma = true;
  while (!Take('}')) {
    if (!comma) return Fail();
    const char quote = Next();
    if (quote != '"' && quote != '\'') return Fail();
    std::string key = String();
    if (failed_ || !Take(':')) return Fail();
    dict[std::move(key)] = ValueAt(depth + 1);
    if (failed_) return nullptr;
    comma = Take(',');
  }
  return dict;
}

Json PythonLiteralParser::Number() {
  const size_t begin = at_;
  if (text_[at_] == '-' || text_[at_] == '+') ++at_;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    const bool sign = (c == '-' || c == '+') && absl::ascii_tolower(text_[at_ - 1]) == 'e';
    if (!absl::ascii_isdigit(c) && c != '.' && c != 'e' && c != 'E' && c != '_' && !sign) break;
    ++at_;
  }
  const std::string digits =
      absl::StrReplaceAll(text_.substr(begin, at_ - begin), {{"_", ""}, {"+", ""}});
  int64_t integer = 0;
  if (absl::SimpleAtoi(digits, &integer)) return integer;
  double number = 0;
  if (absl::SimpleAtod(digits, &number) && std::isfinite(number)) return number;
  return Fail();
}

std::string PythonLiteralParser::String() {
  std::string out;
  while (Next() == '"' || Next() == '\'') {
    const char quote = text_[at_];
    const std::string triple(3, quote);
    const bool long_one = absl::StartsWith(text_.substr(at_), triple);
    const absl::string_view end = long_one ? absl::string_view(triple) : text_.substr(at_, 1);
    at_ += end.size();
    while (!failed_ && !absl::StartsWith(text_.substr(at_), end)) {
      if (at_ >= text_.size() || (text_[at_] == '\n' && !long_one)) {
        Fail();
      } else if (text_[at_] != '\\') {
        out.push_back(text_[at_++]);
      } else {
        Escape(&out);
      }
    }
    if (failed_) return "";
    at_ += end.size();
  }
  // Hex escapes may have spelled ill-formed UTF-8.
  if (!IsValidUtf8(out)) Fail();
  return out;
}

void PythonLiteralParser::Escape(std::string* out) {
  if (++at_ >= text_.size()) {
    Fail();
    return;
  }
  const char c = text_[at_++];
  const auto hex = [&](size_t digits, uint32_t* value) {
    const absl::string_view of = text_.substr(std::min(at_, text_.size()), digits);
    at_ += of.size();
    return of.size() == digits && absl::SimpleHexAtoi(of, value);
  };
  constexpr absl::string_view kPlain = "\\'\"/abfnrtv";
  constexpr absl::string_view kMeant = "\\'\"/\a\b\f\n\r\t\v";
  if (c == '\n') return;
  if (const size_t at = kPlain.find(c); at != absl::string_view::npos) {
    out->push_back(kMeant[at]);
    return;
  }
  if (c != 'x' && c != 'u' && c != 'U') {
    // Python keeps the backslash of an unknown escape.
    out->push_back('\\');
    out->push_back(c);
    return;
  }
  uint32_t point = 0;
  bool good = hex(c == 'x' ? 2 : c == 'u' ? 4 : 8, &point);
  // JSON spells code points above U+FFFF as surrogate pairs.
  if (good && point >= 0xD800 && point < 0xDC00 && absl::StartsWith(text_.substr(at_), "\\u")) {
    uint32_t low = 0;
    at_ += 2;
    good = hex(4, &low) && low >= 0xDC00 && low < 0xE000;
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  }
  if (!good || point > kLastCodePoint || (point >= 0xD800 && point < 0xE000)) {
    Fail();
    return;
  }
  AppendUtf8(point, out);
}

}  // namespace espalier
