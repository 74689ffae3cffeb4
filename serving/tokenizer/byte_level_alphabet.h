// GPT-2's alphabet of byte-level models: each byte is a printable character, so that vocabularies
// can be written as text. Printable Latin-1 maps to itself, other bytes from U+0100 on.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

char32_t ByteCharacter(unsigned char byte);
// Returns -1 if the character represents no byte.
int CharacterByte(char32_t c);

void AppendByteAlphabet(absl::string_view bytes, std::string* out);
// The bytes that a text in the alphabet represents; nullopt if it has other characters. REQUIRES:
// valid UTF-8.
std::optional<std::string> FromByteAlphabet(absl::string_view text);

}  // namespace espalier
