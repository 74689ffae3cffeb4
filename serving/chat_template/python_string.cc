#include "serving/chat_template/python_string.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "serving/tokenizer/unicode.h"

namespace espalier::jinja {
namespace {

enum class Case { kUpper, kLower };

std::string Change(const std::string& text, Case to) {
  icu::UnicodeString unicode = icu::UnicodeString::fromUTF8(text);
  if (to == Case::kUpper) {
    unicode.toUpper(icu::Locale::getRoot());
  } else {
    unicode.toLower(icu::Locale::getRoot());
  }
  std::string out;
  unicode.toUTF8String(out);
  return out;
}

bool IsCased(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_LOWERCASE) ||
         u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_UPPERCASE) ||
         u_istitle(static_cast<UChar32>(c));
}

std::string TitleCase(char32_t c) {
  std::string one;
  // Full and simple mappings differ for a few ligatures, whose upper case Python uses.
  const auto title = static_cast<char32_t>(u_totitle(static_cast<UChar32>(c)));
  AppendUtf8(title, &one);
  return one;
}

}  // namespace

size_t FindSubstring(absl::string_view text, absl::string_view piece, size_t from) {
  if (from > text.size()) return absl::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, piece.data(), piece.size());
  if (found == nullptr) return absl::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLastSubstring(absl::string_view text, absl::string_view piece) {
  const std::string backwards(text.rbegin(), text.rend()), wanted(piece.rbegin(), piece.rend());
  const size_t found = FindSubstring(backwards, wanted);
  return found == absl::string_view::npos ? found : text.size() - found - piece.size();
}

int64_t Length(absl::string_view text) {
  int64_t n = 0;
  for (const char c : text) n += (c & 0xC0) != 0x80;
  return n;
}

size_t Offset(absl::string_view text, int64_t n) {
  size_t at = 0;
  for (; n > 0 && at < text.size(); --n) {
    do ++at;
    while (at < text.size() && (text[at] & 0xC0) == 0x80);
  }
  return at;
}

bool IsPythonSpace(char32_t c) { return IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

std::string StripText(absl::string_view text, bool left, bool right,
                      const std::string* characters) {
  const auto goes = [&](size_t begin, size_t end) {
    const absl::string_view one = text.substr(begin, end - begin);
    size_t at = 0;
    return characters == nullptr ? IsPythonSpace(NextCodePoint(one, &at))
                                 : absl::StrContains(*characters, one);
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    NextCodePoint(text, &next);
    if (!goes(begin, next)) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t previous = PreviousCharacter(text, end);
    if (!goes(previous, end)) break;
    end = previous;
  }
  return std::string(text.substr(begin, end - begin));
}

std::string Upper(const std::string& text) { return Change(text, Case::kUpper); }
std::string Lower(const std::string& text) { return Change(text, Case::kLower); }

std::string Capitalize(const std::string& text) {
  if (text.empty()) return text;
  size_t at = 0;
  const char32_t first = NextCodePoint(text, &at);
  return absl::StrCat(TitleCase(first), Lower(text.substr(at)));
}

std::string Title(const std::string& text) {
  std::string out;
  bool cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCodePoint(text, &at);
    if (cased) {
      AppendLowercase(c, &out);
    } else {
      out += TitleCase(c);
    }
    cased = IsCased(c);
  }
  return out;
}

std::string FilterTitle(const std::string& text) {
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCodePoint(text, &at);
    if (begins) {
      out += TitleCase(c);
    } else {
      AppendLowercase(c, &out);
    }
    begins = IsPythonSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  }
  return out;
}

}  // namespace espalier::jinja
