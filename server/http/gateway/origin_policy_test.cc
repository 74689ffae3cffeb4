// A web page of a stranger, shown in a browser on this machine, gets nothing from the HTTP API.
#include "server/http/gateway/origin_policy.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "base/net/transport_security.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/gateway/gateway.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Fields = std::map<std::string, std::string>;

const OriginPolicyOptions kClosed = {.only_loopback_hosts = true, .only_allowed_origins = true};
constexpr char kOurs[] = "https://chat.example";

HttpRequest RequestOf(const Fields& headers, const std::string& method = "POST") {
  HttpRequest request{.method = method, .path = "/v1/completions", .body = "{}"};
  for (const auto& [name, value] : headers) request.headers[name] = value;
  return request;
}

absl::StatusCode CodeOf(const OriginPolicyOptions& options, const Fields& headers) {
  return OriginPolicy(options).Check(RequestOf(headers)).code();
}

class Answer : public HttpResponder {
 public:
  void Send(int status, std::string, std::string body, Headers headers) override {
    status_ = status;
    body_ = std::move(body);
    for (auto& [name, value] : headers) headers_[name] = std::move(value);
  }
  void StartStream(int, std::string, Headers) override {}
  void Write(std::string) override {}
  void End() override {}
  void OnClose(std::function<void()>) override {}

  int status_ = 0;
  std::string body_;
  Fields headers_;
};

TEST(OriginPolicy, HostOfAnotherNameIsRefusedOnLoopback) {
  for (const char* host : {"localhost", "localhost:8080", "LocalHost:8080", "127.0.0.1:8080",
                           "127.8.9.1", "[::1]:8080", "[::1]", ""}) {
    EXPECT_EQ(CodeOf(kClosed, {{"host", host}}), absl::StatusCode::kOk) << host;
  }
  for (const char* host :
       {"rebound.example:8080", "127.0.0.1.rebound.example", "localhost.rebound.example",
        "127.example", "192.168.0.7:8080", "0.0.0.0:8080", "[::]:8080", "[fe80::1]:8080",
        "localhost:8080:1", "[", "127.0.0.1@rebound.example"}) {
    const OriginPolicy policy(kClosed);
    const absl::Status refused = policy.Check(RequestOf({{"host", host}}));
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << host;
    EXPECT_THAT(refused.message(), HasSubstr("--api-key-file"));
    EXPECT_EQ(CodeOf({}, {{"host", host}}), absl::StatusCode::kOk) << host;
  }
}

TEST(OriginPolicy, ForeignPagesAreRefusedUnlessAllowed) {
  const std::string host = "localhost:8080";
  OriginPolicyOptions open = kClosed;
  open.allowed = {kOurs};
  OriginPolicyOptions all = kClosed;
  all.allowed = {"*"};
  EXPECT_EQ(CodeOf(kClosed, {{"host", host}, {"origin", "http://localhost:8080"}}),
            absl::StatusCode::kOk)
      << "its own";
  for (const std::string& origin :
       {std::string(kOurs), std::string("null"), std::string("http://localhost:3000"),
        std::string("http://localhost"), std::string("chrome-extension://abcdef"),
        std::string("localhost:8080"), std::string("http://localhost:8080.example")}) {
    const Fields headers = {{"host", host}, {"origin", origin}};
    EXPECT_EQ(CodeOf(kClosed, headers), absl::StatusCode::kPermissionDenied) << origin;
    EXPECT_EQ(CodeOf(open, headers) == absl::StatusCode::kOk, origin == kOurs) << origin;
    EXPECT_EQ(CodeOf(all, headers), absl::StatusCode::kOk) << origin;
    EXPECT_EQ(CodeOf({}, headers), absl::StatusCode::kOk) << "a key keeps them out";
  }
}

TEST(OriginPolicy, AllowedOriginsAreChecked) {
  EXPECT_TRUE(OriginPolicy::CheckAllowed({"*", kOurs, "http://localhost:3000"}).ok());
  for (const char* origin : {"chat.example", "https://", "://chat.example", "https://chat.example/",
                             "https://*.example", "null", ""}) {
    EXPECT_EQ(OriginPolicy::CheckAllowed({kOurs, origin}).code(),
              absl::StatusCode::kInvalidArgument)
        << origin;
  }
}

class GatewayOriginTest : public ::testing::Test {
 protected:
  Answer Ask(std::vector<std::string> allowed, bool keys, const HttpRequest& request) {
    GatewayOptions options;
    options.models = &models_;
    options.clock = &clock_;
    options.origins = {
        .only_loopback_hosts = !keys, .only_allowed_origins = !keys, .allowed = std::move(allowed)};
    const AccessControl access([](const std::string& shown) -> absl::StatusOr<Caller> {
      if (shown == "Bearer a-key") return Caller::Unrestricted();
      return absl::UnauthenticatedError("a key");
    });
    if (keys) options.access = &access;
    Gateway gateway(std::move(options));
    auto answer = std::make_shared<Answer>();
    gateway.Handle(request, answer);
    return *answer;
  }
  static Fields Preflight(const std::string& origin) {
    return {{"host", "localhost:8080"},
            {"origin", origin},
            {"access-control-request-method", "POST"},
            {"access-control-request-headers", "authorization,content-type"}};
  }

