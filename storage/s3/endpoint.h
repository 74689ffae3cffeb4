// Where a bucket is: s3:// URLs, regions and endpoints.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "storage/s3/aws_profile.h"
#include "storage/s3/http.h"

namespace espalier::s3 {

inline constexpr char kScheme[] = "s3://";

struct S3Url {
  std::string bucket;
  std::string key;  // or a prefix; without slashes at its ends
  std::string ToString() const;
};

// Parses "s3://bucket", "s3://bucket/prefix" or "s3://bucket/folder/key". InvalidArgument for other
// text, a bucket's name that no bucket has, and parts of the key that are empty, "." or "..".
absl::StatusOr<S3Url> ParseS3Url(absl::string_view url);

struct Endpoint {
  std::string scheme = "https";
  std::string host;         // with the port, if it is not the scheme's
  std::string base_path;    // "" or "/path"
  bool path_style = false;  // the bucket is in the path, not in the host's name
  std::string region;
};

// Parses AWS_ENDPOINT_URL: http:// or https://, without user, query and fragment.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& url);

// Takes the endpoint from AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (path style), else AWS's own; the
// region from AWS_REGION, AWS_DEFAULT_REGION, the profile, or instance metadata, for an endpoint of
// one's own also "us-east-1". FailedPrecondition, with the remedy, if there is no region.
absl::StatusOr<Endpoint> FindEndpoint(const Environment& environment, FileSystem& files,
                                      HttpTransport& http);

// Host and path of a bucket, without the key: {"bucket.s3.eu-west-1.amazonaws.com", "/"}.
struct BucketPlace {
  std::string host, path;
};
BucketPlace PlaceOf(const Endpoint& endpoint, const std::string& bucket);

}  // namespace espalier::s3
