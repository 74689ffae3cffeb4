// The HTTP side of the coordinator: the OpenAI API, health and metrics, behind one authorisation.
//
//   POST /v1/completions  /v1/chat/completions     GET /v1/models
//   GET  /health  /ready  /version  /metrics
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/clock.h"
#include "server/http/http_server.h"
#include "server/inference/model_server.h"

namespace espalier {

struct GatewayOptions {
  ModelServer* models = nullptr;
  ServingMetrics* metrics = nullptr;        // optional
  std::function<std::string()> exposition;  // the text of /metrics
  // Decides on "METHOD /path" and the Authorization header, before every route but /health.
  std::function<absl::Status(const std::string& route, const std::string& authorization)> authorize;
  std::function<bool()> ready;
  const Clock* clock = nullptr;
  std::string version;
};

// Thread-safe. Must outlive the HttpServer that calls it.
class Gateway {
 public:
  explicit Gateway(GatewayOptions options);

  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder);

 private:
  using Route = void (Gateway::*)(const HttpRequest&, std::shared_ptr<HttpResponder>);

  void Completions(const HttpRequest& request, std::shared_ptr<HttpResponder> responder);
  void ChatCompletions(const HttpRequest& request, std::shared_ptr<HttpResponder> responder);
  void Models(const HttpRequest& request, std::shared_ptr<HttpResponder> responder);
  void Health(const HttpRequest& request, std::shared_ptr<HttpResponder> responder);
  void Ready(const HttpRequest& request, std::shared_ptr<HttpResponder> responder);
  void Version(const HttpRequest& request, std::shared_ptr<HttpResponder> responder);
  void Metrics(const HttpRequest& request, std::shared_ptr<HttpResponder> responder);

  const GatewayOptions options_;
  std::map<std::string, std::map<std::string, Route>> routes_;  // path -> method -> route
  std::atomic<int64_t> counter_ = 0;
};

}  // namespace espalier
