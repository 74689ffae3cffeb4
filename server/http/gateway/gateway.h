// HTTP gateway of the coordinator: the OpenAI API, Anthropic's Messages API, Ollama's API, the Open
// Inference Protocol, and metrics, behind one authorization check.
//
//   POST /v1/completions  /v1/chat/completions  /v1/embeddings  /tokenize  /detokenize
//   POST /rerank (/v1/rerank and /v2/rerank, too)
//   POST /v1/responses  /v1/responses/input_tokens  /v1/responses/ID/cancel
//   GET  /v1/responses/ID (DELETE, too)  /v1/responses/ID/input_items
//   POST /v1/messages  /v1/messages/count_tokens
//   GET  /v1/models  /v1/models/NAME  /health  /ready  /version  /metrics
//   GET  /tokenizer_info  /  /api/tags  /api/ps  /api/version
//   POST /api/generate  /api/chat  /api/embed  /api/embeddings  /api/show
//   POST /api/pull  /api/push  /api/create  /api/copy  /api/blobs/ID, DELETE /api/delete (refused)
//   GET  /v2  /v2/health/live  /v2/health/ready
//   GET  /v2/models/NAME  /v2/models/NAME/ready  POST /v2/models/NAME/infer  (NAME may be
//        NAME/versions/1)  GET /v2/models/NAME/stats  /v2/models/stats
//
// What "ready" means (200, otherwise 503):
//   /ready                 requests are admitted, even with no model served: the same port takes
//                          the requests to serve one; false while draining
//   /v2/health/ready       in addition, every served model answers requests (by the protocol)
//   /v2/models/NAME/ready  this model answers: its workers, if it has any, hold it
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/net/caller.h"
#include "server/access/access_control.h"
#include "server/http/gateway/origin_policy.h"
#include "server/http/http_server.h"
#include "server/http/responses/responses_route.h"
#include "server/http/route_context.h"
#include "server/http/send_error.h"
#include "server/inference/models/model_server.h"

namespace espalier {

struct GatewayOptions {
  ModelServer* models = nullptr;
  ServingMetrics* metrics = nullptr;        // optional
  std::function<std::string()> exposition;  // the text of /metrics
  // Asked before every route ("METHOD /path" with the placeholders below). Null: all may call.
  const AccessControl* access = nullptr;
  // If true, /health, /ready, /v2/health/live and /v2/health/ready need no authorization.
  bool open_probes = false;
  std::function<bool()> ready;             // whether requests are admitted; null: they are
  size_t response_store_bytes = 64 << 20;  // budget for stored responses; 0: none is stored
  size_t max_body_bytes = 8 << 20;         // of a decompressed body
  const Clock* clock = nullptr;
  std::string version;
  OriginPolicyOptions origins;
};

// Thread-safe. Must outlive the HttpServer that calls it.
class Gateway {
 public:
  explicit Gateway(GatewayOptions options);

  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder);
  // Returns true if the route exists and the caller may use it. Otherwise answers the request and
  // returns false. Needs no body. Handle checks this again.
  bool Admit(const HttpRequest& header, const std::shared_ptr<HttpResponder>& responder) const;
  // Returns true for probes, /version and /metrics, whose handlers never wait and do little work.
  bool Quick(const HttpRequest& request) const;
  // Answers 503 in place of Handle when the server is overloaded.
  void Overloaded(HttpRequest request, std::shared_ptr<HttpResponder> responder);
  // Writes the error of a request that the server rejected before it reached a handler, in the form
  // of the API to which `path` belongs.
  std::string RejectionBody(const std::string& path, int status, const std::string& message) const;
  // Counts a request that the server rejected before it reached a handler.
  void OnRejected(const std::string& method, int status, absl::Duration after) const;

  struct RouteName {
    std::string method, path;  // "GET", "/v1/models/NAME": NAME stands for any model
  };
  // Returns all routes.
  std::vector<RouteName> Routes() const;

 private:
  using Responder = std::shared_ptr<HttpResponder>;
  struct Call : HttpRequest {
    std::string name;  // the part of the path that stands at NAME or ID
    std::string id;    // unique, unless the client supplied it
    Caller caller;
  };
  using Route = void (Gateway::*)(const Call&, Responder);
  struct RegisteredRoute {
    std::string name;            // label in metrics and authorization, "/v1/models/NAME"
    std::string prefix, suffix;  // of the path around NAME; both empty: exact match
    std::map<std::string, Route> by_method;
    bool probe = false;  // health or readiness check
    bool quick = false;
    ErrorFormatter error_formatter = &openai::ToJson;
  };

  RegisteredRoute& Add(const std::string& path, const char* method, Route route);
  void AddProbe(const std::string& path, Route route);
  // Answers for a body that cannot be decoded: 415, 413 or 400.
  static void SendBodyError(const absl::Status& status, const RegisteredRoute* known,
                            HttpResponder& responder);
  static ErrorFormatter ErrorFormatterFor(const RegisteredRoute* known, const std::string& path);
  // Returns null if no route matches.
  const RegisteredRoute* FindRoute(const std::string& path) const;
  // Wraps `responder`: adds the headers of request ID and origin, and records the metrics.
  Responder Metered(const HttpRequest& request, const RegisteredRoute* known, const std::string& id,
                    Responder responder) const;
  std::string IdOf(const HttpRequest& request) const;
  // `caller` is set if it returns true.
  bool Admit(const HttpRequest& header, const RegisteredRoute* known, HttpResponder& responder,
             Caller* caller) const;
  RouteContext Context(const Call& request);
  // A route that needs no more than its context.
  using ContextRoute = void (*)(const HttpRequest&, const RouteContext&, Responder);
  template <ContextRoute route>
  void InContext(const Call& request, Responder responder) {
    route(request, Context(request), std::move(responder));
  }
  // Adds a route of Ollama's API.
  template <ContextRoute route>
  void AddOllama(const std::string& path, const char* method) {
    Add(path, method, &Gateway::InContext<route>).error_formatter = &MessageAlone;
  }
  ResponsesContext ForResponses(const Call& request);

  void Completions(const Call& request, Responder responder);
  void ChatCompletions(const Call& request, Responder responder);
  void CreateResponse(const Call& request, Responder responder);
  void CountResponseInputTokens(const Call& request, Responder responder);
  void GetResponse(const Call& request, Responder responder);
  void DeleteResponse(const Call& request, Responder responder);
  void CancelResponse(const Call& request, Responder responder);
  void ListResponseInputItems(const Call& request, Responder responder);
  void Models(const Call& request, Responder responder);
  void Model(const Call& request, Responder responder);
  void Health(const Call& request, Responder responder);
  void Ready(const Call& request, Responder responder);
  void Version(const Call& request, Responder responder);
  void Metrics(const Call& request, Responder responder);
  void ServerMetadata(const Call& request, Responder responder);
  void ModelMetadata(const Call& request, Responder responder);
  void ModelInfer(const Call& request, Responder responder);
  void ModelStatistics(const Call& request, Responder responder);
  void ModelReady(const Call& request, Responder responder);

  const GatewayOptions options_;
  const OriginPolicy origins_;
  const std::shared_ptr<ResponseStore> responses_;
  const std::shared_ptr<SerializationThread> serialization_thread_ =
      std::make_shared<SerializationThread>();
  std::map<std::string, RegisteredRoute> routes_;  // by name
  mutable std::atomic<int64_t> counter_ = 0;
};

}  // namespace espalier
