#include "base/net/access_token.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/sha256.h"

namespace espalier {
namespace {

constexpr size_t kIdDigits = 12;
constexpr size_t kSecretBytes = 16, kHashBytes = 32, kCheckBytes = 4;
constexpr size_t kLongestText = 2048;
constexpr char kBeforeHttp[] = ";";

bool IsHex(absl::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

// Tells a text that was cut off or changed in copying from one that somebody else made.
std::string CheckOf(absl::string_view id, absl::string_view packed) {
  return absl::HexStringToBytes(
      Sha256Hex(absl::StrCat(id, ".", packed)).substr(0, 2 * kCheckBytes));
}

}  // namespace

bool IsAccessToken(absl::string_view text) { return absl::StartsWith(text, kAccessTokenPrefix); }

std::string FormatAccessToken(const AccessTokenText& token) {
  std::string packed = absl::StrCat(absl::HexStringToBytes(token.secret),
                                    absl::HexStringToBytes(token.ca_sha256), token.coordinator);
  if (!token.http.empty()) absl::StrAppend(&packed, kBeforeHttp, token.http);
  absl::StrAppend(&packed, CheckOf(token.id, packed));
  return absl::StrCat(kAccessTokenPrefix, token.id, ".", absl::WebSafeBase64Escape(packed));
}

absl::StatusOr<AccessTokenText> ParseAccessToken(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  std::string packed;
  if (text.size() > kLongestText || !IsAccessToken(text) || parts.size() != 3 ||
      !IsHex(parts[1], kIdDigits) || !absl::WebSafeBase64Unescape(parts[2], &packed) ||
      packed.size() <= kSecretBytes + kHashBytes + kCheckBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("this is no token, or a part of one: it begins with ", kAccessTokenPrefix,
                     " and is printed by `espalier token create`"));
  }
  AccessTokenText token;
  token.id = std::string(parts[1]);
  const absl::string_view body = absl::string_view(packed).substr(0, packed.size() - kCheckBytes);
  if (packed.substr(body.size()) != CheckOf(token.id, body)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token ", token.id,
                     " was not copied completely: its end is missing, or a "
                     "character has changed"));
  }
  token.secret = absl::BytesToHexString(body.substr(0, kSecretBytes));
  token.ca_sha256 = absl::BytesToHexString(body.substr(kSecretBytes, kHashBytes));
  const std::vector<std::string> addresses =
      absl::StrSplit(body.substr(kSecretBytes + kHashBytes), kBeforeHttp);
  token.coordinator = addresses[0];
  if (addresses.size() > 1) token.http = addresses[1];
  return token;
}

}  // namespace espalier
