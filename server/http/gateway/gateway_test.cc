// Authorization, routing, probes and overload of the gateway.
#include "server/http/gateway/gateway.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/models/serving_metrics.h"
#include "server/metrics/metrics.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr char kKey[] = "Bearer the-key-of-this-test";
constexpr int kUnauthorized = 401;
constexpr const char* kProbes[] = {"/health", "/ready", "/v2/health/live", "/v2/health/ready"};

// Records a handler's answer.
class Answer : public HttpResponder {
 public:
  void Send(int status, std::string, std::string body, Headers headers) override {
    status_ = status;
    body_ = std::move(body);
    for (auto& [name, value] : headers) headers_[name] = std::move(value);
  }
  void StartStream(int status, std::string, Headers) override { status_ = status; }
  void Write(std::string data) override { body_ += data; }
  void End() override {}
  void OnClose(std::function<void()>) override {}

  int status() const { return status_; }
  const std::string& body() const { return body_; }
  // Returns "" if absent.
  std::string header(const std::string& name) const {
    const auto found = headers_.find(name);
    return found != headers_.end() ? found->second : "";
  }

 private:
  int status_ = 0;
  std::map<std::string, std::string> headers_;
  std::string body_;
};

class GatewayTest : public ::testing::Test {
 protected:
  Gateway MakeGateway(bool keys, bool open_probes, std::function<bool()> ready = nullptr) {
    GatewayOptions options;
    options.models = &models_;
    options.exposition = [] { return std::string("a_metric 1\n"); };
    options.clock = &clock_;
    options.open_probes = open_probes;
    options.ready = std::move(ready);
    if (keys) options.access = &access_;
    return Gateway(std::move(options));
  }

  static Answer Ask(Gateway& gateway, const std::string& method, const std::string& path,
                    const std::string& authorization) {
    HttpRequest request{.method = method, .path = path, .body = "{}"};
    if (!authorization.empty()) request.headers["authorization"] = authorization;
    auto answer = std::make_shared<Answer>();
    gateway.Handle(std::move(request), answer);
    return *answer;
  }

  SystemClock clock_;
  ModelServer models_{{.clock = &clock_}};
  Caller caller_ = Caller::Unrestricted();
  const AccessControl access_{[this](const std::string& authorization) -> absl::StatusOr<Caller> {
    if (authorization == kKey) return caller_;
    return absl::UnauthenticatedError("a key");
  }};
};

TEST_F(GatewayTest, EveryRouteNeedsAKeyExceptOpenProbes) {
  for (const bool open_probes : {false, true}) {
    Gateway gateway = MakeGateway(/*keys=*/true, open_probes);
    std::set<std::string> paths;
    std::vector<Gateway::RouteName> routes = gateway.Routes();
    for (const Gateway::RouteName& route : routes) paths.insert(route.path);
    EXPECT_THAT(paths, IsSupersetOf(kProbes));
    EXPECT_THAT(paths, IsSupersetOf({"/metrics", "/version", "/v1/completions"}));
    // Beyond the routes: prefixes of routes, unknown paths, wrong methods, and near-probes.
    routes.insert(routes.end(), {{"GET", "/v2/models/NAME/ready"},
                                 {"GET", "/nothing"},
                                 {"GET", "/"},
                                 {"GET", ""},
                                 {"GET", "/health/"},
                                 {"GET", "/healthy"},
                                 {"GET", "//health"},
                                 {"GET", "/v2/health"},
                                 {"GET", "/v2/models/health"},
                                 {"DELETE", "/v1/models/NAME"},
                                 {"OPTIONS", "/v1/completions"},
                                 {"HEAD", "/metrics"}});
    for (const Gateway::RouteName& route : routes) {
      const bool open = open_probes && std::find(std::begin(kProbes), std::end(kProbes),
                                                 route.path) != std::end(kProbes);
      SCOPED_TRACE(absl::StrCat(route.method, " ", route.path, open ? ", open" : ""));
      for (const char* authorization : {"", "Bearer the-key-of-that-test", "the-key-of-this-test",
                                        "Bearer ", "Basic the-key-of-this-test"}) {
        const Answer refused = Ask(gateway, route.method, route.path, authorization);
        if (open) {
          EXPECT_EQ(refused.status(), 200) << authorization;
        } else {
          EXPECT_EQ(refused.status(), kUnauthorized) << authorization;
          EXPECT_THAT(refused.body(), HasSubstr("a key"));
        }
      }
      const Answer answer = Ask(gateway, route.method, route.path, kKey);
      EXPECT_NE(answer.status(), 0);
      EXPECT_NE(answer.status(), kUnauthorized);
    }
    EXPECT_EQ(Ask(gateway, "GET", "/metrics", kKey).body(), "a_metric 1\n");
    for (const char* probe : kProbes) {
      EXPECT_EQ(Ask(gateway, "HEAD", probe, "").status(), open_probes ? 200 : kUnauthorized);
      EXPECT_EQ(Ask(gateway, "GET", probe, kKey).status(), 200);
    }
  }
}

