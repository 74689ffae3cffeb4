// Turns bytes that arrive in pieces into valid UTF-8: never splits a character, never emits an
// invalid byte. Each maximal subpart of an ill-formed sequence becomes U+FFFD, as in browsers and
// the Unicode standard (section 3.9), so the result does not depend on the pieces.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

class Utf8Stream {
 public:
  // Returns the text that is certain after these bytes.
  std::string Append(absl::string_view bytes);
  // Ends the stream: an incomplete character becomes U+FFFD. Resets the stream.
  std::string Flush();

 private:
  void Push(uint8_t byte, std::string& out);

  std::string partial_;  // bytes of an incomplete character
  int missing_ = 0;      // missing continuation bytes
  uint8_t low_ = 0x80;   // range of the next byte
  uint8_t high_ = 0xBF;
};

// Whether `text` is well-formed UTF-8.
bool IsValidUtf8(absl::string_view text);

}  // namespace espalier
