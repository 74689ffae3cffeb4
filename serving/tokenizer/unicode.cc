#include "serving/tokenizer/unicode.h"

#include <unicode/brkiter.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/uscript.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "serving/tokenizer/unicode_16_additions.h"

namespace espalier {
namespace {

// Whether the code point was assigned in that version of Unicode.
bool IsOfAge(char32_t c, int major) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] > 0 && age[0] <= major;
}

bool HasCategory(char32_t c, uint32_t mask) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & mask) != 0;
}

// The category of a code point in the table of additions, as an ICU mask; 0 if it is absent.
uint32_t NewerCategory(char32_t c) {
  const std::vector<AddedRange>& table = Unicode16Additions();
  const auto at = std::upper_bound(table.begin(), table.end(), c,
                                   [](char32_t x, const AddedRange& r) { return x < r.first; });
  if (at == table.begin() || c > std::prev(at)->last) return 0;
  const absl::string_view name = std::prev(at)->category;
  if (name[0] == 'L') return U_GC_L_MASK;
  if (name[0] == 'M') return U_GC_M_MASK;
  if (name == "Nd") return U_GC_ND_MASK;
  if (name == "Nl") return U_GC_NL_MASK;
  if (name == "No") return U_GC_NO_MASK;
  return U_GC_CN_MASK;  // irrelevant here
}

bool In(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

const icu::Normalizer2* Base(NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  switch (form) {
    case NormalForm::kNfc:
      return icu::Normalizer2::getNFCInstance(error);
    case NormalForm::kNfd:
      return icu::Normalizer2::getNFDInstance(error);
    case NormalForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    case NormalForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(error);
  }
  return nullptr;
}

const icu::UnicodeSet& AssignedInUnicode9() {
  static const icu::UnicodeSet* const set = [] {
    UErrorCode error = U_ZERO_ERROR;
    auto* built = new icu::UnicodeSet(icu::UnicodeString("[:age=9.0:]"), error);
    built->freeze();
    return built;
  }();
  return *set;
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

char32_t NextCodePoint(absl::string_view text, size_t* at) {
  const auto byte = [&] { return static_cast<unsigned char>(text[(*at)++]); };
  const char32_t first = byte();
  if (first < 0x80) return first;
  if (first < 0xE0) return (first & 0x1F) << 6 | (byte() & 0x3F);
  if (first < 0xF0) {
    const char32_t high = (first & 0x0F) << 12 | static_cast<char32_t>(byte() & 0x3F) << 6;
    return high | (byte() & 0x3F);
  }
  const char32_t top = (first & 0x07) << 18 | static_cast<char32_t>(byte() & 0x3F) << 12;
  const char32_t high = top | static_cast<char32_t>(byte() & 0x3F) << 6;
  return high | (byte() & 0x3F);
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

size_t PreviousCharacter(absl::string_view text, size_t at) {
  do --at;
  while (at > 0 && (text[at] & 0xC0) == 0x80);
  return at;
}

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return In(c, 0x09, 0x0D) || c == ' ';
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return In(c, '0', '9');
  return HasCategory(c, U_GC_N_MASK) || (NewerCategory(c) & U_GC_N_MASK) != 0 ||
         In(c, 0x11DE0, 0x11DE9) || In(c, 0x16FF4, 0x16FF6);
}

bool IsWordCharacter(char32_t c) {
  if (c < 0x80) return In(c, '0', '9') || In(c | 0x20, 'a', 'z') || c == '_';
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_ALPHABETIC) ||
         HasCategory(c, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK) || In(c, 0x200C, 0x200D) ||
         (NewerCategory(c) & (U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_NL_MASK)) != 0;
}

bool IsCombiningMark(char32_t c) {
  if (In(c, 0x1CF2, 0x1CF3)) return true;  // marks until Unicode 12
  // A character of Sharada became a mark after Unicode 9.
  return c >= 0x300 && c != 0x111C9 && HasCategory(c, U_GC_M_MASK) && IsOfAge(c, 9);
}

bool IsNonspacingMark(char32_t c) {
  if (c < 0x300) return false;
  // Some characters got the category after Unicode 8, one lost it.
  if (In(c, 0x1885, 0x1886) || c == 0xA9BD || c == 0x111C9) return false;
  return c == 0x1734 || (HasCategory(c, U_GC_MN_MASK) && IsOfAge(c, 8));
}

bool IsBertPunctuation(char32_t c) {
  if (c < 0x80) return In(c, '!', '/') || In(c, ':', '@') || In(c, '[', '`') || In(c, '{', '~');
  if (c == 0x166D || c == 0x111C9) return true;  // punctuation in Unicode 8
  return HasCategory(c, U_GC_P_MASK) && IsOfAge(c, 8);
}

bool IsControlOrPrivate(char32_t c) {
  if (c < 0x80) return c < 0x20 || c == 0x7F;
  if (c == 0x110BD) return true;
  return HasCategory(c, U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK) && IsOfAge(c, 8);
}

void AppendLowercase(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(In(c, 'A', 'Z') ? c + 0x20 : c));
    return;
  }
  if (c == 0x130) {  // the only mapping to two characters
    out->append("i\xCC\x87");
    return;
  }
  struct Pair {
    char32_t first, last, lower;
  };
  static constexpr Pair kNewer[] = {{0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},
                                    {0xA7CC, 0xA7CC, 0xA7CD},    {0xA7CE, 0xA7CE, 0xA7CF},
                                    {0xA7D2, 0xA7D2, 0xA7D3},    {0xA7D4, 0xA7D4, 0xA7D5},
                                    {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},
                                    {0x10D50, 0x10D65, 0x10D70}, {0x16EA0, 0x16EB8, 0x16EBB}};
  for (const Pair& pair : kNewer) {
    if (In(c, pair.first, pair.last)) {
      AppendUtf8(pair.lower + (c - pair.first), out);
      return;
    }
  }
  AppendUtf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))), out);
}

std::string Normalize(NormalForm form, absl::string_view text) {
  if (IsAscii(text)) return std::string(text);
  const icu::FilteredNormalizer2 normalizer(*Base(form), AssignedInUnicode9());
  UErrorCode error = U_ZERO_ERROR;
  std::string out;
  out.reserve(text.size());
  // ICU's lengths have 31 bits; callers limit the text far below that.
  icu::StringByteSink<std::string> sink(&out);
  normalizer.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                           sink, nullptr, error);
  return out;
}

std::vector<size_t> GraphemeEnds(absl::string_view text) {
  std::vector<size_t> ends;
  UErrorCode error = U_ZERO_ERROR;
  static const icu::BreakIterator* const prototype = [] {
    UErrorCode error = U_ZERO_ERROR;
    return icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), error);
  }();
  const std::unique_ptr<icu::BreakIterator> breaks(prototype->clone());
  UText* utext = utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &error);
  breaks->setText(utext, error);
  for (int32_t at = breaks->next(); at != icu::BreakIterator::DONE; at = breaks->next()) {
    ends.push_back(static_cast<size_t>(at));
  }
  utext_close(utext);
  return ends;
}

int ScriptOf(char32_t c) {
  if (c == ' ' || !IsOfAge(c, 9) || HasCategory(c, U_GC_CO_MASK | U_GC_CN_MASK)) return kAnyScript;
  if (c == 0x30FC) return USCRIPT_HAN;
  UErrorCode error = U_ZERO_ERROR;
  const int script = uscript_getScript(static_cast<UChar32>(c), &error);
  return script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA ? USCRIPT_HAN : script;
}

}  // namespace espalier
