#include "server/http/percent_encoding.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Whether an escape begins at `at`.
bool IsEscape(absl::string_view text, size_t at) {
  return text[at] == '%' && at + 2 < text.size() &&
         absl::ascii_isxdigit(static_cast<unsigned char>(text[at + 1])) &&
         absl::ascii_isxdigit(static_cast<unsigned char>(text[at + 2]));
}

// Decodes the escapes of slash and percent sign, or all others.
std::string Decode(absl::string_view text, bool slash_and_percent) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!IsEscape(text, at)) {
      out += text[at];
      continue;
    }
    const absl::string_view code = text.substr(at + 1, 2);
    const bool special = absl::EqualsIgnoreCase(code, "2f") || code == "25";
    absl::StrAppend(&out, special == slash_and_percent ? absl::HexStringToBytes(code)
                                                       : absl::StrCat("%", code));
    at += 2;
  }
  return out;
}

}  // namespace

bool IsPercentEncoded(absl::string_view path) {
  for (size_t at = 0; at < path.size(); ++at) {
    if (path[at] != '%') continue;
    if (!IsEscape(path, at)) return false;
    const auto code = static_cast<unsigned char>(absl::HexStringToBytes(path.substr(at + 1, 2))[0]);
    if (absl::ascii_iscntrl(code)) return false;
  }
  return true;
}

std::string NormalizePath(absl::string_view path) { return Decode(path, false); }

std::string DecodeSegment(absl::string_view text) { return Decode(text, true); }

}  // namespace espalier
