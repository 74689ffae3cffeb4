#include "serving/tokenizer/byte_level_alphabet.h"

#include <array>

#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char16_t, 256> MakeCharacters() {
  std::array<char16_t, 256> characters{};
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    characters[byte] = static_cast<char16_t>(StandsForItself(byte) ? byte : next++);
  }
  return characters;
}

constexpr std::array<char16_t, 256> kCharacters = MakeCharacters();

constexpr std::array<int16_t, 512> MakeBytes() {
  std::array<int16_t, 512> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr std::array<int16_t, 512> kBytes = MakeBytes();

}  // namespace

char32_t ByteCharacter(unsigned char byte) { return kCharacters[byte]; }

int CharacterByte(char32_t c) { return c < kBytes.size() ? kBytes[c] : -1; }

void AppendByteAlphabet(absl::string_view bytes, std::string* out) {
  for (const char byte : bytes) AppendUtf8(ByteCharacter(static_cast<unsigned char>(byte)), out);
}

std::optional<std::string> FromByteAlphabet(absl::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const int byte = CharacterByte(NextCodePoint(text, &at));
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace espalier
