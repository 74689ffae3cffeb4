#include "storage/s3/sigv4.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/hmac_sha256.h"
#include "base/sha256.h"

namespace espalier::s3 {

std::string PercentEncode(absl::string_view text, bool keep_slash) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ||
                       c == '_' || c == '~' || (keep_slash && c == '/');
    if (plain) {
      encoded += c;
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::string CanonicalQuery(std::vector<std::pair<std::string, std::string>> query) {
  for (auto& [name, value] : query) {
    name = PercentEncode(name);
    value = PercentEncode(value);
  }
  std::sort(query.begin(), query.end());
  return absl::StrJoin(query, "&", absl::PairFormatter("="));
}

std::string AmzDate(absl::Time now) {
  return absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone());
}

std::string Authorization(const SigningKey& key, const UnsignedRequest& request, absl::Time now) {
  std::vector<std::pair<std::string, std::string>> headers = request.headers;
  std::sort(headers.begin(), headers.end());
  std::string canonical_headers, signed_names;
  for (const auto& [name, value] : headers) {
    absl::StrAppend(&canonical_headers, name, ":", absl::StripAsciiWhitespace(value), "\n");
    absl::StrAppend(&signed_names, signed_names.empty() ? "" : ";", name);
  }
  const std::string canonical =
      absl::StrJoin({request.method, request.path, CanonicalQuery(request.query), canonical_headers,
                     signed_names, request.payload_sha256},
                    "\n");
  const std::string time = AmzDate(now), day = time.substr(0, 8);
  const std::string scope = absl::StrCat(day, "/", key.region, "/", key.service, "/aws4_request");
  const std::string to_sign =
      absl::StrCat("AWS4-HMAC-SHA256\n", time, "\n", scope, "\n", Sha256Hex(canonical));
  std::string code = absl::StrCat("AWS4", key.secret_access_key);
  for (const std::string& part : {day, key.region, key.service, std::string("aws4_request")}) {
    code = HmacSha256(code, part);
  }
  return absl::StrCat("AWS4-HMAC-SHA256 Credential=", key.access_key_id, "/", scope,
                      ",SignedHeaders=", signed_names,
                      ",Signature=", absl::BytesToHexString(HmacSha256(code, to_sign)));
}

}  // namespace espalier::s3
