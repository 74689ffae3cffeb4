#include "storage/s3/instance_metadata.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/s3/sigv4.h"

namespace espalier::s3 {
namespace {

constexpr char kAddress[] = "http://169.254.169.254";
constexpr int kTries = 2;

}  // namespace

InstanceMetadata::InstanceMetadata(const Environment& environment, HttpTransport& http)
    : http_(http) {
  if (absl::AsciiStrToLower(environment("AWS_EC2_METADATA_DISABLED")) == "true") return;
  url_ = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (url_.empty()) url_ = kAddress;
  url_ = std::string(absl::StripSuffix(url_, "/"));
}

absl::StatusOr<std::string> InstanceMetadata::Get(const std::string& path) {
  if (url_.empty()) return absl::NotFoundError("switched off by AWS_EC2_METADATA_DISABLED");
  HttpRequest request;
  request.connect_timeout = absl::Seconds(1);
  request.timeout = absl::Seconds(5);
  request.through_proxy = false;
  const auto send = [&]() -> absl::StatusOr<HttpResponse> {
    absl::StatusOr<HttpResponse> response;
    for (int i = 0; i < kTries; ++i) {
      response = http_.Send(request);
      if (response.ok() && response->status < 500) break;
    }
    // Once it gave a token it is there, and what fails may pass.
    const bool there = !token_.empty();
    if (!response.ok() && absl::IsUnavailable(response.status())) {
      const std::string problem = absl::StrCat("no answer from ", url_);
      return there ? absl::UnavailableError(problem) : absl::NotFoundError(problem);
    }
    if (there && response.ok() && (response->status >= 500 || response->status == 429)) {
      return absl::UnavailableError(absl::StrCat(request.url, " answers ", response->status));
    }
    return response;
  };
  if (token_.empty()) {
    request.method = "PUT";
    request.url = absl::StrCat(url_, "/latest/api/token");
    request.headers = {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}};
    const absl::StatusOr<HttpResponse> token = send();
    if (!token.ok()) return token.status();
    if (token->status != 200) {
      return absl::NotFoundError(absl::StrCat(request.url, " answers ", token->status));
    }
    token_ = token->body;
  }
  request.method = "GET";
  request.url = absl::StrCat(url_, path);
  request.headers = {{"X-aws-ec2-metadata-token", token_}};
  absl::StatusOr<HttpResponse> response = send();
  if (!response.ok()) return response.status();
  if (response->status != 200) {
    return absl::NotFoundError(absl::StrCat(request.url, " answers ", response->status));
  }
  return std::move(response->body);
}

absl::StatusOr<std::string> InstanceMetadata::Region() {
  absl::StatusOr<std::string> region = Get("/latest/meta-data/placement/region");
  if (!region.ok()) return region;
  return std::string(absl::StripAsciiWhitespace(*region));
}

absl::StatusOr<std::string> InstanceMetadata::RoleCredentials() {
  constexpr char kFolder[] = "/latest/meta-data/iam/security-credentials/";
  absl::StatusOr<std::string> roles = Get(kFolder);
  if (!roles.ok()) return roles;
  const std::string role(absl::StripAsciiWhitespace(roles->substr(0, roles->find('\n'))));
  if (role.empty()) return absl::NotFoundError("the instance has no role");
  return Get(absl::StrCat(kFolder, PercentEncode(role)));
}

}  // namespace espalier::s3
