#include "server/http/gateway/origin_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/net/transport_security.h"
#include "server/inference/requests/schema_warnings.h"

namespace espalier {
namespace {

constexpr char kAll[] = "*";
constexpr size_t kMaxHeaderNames = 2048;

std::string HeaderOf(const HttpRequest& request, const char* name) {
  const auto found = request.headers.find(name);
  return found == request.headers.end() ? "" : found->second;
}

// Returns host and port of an origin; empty if it has none ("null").
absl::string_view AuthorityOf(absl::string_view origin) {
  const size_t at = origin.find("://");
  return at == origin.npos ? "" : origin.substr(at + 3);
}

// Names of headers as a browser sends them, "authorization,content-type"; anything else is not
// repeated in an answer.
bool AreHeaderNames(absl::string_view names) {
  return names.size() <= kMaxHeaderNames &&
         std::all_of(names.begin(), names.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == ',' || c == ' ';
         });
}

class CorsResponder : public HttpResponder {
 public:
  CorsResponder(std::shared_ptr<HttpResponder> inner, std::string origin, bool allowed)
      : inner_(std::move(inner)), origin_(std::move(origin)), allowed_(allowed) {}

  void Send(int status, std::string content_type, std::string body, Headers headers) override {
    inner_->Send(status, std::move(content_type), std::move(body), WithOrigin(std::move(headers)));
  }
  void StartStream(int status, std::string content_type, Headers headers) override {
    inner_->StartStream(status, std::move(content_type), WithOrigin(std::move(headers)));
  }
  void Write(std::string data) override { inner_->Write(std::move(data)); }
  void End() override { inner_->End(); }
  void OnClose(std::function<void()> closed) override { inner_->OnClose(std::move(closed)); }

 private:
  // A cache must not give one page's answer to another.
  Headers WithOrigin(Headers headers) const {
    headers.emplace_back("Vary", "Origin");
    if (allowed_) {
      headers.emplace_back("Access-Control-Allow-Origin", origin_);
      headers.emplace_back("Access-Control-Expose-Headers",
                           absl::StrCat("X-Request-Id, Request-Id, Retry-After, ", kWarningHeader));
    }
    return headers;
  }

  const std::shared_ptr<HttpResponder> inner_;
  const std::string origin_;
  const bool allowed_;
};

}  // namespace

absl::Status OriginPolicy::CheckAllowed(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    const absl::string_view authority = AuthorityOf(origin);
    const bool good = origin == kAll || (!authority.empty() && origin.find("://") > 0 &&
                                         authority.find_first_of("/?#@* ") == authority.npos);
    if (good) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--http-allowed-origins: '", origin,
                     "' is no origin; accepted: scheme://host or scheme://host:port, without a "
                     "path, or *"));
  }
  return absl::OkStatus();
}

bool OriginPolicy::IsAllowed(const std::string& origin) const {
  return std::any_of(options_.allowed.begin(), options_.allowed.end(),
                     [&](const std::string& allowed) {
                       return allowed == kAll || absl::EqualsIgnoreCase(allowed, origin);
                     });
}

absl::Status OriginPolicy::Check(const HttpRequest& header) const {
  const std::string host = HeaderOf(header, "host"), origin = HeaderOf(header, "origin");
  if (options_.only_loopback_hosts && !host.empty() && !IsLoopback(host)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the request is for the host '", host.substr(0, 100),
        "', but this server is for its own machine only: ask localhost or 127.0.0.1 (behind a "
        "proxy, let it send that as Host), or start espalierd with --api-key-file"));
  }
  const bool own = !host.empty() && absl::EqualsIgnoreCase(AuthorityOf(origin), host);
  if (options_.only_allowed_origins && !origin.empty() && !own && !IsAllowed(origin)) {
    return absl::PermissionDeniedError(
        absl::StrCat("pages of ", origin.substr(0, 100),
                     " may not use this server; start espalierd with --http-allowed-origins=",
                     origin.substr(0, 100), " to let them"));
  }
  return absl::OkStatus();
}

bool OriginPolicy::IsPreflight(const HttpRequest& header) const {
  return header.method == "OPTIONS" && !HeaderOf(header, "access-control-request-method").empty() &&
         !HeaderOf(header, "origin").empty() && IsAllowed(HeaderOf(header, "origin"));
}

void OriginPolicy::AnswerPreflight(const HttpRequest& header, HttpResponder& responder) {
  HttpResponder::Headers headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE"},
                                    {"Access-Control-Max-Age", "600"}};
  const std::string names = HeaderOf(header, "access-control-request-headers");
  if (!names.empty() && AreHeaderNames(names)) {
    headers.emplace_back("Access-Control-Allow-Headers", names);
  }
  // Chrome asks so for pages of the internet that use this machine or its network.
  if (HeaderOf(header, "access-control-request-private-network") == "true") {
    headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  }
  responder.Send(200, "text/plain", "", std::move(headers));
}

std::shared_ptr<HttpResponder> OriginPolicy::WithCors(
    const HttpRequest& header, std::shared_ptr<HttpResponder> responder) const {
  const std::string origin = HeaderOf(header, "origin");
  if (options_.allowed.empty() || origin.empty()) return responder;
  return std::make_shared<CorsResponder>(std::move(responder), origin, IsAllowed(origin));
}

}  // namespace espalier