TEST_F(GatewayTest, EveryRouteHasARuleOfAccess) {
  Gateway gateway = MakeGateway(/*keys=*/true, /*open_probes=*/false);
  for (const Role role :
       {Role::kAdmin, Role::kTrain, Role::kInfer, Role::kWorker, Role::kMonitor}) {
    caller_ = {role, "an owner"};
    for (const Gateway::RouteName& route : gateway.Routes()) {
      SCOPED_TRACE(absl::StrCat(route.method, " ", route.path, " ", Roles(role).ToString()));
      const AccessRule* rule = FindAccessRule(absl::StrCat(route.method, " ", route.path));
      ASSERT_NE(rule, nullptr) << "add it to server/access/access_rules.cc";
      const bool may = role == Role::kAdmin || rule->roles.Intersects(role);
      EXPECT_EQ(Ask(gateway, route.method, route.path, kKey).status() == 403, !may);
    }
  }
}

TEST_F(GatewayTest, NoAuthorizationWithoutKeys) {
  Gateway gateway = MakeGateway(/*keys=*/false, /*open_probes=*/false);
  for (const Gateway::RouteName& route : gateway.Routes()) {
    EXPECT_NE(Ask(gateway, route.method, route.path, "").status(), kUnauthorized) << route.path;
  }
}

TEST_F(GatewayTest, UnknownContentCodingsAreRefusedByTheHeader) {
  Gateway gateway = MakeGateway(/*keys=*/false, /*open_probes=*/false);
  for (const char* path : {"/v1/completions", "/v1/messages"}) {
    HttpRequest request{.method = "POST", .path = path};
    request.headers["content-encoding"] = "br";
    const auto answer = std::make_shared<Answer>();
    EXPECT_FALSE(gateway.Admit(request, answer));
    EXPECT_EQ(answer->status(), 415);
    EXPECT_EQ(answer->header("Accept-Encoding"), "gzip");
    EXPECT_EQ(nlohmann::json::parse(answer->body()).contains("type"), *(path + 4) == 'm');
    request.headers["content-encoding"] = "gzip";
    EXPECT_TRUE(gateway.Admit(request, std::make_shared<Answer>()));
    // The body is none.
    request.body = "{}";
    gateway.Handle(request, answer);
    EXPECT_EQ(answer->status(), 400);
    EXPECT_THAT(answer->body(), HasSubstr("gzip"));
  }
}

TEST_F(GatewayTest, NamesMayHaveSlashes) {
  Gateway gateway = MakeGateway(/*keys=*/false, /*open_probes=*/false);
  for (const char* path : {"/v1/models/org/name", "/v1/models/org%2Fname",
                           "/v2/models/org%2Fname/ready", "/v2/models/org/name/versions/1"}) {
    const Answer answer = Ask(gateway, "GET", path, "");
    EXPECT_EQ(answer.status(), 404) << path;
    EXPECT_THAT(answer.body(), HasSubstr("'org/name'")) << path;
  }
  // A slash of the name is none of the route's.
  EXPECT_THAT(Ask(gateway, "GET", "/v2/models/a%2Fready", "").body(), HasSubstr("'a/ready'"));
}

