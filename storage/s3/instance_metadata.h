// What an EC2 instance tells its programs (IMDSv2).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "storage/s3/aws_profile.h"
#include "storage/s3/http.h"

namespace espalier::s3 {

class InstanceMetadata {
 public:
  // `http` must outlive this.
  InstanceMetadata(const Environment& environment, HttpTransport& http);

  // NotFound if there is no such service, or if it is switched off (AWS_EC2_METADATA_DISABLED):
  // this is no EC2 instance. Takes a second or two then.
  absl::StatusOr<std::string> Region();
  // The JSON text of the credentials of the instance's role.
  absl::StatusOr<std::string> RoleCredentials();

 private:
  absl::StatusOr<std::string> Get(const std::string& path);

  HttpTransport& http_;
  std::string url_;  // empty: switched off
  std::string token_;
};

}  // namespace espalier::s3
