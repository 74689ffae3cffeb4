// Unicode as Hugging Face's library (0.23) sees it, which mixes versions: 16 in regular
// expressions, 9 in normal forms, 8 in punctuation. Determined by querying that library for every
// code point. ICU 72 and PCRE2 10.42, which know versions 15 and 14, provide most of it; a table
// adds the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace espalier {

// Returns the code point at text[*at] and advances *at. REQUIRES: valid UTF-8, *at < size.
char32_t NextCodePoint(absl::string_view text, size_t* at);
void AppendUtf8(char32_t c, std::string* out);
// Byte offset of the character before `at`. REQUIRES: valid UTF-8, 0 < at <= size.
size_t PreviousCharacter(absl::string_view text, size_t at);

bool IsWhitespace(char32_t c);                       // White_Space
bool IsNumeric(char32_t c);                          // N, Unicode 17
bool IsWordCharacter(char32_t c);                    // Alphabetic, M, Nd, Pc, Join_Control
bool IsCombiningMark(char32_t c);                    // M, Unicode 9
bool IsNonspacingMark(char32_t c);                   // Mn, Unicode 8
bool IsBertPunctuation(char32_t c);                  // P, Unicode 8, and all ASCII punctuation
bool IsControlOrPrivate(char32_t c);                 // Cc, Cf, Co, Unicode 8
void AppendLowercase(char32_t c, std::string* out);  // full case mapping without context

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Unicode 9; newer characters are unchanged. REQUIRES: valid UTF-8.
std::string Normalize(NormalForm form, absl::string_view text);

// Byte offsets at which extended grapheme clusters end, ascending. REQUIRES: valid UTF-8.
std::vector<size_t> GraphemeEnds(absl::string_view text);

// A number per script, equal for scripts that are written together: Hiragana, Katakana and the
// prolonged sound mark count as Han. kAnyScript for the space, which matches every script.
inline constexpr int kAnyScript = -1;
int ScriptOf(char32_t c);

}  // namespace espalier