// Clients of an API read its errors only.
TEST_F(GatewayTest, RejectionsHaveTheFormOfTheirApi) {
  Gateway gateway = MakeGateway(/*keys=*/false, /*open_probes=*/false);
  const auto body = [&](const char* path) {
    return nlohmann::json::parse(gateway.RejectionBody(path, 413, "too large"));
  };
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
    EXPECT_EQ(body(path)["type"], "error") << path;
    EXPECT_EQ(body(path)["error"]["type"], "request_too_large") << path;
    EXPECT_EQ(body(path)["error"]["message"], "too large") << path;
  }
  for (const char* path : {"/v1/completions", "/nothing", ""}) {
    EXPECT_FALSE(body(path).contains("type")) << path;
    EXPECT_EQ(body(path)["error"]["type"], "invalid_request_error") << path;
  }
  for (const char* path : {"/v2/models/a", "/api/chat", "/api/tags", "/api/blobs/sha256:00"}) {
    EXPECT_EQ(body(path)["error"], "too large") << path;
  }
}

// What Ollama's clients may ask of a server that is none.
TEST_F(GatewayTest, OllamasRoutesOfModelFilesSayWhatToDoInstead) {
  Gateway gateway = MakeGateway(/*keys=*/false, /*open_probes=*/false);
  for (const auto& [method, path, instead] :
       {std::tuple{"POST", "/api/pull", "espalier serve"},
        {"POST", "/api/push", "espalier models download"},
        {"POST", "/api/create", "espalier serve"},
        {"POST", "/api/copy", "--name"},
        {"DELETE", "/api/delete", "espalier unserve"},
        {"HEAD", "/api/blobs/sha256:00", "espalier models upload"},
        {"POST", "/api/blobs/sha256:00", "espalier models upload"}}) {
    const Answer answer = Ask(gateway, method, path, "");
    EXPECT_EQ(answer.status(), 501) << path;
    const auto body = nlohmann::json::parse(answer.body());
    EXPECT_THAT(body["error"].get<std::string>(), HasSubstr(instead)) << path;
  }
  EXPECT_EQ(Ask(gateway, "GET", "/", "").body(), "Ollama is running");
  EXPECT_EQ(Ask(gateway, "GET", "/api/tags", "").body(), R"({"models":[]})");
}

TEST_F(GatewayTest, WrongMethodGets405WithAllow) {
  Gateway gateway = MakeGateway(/*keys=*/false, /*open_probes=*/false);
  std::map<std::string, std::set<std::string>> taken;
  for (const Gateway::RouteName& route : gateway.Routes()) {
    taken[route.path].insert(route.method);
    if (route.method == "GET") taken[route.path].insert("HEAD");
  }
  for (const auto& [path, methods] : taken) {
    for (const char* method : {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
                               "CONNECT", "get", "BREW"}) {
      SCOPED_TRACE(absl::StrCat(method, " ", path));
      const Answer answer = Ask(gateway, method, path, "");
      if (methods.contains(method)) {
        EXPECT_NE(answer.status(), 0);
        EXPECT_NE(answer.status(), 405);
        continue;
      }
      EXPECT_EQ(answer.status(), 405);
      const std::set<std::string> allowed = absl::StrSplit(answer.header("Allow"), ", ");
      EXPECT_EQ(allowed, methods);
      EXPECT_THAT(answer.body(), HasSubstr(path));
    }
  }
}

TEST_F(GatewayTest, DotDotPathsAreUnknown) {
  Gateway gateway = MakeGateway(/*keys=*/false, /*open_probes=*/false);
  for (const std::string end :
       {"%2e%2e%2fmetrics", "%252e%252e%252fmetrics", "../metrics", "..\\metrics", "\xc0\xaf..",
        "\xff\xfe", "%00", "a%00", "\x7f", "\"}],\"a\":[{\"", "http://other/metrics"}) {
    for (const std::string begin :
         {"/", "/v1/", "/v1/models/", "/v1/responses/", "/v2/models/", "/health/", "/metrics/"}) {
      SCOPED_TRACE(begin + end);
      const Answer answer = Ask(gateway, "GET", begin + end, "");
      EXPECT_EQ(answer.status(), 404);
      // Whatever the path holds, the answer is valid JSON, hence UTF-8.
      const auto json = nlohmann::json::parse(answer.body(), nullptr, /*allow_exceptions=*/false);
      EXPECT_TRUE(json.contains("error")) << answer.body();
    }
  }
}

