// Which web pages may use the HTTP API. Browsers let any page send requests to this machine, also
// by a name that the page's owner points at 127.0.0.1 (DNS rebinding).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/http/http_server.h"

namespace espalier {

struct OriginPolicyOptions {
  // Refuses requests whose Host is not this machine's loopback, and those of pages of other origins
  // that are not allowed: where no key keeps them out.
  bool only_loopback_hosts = false, only_allowed_origins = false;
  std::vector<std::string> allowed;  // "https://chat.example", "http://localhost:3000"; "*": all
};

// Immutable.
class OriginPolicy {
 public:
  explicit OriginPolicy(OriginPolicyOptions options) : options_(std::move(options)) {}

  // Returns InvalidArgument, naming --http-allowed-origins, unless each is "*" or scheme, host and
  // port.
  static absl::Status CheckAllowed(const std::vector<std::string>& origins);

  // PermissionDenied, with the remedy, if the request is refused.
  absl::Status Check(const HttpRequest& header) const;

  // Whether it asks, for a page that is allowed, what the page may send.
  bool IsPreflight(const HttpRequest& header) const;
  // Answers a preflight; the responder must be WithCors'.
  static void AnswerPreflight(const HttpRequest& header, HttpResponder& responder);

  // Adds the headers that let the page which sent `header` read the answer, if it is allowed.
  std::shared_ptr<HttpResponder> WithCors(const HttpRequest& header,
                                          std::shared_ptr<HttpResponder> responder) const;

 private:
  bool IsAllowed(const std::string& origin) const;

  const OriginPolicyOptions options_;
};

}  // namespace espalier
