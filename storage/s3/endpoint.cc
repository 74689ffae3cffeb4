#include "storage/s3/endpoint.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "storage/s3/instance_metadata.h"
#include "storage/s3/sigv4.h"

namespace espalier::s3 {
namespace {

constexpr size_t kMaxKeyBytes = 1024;

bool IsBucketName(absl::string_view name) {
  return name.size() >= 3 && name.size() <= 63 &&
         absl::ascii_isalnum(static_cast<unsigned char>(name.front())) &&
         absl::ascii_isalnum(static_cast<unsigned char>(name.back())) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ||
                  c == '_';
         });
}

// Whether the name can be a part of a host's name for which there is a certificate.
bool IsHostPart(absl::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-';
  });
}

bool IsRegion(absl::string_view name) { return !name.empty() && IsHostPart(name); }

absl::Status BadUrl(absl::string_view url, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", url.substr(0, 300), "': ", problem, "; accepted: s3://bucket/prefix"));
}

}  // namespace

std::string S3Url::ToString() const {
  return key.empty() ? absl::StrCat(kScheme, bucket) : absl::StrCat(kScheme, bucket, "/", key);
}

absl::StatusOr<S3Url> ParseS3Url(absl::string_view url) {
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, kScheme)) return BadUrl(url, "it does not begin with s3://");
  const size_t slash = rest.find('/');
  const absl::string_view bucket = rest.substr(0, slash);
  if (!IsBucketName(bucket)) {
    return BadUrl(url, "a bucket's name has 3 to 63 letters, digits, hyphens and dots");
  }
  absl::string_view key = slash == absl::string_view::npos ? "" : rest.substr(slash + 1);
  absl::ConsumeSuffix(&key, "/");
  if (key.size() > kMaxKeyBytes) return BadUrl(url, "a key has at most 1024 bytes");
  for (const absl::string_view part : absl::StrSplit(key, '/', absl::AllowEmpty())) {
    if (key.empty()) break;
    if (part.empty() || part == "." || part == "..") {
      return BadUrl(url, "parts of the key that are empty, '.' or '..' are not read");
    }
  }
  for (const char c : key) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      return BadUrl(url, "there is a control character in it");
    }
  }
  return S3Url{std::string(bucket), std::string(key)};
}

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& url) {
  Endpoint endpoint;
  absl::string_view rest = url;
  if (absl::ConsumePrefix(&rest, "http://")) {
    endpoint.scheme = "http";
  } else if (!absl::ConsumePrefix(&rest, "https://")) {
    rest = "";
  }
  const size_t slash = rest.find('/');
  absl::string_view host = rest.substr(0, slash);
  if (host.empty() || rest.find_first_of("@?# \t\r\n") != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the endpoint '", url,
                     "' (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL) is not "
                     "http://HOST[:PORT] or https://HOST[:PORT]"));
  }
  absl::ConsumeSuffix(&host, endpoint.scheme == "http" ? ":80" : ":443");
  endpoint.host = std::string(host);
  if (slash != absl::string_view::npos) {
    absl::string_view path = rest.substr(slash);
    while (absl::ConsumeSuffix(&path, "/")) continue;
    endpoint.base_path = std::string(path);
  }
  endpoint.path_style = true;
  return endpoint;
}

absl::StatusOr<Endpoint> FindEndpoint(const Environment& environment, FileSystem& files,
                                      HttpTransport& http) {
  std::string own = environment("AWS_ENDPOINT_URL_S3");
  if (own.empty()) own = environment("AWS_ENDPOINT_URL");
  std::string region = environment("AWS_REGION");
  if (region.empty()) region = environment("AWS_DEFAULT_REGION");
  const std::string name = ProfileName(environment);
  for (const std::string& file : {ConfigFile(environment), CredentialsFile(environment)}) {
    if (!region.empty() && !own.empty()) break;
    const absl::StatusOr<Profile> profile = ReadProfile(files, file, name);
    if (!profile.ok()) continue;
    const auto value = [&](const char* key) {
      const auto found = profile->find(key);
      return found == profile->end() ? std::string() : found->second;
    };
    if (region.empty()) region = value("region");
    if (own.empty()) own = value("endpoint_url");
  }
  Endpoint endpoint;
  if (!own.empty()) {
    absl::StatusOr<Endpoint> parsed = ParseEndpoint(own);
    if (!parsed.ok()) return parsed;
    endpoint = *std::move(parsed);
    if (region.empty()) region = "us-east-1";
  } else if (region.empty()) {
    absl::StatusOr<std::string> found = InstanceMetadata(environment, http).Region();
    if (absl::IsUnavailable(found.status())) return found.status();
    if (!found.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the bucket's region is not known: set AWS_REGION, or AWS_ENDPOINT_URL_S3 for an S3 "
          "server of your own (looked at AWS_REGION, AWS_DEFAULT_REGION, ",
          ConfigFile(environment),
          " and instance metadata: ", std::string(found.status().message()), ")"));
    }
    region = *std::move(found);
  }
  if (!IsRegion(region)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", region, "' is no region; AWS_REGION is like eu-central-1"));
  }
  if (endpoint.host.empty()) {
    endpoint.host =
        absl::StrCat("s3.", region, ".amazonaws.com", absl::StartsWith(region, "cn-") ? ".cn" : "");
  }
  endpoint.region = region;
  return endpoint;
}

BucketPlace PlaceOf(const Endpoint& endpoint, const std::string& bucket) {
  if (!endpoint.path_style && IsHostPart(bucket)) {
    return {absl::StrCat(bucket, ".", endpoint.host), "/"};
  }
  return {endpoint.host, absl::StrCat(endpoint.base_path, "/", PercentEncode(bucket), "/")};
}

}  // namespace espalier::s3