// Arbitrary labels would exhaust memory, and quotes in them would forge metric lines.
TEST_F(GatewayTest, UnknownMethodsAndPathsAreNotMetricLabels) {
  Metrics metrics;
  ServingMetrics serving(&metrics.registry());
  Gateway gateway({.models = &models_, .metrics = &serving, .clock = &clock_});
  const std::string evil = "x\"} 1\nforged{a=\"b";
  Ask(gateway, evil, "/health", "");
  Ask(gateway, "GET", "/" + evil, "");
  Ask(gateway, "POST", "/v1/models/" + evil, "");
  Ask(gateway, "GET", "/v1/models/" + evil, "");
  for (int i = 0; i < 50; ++i) {
    Ask(gateway, absl::StrCat("M", i), absl::StrCat("/unheard/of/", i), "");
    Ask(gateway, "GET", absl::StrCat("/v1/models/unheard-of-", i), "");
  }
  const std::string text = metrics.Expose();
  EXPECT_THAT(text, HasSubstr("method=\"other\""));
  EXPECT_THAT(text, HasSubstr("handler=\"other\""));
  for (const char* made_up : {"forged", "unheard", "M7"}) {
    EXPECT_THAT(text, Not(HasSubstr(made_up)));
  }
}

TEST_F(GatewayTest, QuickRoutesUseNoModels) {
  Gateway gateway = MakeGateway(/*keys=*/true, /*open_probes=*/false);
  std::set<std::string> quick;
  for (const Gateway::RouteName& route : gateway.Routes()) {
    if (gateway.Quick({.method = route.method, .path = route.path})) quick.insert(route.path);
  }
  EXPECT_THAT(quick, UnorderedElementsAre("/health", "/ready", "/v2/health/live",
                                          "/v2/health/ready", "/version", "/metrics"));
  EXPECT_FALSE(gateway.Quick({.method = "GET", .path = "/nothing"}));
}

TEST_F(GatewayTest, OverloadErrorFollowsTheRoutesApi) {
  Gateway gateway = MakeGateway(/*keys=*/true, /*open_probes=*/false);
  for (const std::string path : {"/v1/completions", "/v1/messages", "/nothing"}) {
    auto answer = std::make_shared<Answer>();
    gateway.Overloaded({.method = "POST", .path = path}, answer);
    EXPECT_EQ(answer->status(), 503) << path;
    EXPECT_EQ(answer->header("Retry-After"), "1") << path;
    const auto json = nlohmann::json::parse(answer->body());
    EXPECT_EQ(json.value("type", ""), path == "/v1/messages" ? "error" : "") << answer->body();
    EXPECT_THAT(json["error"]["message"].get<std::string>(), HasSubstr("too many requests"));
  }
}

TEST_F(GatewayTest, ReadyWithoutModels) {
  bool admits = true;
  Gateway gateway = MakeGateway(/*keys=*/false, /*open_probes=*/false, [&] { return admits; });
  for (const char* path : {"/ready", "/v2/health/ready"}) {
    admits = true;
    EXPECT_EQ(Ask(gateway, "GET", path, "").status(), 200) << path;
    admits = false;
    EXPECT_EQ(Ask(gateway, "GET", path, "").status(), 503) << path;
  }
  EXPECT_EQ(Ask(gateway, "GET", "/v2/health/live", "").status(), 200);
}

