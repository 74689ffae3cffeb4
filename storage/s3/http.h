// HTTP as S3 and the services that hand out credentials need it, behind an interface.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace espalier::s3 {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;
using HttpQuery = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  HttpHeaders headers;
  absl::string_view body;  // must outlive the call
  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration timeout = absl::Minutes(2);  // of all of it
  absl::Duration stall = absl::Seconds(30);   // gives up if next to nothing arrives for so long
  int64_t max_body_bytes = 1 << 20;           // of the response
  bool through_proxy = true;                  // if the environment names one
  // The call ends with Cancelled within a second once this is true. May be null.
  const std::atomic<bool>* cancelled = nullptr;
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  // Empty if there is none.
  std::string Header(const std::string& lower_case_name) const {
    const auto found = headers.find(lower_case_name);
    return found == headers.end() ? std::string() : found->second;
  }
};

// Thread-safe.
class HttpTransport {
 public:
  virtual ~HttpTransport() = default;
  // Returns every complete response, whatever its status. Unavailable if there was none, or only a
  // part; another attempt may succeed. FailedPrecondition, with the remedy, if none can succeed
  // (no libcurl, a certificate that is not trusted). ResourceExhausted if the response is too
  // large. Follows no redirections.
  virtual absl::StatusOr<HttpResponse> Send(const HttpRequest& request) = 0;
};

}  // namespace espalier::s3
