// Bytes in pieces to valid UTF-8 in pieces: never cuts a character, never emits an invalid byte.
// Each maximal part of an ill-formed sequence becomes U+FFFD, as browsers and the Unicode standard
// (section 3.9, "U+FFFD substitution of maximal subparts") do it, so the text is the same however
// the bytes were cut.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

class Utf8Stream {
 public:
  // What can be said for certain after these bytes.
  std::string Append(absl::string_view bytes);
  // The end: an unfinished character becomes U+FFFD. The stream is then as new.
  std::string Flush();

 private:
  void Push(uint8_t byte, std::string& out);

  std::string partial_;  // bytes of a character that is not finished
  int missing_ = 0;      // continuation bytes that it still needs
  uint8_t low_ = 0x80;   // what the next one may be
  uint8_t high_ = 0xBF;
};

// True if `text` is well-formed UTF-8.
bool IsValidUtf8(absl::string_view text);

}  // namespace espalier