TEST_F(GatewayTest, ErrorsOfTheOpenInferenceProtocolHaveItsForm) {
  Gateway gateway = MakeGateway(/*keys=*/false, /*open_probes=*/false);
  for (const char* path : {"", "/ready", "/versions/1", "/versions/1/ready", "/versions/2"}) {
    const Answer answer = Ask(gateway, "GET", absl::StrCat("/v2/models/nobody", path), "");
    EXPECT_EQ(answer.status(), 404) << path;
    EXPECT_THAT(answer.body(), StartsWith(R"({"error":"model 'nobody' is not served)")) << path;
  }
}

TEST_F(GatewayTest, HeaderRejectionNeedsNoBody) {
  Gateway gateway = MakeGateway(/*keys=*/true, /*open_probes=*/true);
  struct Case {
    const char *method, *path, *header, *value;
    int status;  // 0: admitted
  };
  for (const Case& test :
       {Case{"POST", "/v1/completions", "authorization", kKey, 0},
        Case{"POST", "/v1/messages", "x-api-key", "the-key-of-this-test", 0},
        Case{"GET", "/health", "x-other", "", 0},
        Case{"HEAD", "/v1/models", "authorization", kKey, 0},
        Case{"POST", "/v1/completions", "authorization", "Bearer other", kUnauthorized},
        Case{"POST", "/v1/messages", "x-api-key", "other", kUnauthorized},
        Case{"POST", "/nothing", "x-other", "", kUnauthorized},
        Case{"POST", "/nothing", "authorization", kKey, 404},
        Case{"PUT", "/v1/completions", "authorization", kKey, 405}}) {
    SCOPED_TRACE(absl::StrCat(test.method, " ", test.path, " ", test.value));
    auto answer = std::make_shared<Answer>();
    const HttpRequest header{
        .method = test.method, .path = test.path, .headers = {{test.header, test.value}}};
    EXPECT_EQ(gateway.Admit(header, answer), test.status == 0);
    EXPECT_EQ(answer->status(), test.status);
    if (test.status != 0) {
      EXPECT_NE(answer->header("X-Request-Id"), "");
    }
  }
}

TEST_F(GatewayTest, EveryAnswerHasARequestId) {
  Gateway gateway = MakeGateway(/*keys=*/true, /*open_probes=*/true);
  std::vector<Gateway::RouteName> routes = gateway.Routes();
  routes.insert(routes.end(), {{"GET", "/nothing"}, {"PUT", "/v1/models"}});
  std::set<std::string> made;
  size_t asked = 0;
  for (const Gateway::RouteName& route : routes) {
    SCOPED_TRACE(route.path);
    for (const char* key : {kKey, "Bearer other"}) {
      // Without an ID, with a valid one, and with a proxy's malformed one.
      for (const std::string& given :
           {std::string(), std::string("mine-7"), std::string("a=b/c+d|e")}) {
        HttpRequest request{.method = route.method, .path = route.path, .body = "{}"};
        request.headers["authorization"] = key;
        if (!given.empty()) request.headers["x-request-id"] = given;
        auto answer = std::make_shared<Answer>();
        gateway.Handle(std::move(request), answer);
        const std::string id = answer->header("X-Request-Id");
        EXPECT_EQ(answer->header("Request-Id"), id);
        if (given == "mine-7") {
          EXPECT_EQ(id, given);
        } else {
          ++asked;
          made.insert(id);
        }
      }
    }
  }
  EXPECT_EQ(made.size(), asked);  // all distinct
  EXPECT_EQ(made.count(""), 0u);
  auto answer = std::make_shared<Answer>();
  gateway.Overloaded({.method = "POST", .path = "/v1/messages", .headers = {{"x-request-id", "a"}}},
                     answer);
  EXPECT_EQ(answer->header("Request-Id"), "a");
}

TEST_F(GatewayTest, ServerRejectionsAreCounted) {
  Metrics metrics;
  ServingMetrics serving(&metrics.registry());
  Gateway gateway({.models = &models_, .metrics = &serving, .clock = &clock_});
  gateway.OnRejected("POST", 413, absl::Seconds(2));
  gateway.OnRejected("", 400, absl::ZeroDuration());
  gateway.OnRejected("BREW", 400, absl::ZeroDuration());
  const std::string text = metrics.Expose();
  for (const auto& [method, status, count] : {std::tuple{"POST", 413, 1}, {"other", 400, 2}}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("{handler=\"other\",method=\"", method, "\",status=\"",
                                             status, "\"} ", count)));
  }
}

}  // namespace
}  // namespace espalier
