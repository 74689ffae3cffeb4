// Unicode as the Hugging Face library sees it, which is several versions of it at once: its regular
// expressions know Unicode 16, its normal forms 9, its punctuation 8. Found out by asking that
// library (0.23) about every code point; ICU 72 and PCRE2 10.42, which know 15 and 14, supply the
// bulk, and a table what is newer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace espalier {

// The code point that begins at text[*at]; moves *at behind it. REQUIRES: valid UTF-8, *at inside.
char32_t NextCodePoint(absl::string_view text, size_t* at);
void AppendUtf8(char32_t c, std::string* out);
// Where the character before `at` begins. REQUIRES: valid UTF-8, 0 < at <= size.
size_t PreviousCharacter(absl::string_view text, size_t at);

bool IsWhitespace(char32_t c);                       // White_Space
bool IsNumeric(char32_t c);                          // N, Unicode 17
bool IsWordCharacter(char32_t c);                    // Alphabetic, M, Nd, Pc, Join_Control
bool IsCombiningMark(char32_t c);                    // M, Unicode 9
bool IsNonspacingMark(char32_t c);                   // Mn, Unicode 8
bool IsBertPunctuation(char32_t c);                  // P, Unicode 8, and all ASCII signs
bool IsControlOrPrivate(char32_t c);                 // Cc, Cf, Co, Unicode 8
void AppendLowercase(char32_t c, std::string* out);  // full mapping without context

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Unicode 9; what is newer stays as it is. REQUIRES: valid UTF-8.
std::string Normalize(NormalForm form, absl::string_view text);

// Where each extended grapheme cluster of the text ends, in bytes, ascending.
// REQUIRES: valid UTF-8.
std::vector<size_t> GraphemeEnds(absl::string_view text);

// One number per script, equal for characters that are written together: Hiragana, Katakana and the
// prolonged sound mark count as Han. kAnyScript for the space, which goes with everything.
inline constexpr int kAnyScript = -1;
int ScriptOf(char32_t c);

}  // namespace espalier