  SystemClock clock_;
  ModelServer models_{{.clock = &clock_}};
};

TEST_F(GatewayOriginTest, EveryRouteRefusesRebindingBeforeAnythingElse) {
  GatewayOptions options;
  options.models = &models_;
  options.clock = &clock_;
  options.origins = kClosed;
  Gateway gateway(std::move(options));
  for (const Gateway::RouteName& route : gateway.Routes()) {
    for (const Fields& headers : {Fields{{"host", "rebound.example:8080"}},
                                  Fields{{"host", "localhost:8080"}, {"origin", kOurs}}}) {
      HttpRequest request = RequestOf(headers, route.method);
      request.path = route.path;
      auto answer = std::make_shared<Answer>();
      EXPECT_FALSE(gateway.Admit(request, answer)) << route.path;
      EXPECT_EQ(answer->status_, 403) << route.method << " " << route.path;
      EXPECT_EQ(answer->headers_.count("Access-Control-Allow-Origin"), 0u);
    }
  }
}

TEST_F(GatewayOriginTest, PreflightIsAnsweredToAllowedPagesWithoutAKey) {
  for (const bool keys : {false, true}) {
    SCOPED_TRACE(keys);
    HttpRequest request = RequestOf(Preflight(kOurs), "OPTIONS");
    Answer answer = Ask({kOurs}, keys, request);
    EXPECT_EQ(answer.status_, 200);
    EXPECT_EQ(answer.headers_["Access-Control-Allow-Origin"], kOurs);
    EXPECT_EQ(answer.headers_["Access-Control-Allow-Headers"], "authorization,content-type");
    EXPECT_THAT(answer.headers_["Access-Control-Allow-Methods"], HasSubstr("POST"));
    EXPECT_EQ(answer.headers_["Vary"], "Origin");
    EXPECT_EQ(answer.headers_.count("Access-Control-Allow-Private-Network"), 0u);
    request.headers["access-control-request-private-network"] = "true";
    request.headers["access-control-request-headers"] = "a\r\nb";
    answer = Ask({kOurs}, keys, request);
    EXPECT_EQ(answer.headers_["Access-Control-Allow-Private-Network"], "true");
    EXPECT_EQ(answer.headers_.count("Access-Control-Allow-Headers"), 0u);
    const int refused = keys ? 401 : 403;
    for (const std::vector<std::string>& allowed :
         {std::vector<std::string>(), std::vector<std::string>{"https://other.example"}}) {
      answer = Ask(allowed, keys, RequestOf(Preflight(kOurs), "OPTIONS"));
      EXPECT_EQ(answer.status_, refused);
      EXPECT_EQ(answer.headers_.count("Access-Control-Allow-Origin"), 0u);
      EXPECT_EQ(answer.headers_.count("Access-Control-Allow-Headers"), 0u);
    }
  }
}

TEST_F(GatewayOriginTest, AllowedPagesReadAnswersAndErrors) {
  const Fields page = {{"host", "localhost:8080"}, {"origin", kOurs}};
  HttpRequest version = RequestOf(page, "GET");
  version.path = "/version";
  Answer answer = Ask({kOurs}, /*keys=*/false, version);
  EXPECT_EQ(answer.status_, 200);
  EXPECT_EQ(answer.headers_["Access-Control-Allow-Origin"], kOurs);
  EXPECT_THAT(answer.headers_["Access-Control-Expose-Headers"],
              AllOf(HasSubstr("X-Request-Id"), HasSubstr("espalier-warning")));
  // The key is still wanted, and the page can read that it is.
  answer = Ask({kOurs}, /*keys=*/true, version);
  EXPECT_EQ(answer.status_, 401);
  EXPECT_EQ(answer.headers_["Access-Control-Allow-Origin"], kOurs);
  version.headers["authorization"] = "Bearer a-key";
  EXPECT_EQ(Ask({kOurs}, /*keys=*/true, version).status_, 200);
  // A page that is not allowed reads nothing, even with a key.
  answer = Ask({"https://other.example"}, /*keys=*/true, version);
  EXPECT_EQ(answer.headers_.count("Access-Control-Allow-Origin"), 0u);
  version.headers.erase("origin");
  answer = Ask({kOurs}, /*keys=*/true, version);
  EXPECT_EQ(answer.headers_.count("Vary"), 0u) << "no page has asked";
}

TEST(IsLoopback, ByTheWholeName) {
  for (const char* address : {"127.0.0.1:80", "127.0.0.1", "127.1.2.3:4", "localhost",
                              "localhost:1", "::1", "[::1]:80"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"127.0.0.1.example.com:80", "127.example:80", "0.0.0.0:80",
                              "localhost.example", "[::ffff:127.0.0.1]:80", "10.0.0.1", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace espalier
