// The XML that S3 and STS answer with. It is not trusted: nothing but elements and texts is read,
// nesting is bounded, and the transport bounds the size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/s3/credentials.h"

namespace espalier::s3 {

struct ErrorAnswer {
  std::string code, message, region;  // empty if not given
};

// All is empty if the text is no error of S3 or STS.
ErrorAnswer ParseError(absl::string_view xml);
// Whether it is an error: S3 may report one after it answered 200.
bool IsError(absl::string_view xml);
// Whether it says that an upload is complete.
bool IsCompletedUpload(absl::string_view xml);

struct ListedObject {
  std::string key;
  int64_t bytes = 0;
};

struct ListPage {
  std::vector<ListedObject> objects;
  std::string next;  // continuation token; empty: the last page
};
absl::StatusOr<ListPage> ParseListPage(absl::string_view xml);

struct PendingUpload {
  std::string key, id;
};

struct UploadsPage {
  std::vector<PendingUpload> uploads;
  bool more = false;
  PendingUpload next;  // markers
};
absl::StatusOr<UploadsPage> ParseUploadsPage(absl::string_view xml);

// The UploadId of InitiateMultipartUploadResult.
absl::StatusOr<std::string> ParseUploadId(absl::string_view xml);
// The body of CompleteMultipartUpload: parts 1, 2, ... by their ETags.
std::string CompletedParts(const std::vector<std::string>& etags);

// The credentials of AssumeRoleWithWebIdentityResponse.
absl::StatusOr<Credentials> ParseAssumedRole(absl::string_view xml);

}  // namespace espalier::s3
