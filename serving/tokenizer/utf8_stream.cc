#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

}  // namespace

void Utf8Stream::Push(uint8_t byte, std::string& out) {
  if (missing_ > 0) {
    if (byte >= low_ && byte <= high_) {
      partial_.push_back(static_cast<char>(byte));
      low_ = 0x80;
      high_ = 0xBF;
      if (--missing_ == 0) {
        out += partial_;
        partial_.clear();
      }
      return;
    }
    // The byte does not continue the character; it begins the next one.
    out += Flush();
  }
  if (byte < 0x80) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  // Table 3-7 of the Unicode standard: the range of the second byte excludes overlong forms,
  // surrogates and code points beyond U+10FFFF.
  if (byte >= 0xC2 && byte <= 0xDF) {
    missing_ = 1;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    missing_ = 2;
    if (byte == 0xE0) low_ = 0xA0;
    if (byte == 0xED) high_ = 0x9F;
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    missing_ = 3;
    if (byte == 0xF0) low_ = 0x90;
    if (byte == 0xF4) high_ = 0x8F;
  } else {
    out += kReplacement;
    return;
  }
  partial_.assign(1, static_cast<char>(byte));
}

std::string Utf8Stream::Append(absl::string_view bytes) {
  std::string out;
  for (const char c : bytes) Push(static_cast<uint8_t>(c), out);
  return out;
}

std::string Utf8Stream::Flush() {
  const bool unfinished = missing_ > 0;
  partial_.clear();
  missing_ = 0;
  low_ = 0x80;
  high_ = 0xBF;
  return unfinished ? kReplacement : "";
}

bool IsValidUtf8(absl::string_view text) {
  unsigned char any = 0;
  for (const char c : text) any |= static_cast<unsigned char>(c);
  if (any < 0x80) return true;
  Utf8Stream stream;
  std::string out = stream.Append(text);
  out += stream.Flush();
  return absl::string_view(out) == text;
}

}  // namespace espalier
