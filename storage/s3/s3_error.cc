#include "storage/s3/s3_error.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace espalier::s3 {
namespace {

constexpr char kPayload[] = "espalier/s3-code";

template <size_t N>
bool IsOneOf(absl::string_view code, const char* const (&codes)[N]) {
  return std::find(std::begin(codes), std::end(codes), code) != std::end(codes);
}

constexpr const char* kLater[] = {"SlowDown",
                                  "InternalError",
                                  "ServiceUnavailable",
                                  "RequestTimeout",
                                  "Throttling",
                                  "ThrottlingException",
                                  "OperationAborted",
                                  "ConditionalRequestConflict",
                                  "RequestLimitExceeded",
                                  "TooManyRequests"};
constexpr const char* kStale[] = {"ExpiredToken", "ExpiredTokenException", "InvalidToken",
                                  "TokenRefreshRequired"};
constexpr const char* kFull[] = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage",
                                 "EntityTooLarge"};
constexpr const char* kElsewhere[] = {"PermanentRedirect", "TemporaryRedirect",
                                      "AuthorizationHeaderMalformed",
                                      "IllegalLocationConstraintException"};

struct Meaning {
  absl::StatusCode code = absl::StatusCode::kInternal;
  std::string remedy;
};

Meaning MeaningOf(const FailedCall& call, const Credentials& credentials) {
  using Code = absl::StatusCode;
  const std::string& code = call.error.code;
  const std::string mine = absl::StrCat("the credentials of ", credentials.source);
  if (IsOneOf(code, kStale)) {
    return {Code::kPermissionDenied,
            absl::StrCat(mine, " are no longer valid; renew them (they have been read once more)")};
  }
  if (call.status == 500 || call.status == 502 || call.status == 503 || call.status == 504 ||
      call.status == 429 || IsOneOf(code, kLater)) {
    return {Code::kUnavailable, ""};
  }
  if (code == "NoSuchBucket") {
    return {Code::kFailedPrecondition,
            absl::StrCat("create the bucket '", call.bucket,
                         "', or correct its name, region or endpoint (AWS_ENDPOINT_URL_S3)")};
  }
  if (IsOneOf(code, kElsewhere) || call.status == 301 || call.status == 307) {
    std::string region = call.bucket_region.empty() ? call.error.region : call.bucket_region;
    return {Code::kFailedPrecondition,
            absl::StrCat("the bucket is in another region; set AWS_REGION=",
                         region.empty() ? "to that of the bucket" : region)};
  }
  if (code == "InvalidAccessKeyId") {
    return {Code::kPermissionDenied, absl::StrCat("nobody has ", mine, " (access key ",
                                                  credentials.access_key_id.substr(0, 20), ")")};
  }
  if (code == "SignatureDoesNotMatch") {
    return {Code::kPermissionDenied,
            absl::StrCat("the secret of ", mine, " is wrong, or the region (AWS_REGION)")};
  }
  if (code == "RequestTimeTooSkewed") {
    return {Code::kPermissionDenied, "set this host's clock; it differs from S3's by too much"};
  }
  if (call.status == 401 || call.status == 403) {
    return {Code::kPermissionDenied,
            absl::StrCat(mine, " need ", call.right,
                         call.right == kReadRight
                             ? ", or the object does not exist and they lack s3:ListBucket"
                             : "")};
  }
  if (IsOneOf(code, kFull) || call.status == 507) {
    return {Code::kResourceExhausted, "make room there, or raise the quota"};
  }
  if (call.status == 404) return {Code::kNotFound, ""};
  if (call.status == 412) return {Code::kAborted, ""};
  if (code == "NotImplemented" || call.status == 501) {
    return {Code::kUnimplemented, "this S3 server lacks what Espalier needs; update it"};
  }
  return {Code::kInternal, ""};
}

}  // namespace

absl::Status ErrorOfCall(const FailedCall& call, const Credentials& credentials) {
  const Meaning meaning = MeaningOf(call, credentials);
  absl::Status status(meaning.code,
                      absl::StrCat(call.name, ": ", call.status, call.error.code.empty() ? "" : " ",
                                   call.error.code, call.error.message.empty() ? "" : ": ",
                                   call.error.message.substr(0, 500),
                                   meaning.remedy.empty() ? "" : "; ", meaning.remedy));
  status.SetPayload(
      kPayload, absl::Cord(call.error.code.empty() ? absl::StrCat(call.status) : call.error.code));
  return status;
}

std::string CodeOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

bool IsStaleCredentials(const absl::Status& status) {
  // The place where they are from may have others by now: keys are rotated, and old ones deleted.
  return IsOneOf(CodeOf(status), kStale) || CodeOf(status) == "InvalidAccessKeyId";
}

}  // namespace espalier::s3
