// What an error of S3 means, and what to do about it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "storage/s3/answers.h"
#include "storage/s3/credentials.h"

namespace espalier::s3 {

inline constexpr char kReadRight[] = "s3:GetObject";

struct FailedCall {
  std::string name;    // "GET s3://bucket/key"
  std::string bucket;  // also for remedies
  std::string right;   // what the credentials need for it, as "s3:PutObject"
  int status = 0;
  ErrorAnswer error;
  std::string bucket_region;  // x-amz-bucket-region
};

// Returns the error with S3's code as a payload (CodeOf). Unavailable if another attempt may
// succeed.
absl::Status ErrorOfCall(const FailedCall& call, const Credentials& credentials);

// S3's code, as "NoSuchUpload"; empty for other errors.
std::string CodeOf(const absl::Status& status);
// Whether credentials that are renewed may help.
bool IsStaleCredentials(const absl::Status& status);

}  // namespace espalier::s3
