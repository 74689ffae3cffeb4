// Signatures of requests to AWS ("Signature Version 4", in the Authorization header).
//
// libcurl has CURLOPT_AWS_SIGV4, but that of Debian 12 signs the query as it stands, unsorted, and
// cannot be checked against AWS's examples, as it takes the time by itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace espalier::s3 {

struct SigningKey {
  std::string access_key_id, secret_access_key;
  std::string region, service = "s3";
};

struct UnsignedRequest {
  std::string method;
  std::string path = "/";                                  // percent-encoded once, as it is sent
  std::vector<std::pair<std::string, std::string>> query;  // neither encoded nor sorted
  // All that are signed, with "host"; names in lower case.
  std::vector<std::pair<std::string, std::string>> headers;
  std::string payload_sha256;  // hexadecimal
};

// Encodes all but letters, digits and "-._~". `keep_slash`: nor "/".
std::string PercentEncode(absl::string_view text, bool keep_slash = false);
// "a=1&b=2", encoded and sorted; "a=" for an empty value.
std::string CanonicalQuery(std::vector<std::pair<std::string, std::string>> query);

// "20130524T000000Z", the value of x-amz-date.
std::string AmzDate(absl::Time now);
// Returns the value of Authorization. `now` is the time that x-amz-date gives.
std::string Authorization(const SigningKey& key, const UnsignedRequest& request, absl::Time now);

}  // namespace espalier::s3
