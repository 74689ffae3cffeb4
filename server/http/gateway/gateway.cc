#include "server/http/gateway/gateway.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/http/completions_route.h"
#include "server/http/content_coding.h"
#include "server/http/gateway/embeddings_route.h"
#include "server/http/gateway/rerank_route.h"
#include "server/http/gateway/tokenizer_route.h"
#include "server/http/json_reader.h"
#include "server/http/messages/messages_error.h"
#include "server/http/messages/messages_route.h"
#include "server/http/ollama/embed_route.h"
#include "server/http/ollama/generate_route.h"
#include "server/http/ollama/models_route.h"
#include "server/http/open_inference/infer_route.h"
#include "server/http/open_inference/statistics_json.h"
#include "server/http/openai_request.h"
#include "server/http/openai_response.h"
#include "server/http/percent_encoding.h"
#include "server/http/request_id.h"
#include "server/inference/services/open_inference.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

constexpr char kJson[] = "application/json";
// Placeholders in route names. Each matches any text, including slashes.
constexpr absl::string_view kNames[] = {"NAME", "ID"};

// Records the metrics of one answer.
class MeteredResponder : public HttpResponder {
 public:
  MeteredResponder(std::shared_ptr<HttpResponder> inner, std::string method, std::string route,
                   const Clock* clock, ServingMetrics* metrics)
      : inner_(std::move(inner)),
        method_(std::move(method)),
        route_(std::move(route)),
        clock_(clock),
        metrics_(metrics),
        start_(clock->Now()) {}

  void Send(int status, std::string content_type, std::string body, Headers headers) override {
    Note(status);
    inner_->Send(status, std::move(content_type), std::move(body), std::move(headers));
  }
  void StartStream(int status, std::string content_type, Headers headers) override {
    Note(status);
    inner_->StartStream(status, std::move(content_type), std::move(headers));
  }
  void Write(std::string data) override { inner_->Write(std::move(data)); }
  void End() override { inner_->End(); }
  void OnClose(std::function<void()> closed) override { inner_->OnClose(std::move(closed)); }

 private:
  void Note(int status) {
    metrics_->HttpAnswered(method_, route_, status, absl::ToDoubleSeconds(clock_->Now() - start_));
  }

  const std::shared_ptr<HttpResponder> inner_;
  const std::string method_, route_;
  const Clock* const clock_;
  ServingMetrics* const metrics_;
  const absl::Time start_;
};

// Describes a model, or one of its adapters.
openai::ModelEntry EntryOf(const v1::ServedModel& model, const std::string& adapter = "") {
  openai::ModelEntry entry{model.name(), model.loaded_unix_ms() / 1000,
                           model.max_sequence_length()};
  if (adapter.empty()) return entry;
  entry.parent = std::exchange(entry.name, adapter);
  return entry;
}

// Parses NAME or NAME/versions/VERSION. A model's name may have slashes, but not "/versions/".
template <typename Request>
Request ModelVersion(absl::string_view path) {
  constexpr absl::string_view kVersions = "/versions/";
  Request request;
  const size_t at = path.find(kVersions);
  request.set_name(std::string(path.substr(0, at)));
  if (at != path.npos) request.set_version(std::string(path.substr(at + kVersions.size())));
  return request;
}

json TensorsJson(
    const google::protobuf::RepeatedPtrField<inference::ModelMetadataResponse::TensorMetadata>&
        tensors) {
  json all = json::array();
  for (const auto& tensor : tensors) {
    all.push_back({{"name", tensor.name()},
                   {"datatype", tensor.datatype()},
                   {"shape", std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())}});
  }
  return all;
}

// Names made up by clients must not become label values.
std::string MethodLabel(const std::string& method) {
  static const char* const kMethods[] = {"DELETE", "GET", "HEAD", "POST"};
  const bool usual =
      std::find(std::begin(kMethods), std::end(kMethods), method) != std::end(kMethods);
  return usual ? method : "other";
}

// Returns the Authorization header, or its equivalent from Anthropic's x-api-key.
std::string KeyOf(const HttpRequest& request) {
  const auto authorization = request.headers.find("authorization");
  if (authorization != request.headers.end()) return authorization->second;
  const auto api_key = request.headers.find("x-api-key");
  return api_key != request.headers.end() ? "Bearer " + api_key->second : "";
}

}  // namespace

Gateway::RegisteredRoute& Gateway::Add(const std::string& path, const char* method, Route route) {
  RegisteredRoute& known = routes_[path];
  known.name = path;
  known.by_method[method] = route;
  for (const absl::string_view name : kNames) {
    const size_t at = path.find(absl::StrCat("/", name));
    if (at == std::string::npos) continue;
    known.prefix = path.substr(0, at + 1);
    known.suffix = path.substr(at + 1 + name.size());
  }
  return known;
}

void Gateway::AddProbe(const std::string& path, Route route) {
  RegisteredRoute& known = Add(path, "GET", route);
  known.probe = true;
  known.quick = true;
}

Gateway::Gateway(GatewayOptions options)
    : options_(std::move(options)),
      origins_(options_.origins),
      responses_(std::make_shared<ResponseStore>(options_.response_store_bytes)) {
  Add("/v1/completions", "POST", &Gateway::Completions);
  Add("/v1/chat/completions", "POST", &Gateway::ChatCompletions);
  Add("/v1/responses", "POST", &Gateway::CreateResponse);
  Add("/v1/responses/input_tokens", "POST", &Gateway::CountResponseInputTokens);
  Add("/v1/responses/ID", "GET", &Gateway::GetResponse);
  Add("/v1/responses/ID", "DELETE", &Gateway::DeleteResponse);
  Add("/v1/responses/ID/cancel", "POST", &Gateway::CancelResponse);
  Add("/v1/responses/ID/input_items", "GET", &Gateway::ListResponseInputItems);
  Add("/v1/messages", "POST", &Gateway::InContext<&CreateMessage>).error_formatter =
      &anthropic::ErrorJson;
  Add("/v1/messages/count_tokens", "POST", &Gateway::InContext<&CountMessageTokens>)
      .error_formatter = &anthropic::ErrorJson;
  Add("/v1/embeddings", "POST", &Gateway::InContext<&Embed>);
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank"}) {
    Add(path, "POST", &Gateway::InContext<&Rerank>);
  }
  Add("/tokenize", "POST", &Gateway::InContext<&TokenizeText>);
  Add("/detokenize", "POST", &Gateway::InContext<&DetokenizeTokens>);
  Add("/tokenizer_info", "GET", &Gateway::InContext<&DescribeTokenizer>);
  AddOllama<&ollama::Running>("/", "GET");
  AddOllama<&ollama::Generate>("/api/generate", "POST");
  AddOllama<&ollama::Chat>("/api/chat", "POST");
  AddOllama<&ollama::Embed>("/api/embed", "POST");
  AddOllama<&ollama::Embeddings>("/api/embeddings", "POST");
  AddOllama<&ollama::Show>("/api/show", "POST");
  AddOllama<&ollama::ListTags>("/api/tags", "GET");
  AddOllama<&ollama::ListRunning>("/api/ps", "GET");
  AddOllama<&ollama::ApiVersion>("/api/version", "GET");
  for (const char* path : {"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/blobs/ID"}) {
    AddOllama<&ollama::RefuseManagement>(path, "POST");
  }
  AddOllama<&ollama::RefuseManagement>("/api/blobs/ID", "GET");
  AddOllama<&ollama::RefuseManagement>("/api/delete", "DELETE");
  Add("/v1/models", "GET", &Gateway::Models);
  Add("/v1/models/NAME", "GET", &Gateway::Model);
  AddProbe("/health", &Gateway::Health);
  AddProbe("/ready", &Gateway::Ready);
  Add("/version", "GET", &Gateway::Version).quick = true;
  Add("/metrics", "GET", &Gateway::Metrics).quick = true;
  Add("/v2", "GET", &Gateway::ServerMetadata);
  AddProbe("/v2/health/live", &Gateway::Health);
  AddProbe("/v2/health/ready", &Gateway::Ready);
  Add("/v2/models/NAME", "GET", &Gateway::ModelMetadata).error_formatter = &MessageAlone;
  Add("/v2/models/NAME/ready", "GET", &Gateway::ModelReady).error_formatter = &MessageAlone;
  Add("/v2/models/stats", "GET", &Gateway::ModelStatistics).error_formatter = &MessageAlone;
  Add("/v2/models/NAME/stats", "GET", &Gateway::ModelStatistics).error_formatter = &MessageAlone;
  Add("/v2/models/NAME/infer", "POST", &Gateway::ModelInfer).error_formatter = &MessageAlone;
}

std::vector<Gateway::RouteName> Gateway::Routes() const {
  std::vector<RouteName> routes;
  for (const auto& [path, known] : routes_) {
    for (const auto& [method, route] : known.by_method) routes.push_back({method, known.name});
  }
  return routes;
}

const Gateway::RegisteredRoute* Gateway::FindRoute(const std::string& path) const {
  const auto exact = routes_.find(path);
  if (exact != routes_.end() && exact->second.prefix.empty()) return &exact->second;
  const RegisteredRoute* best = nullptr;
  for (const auto& [name, known] : routes_) {
    const bool fits = !known.prefix.empty() && absl::StartsWith(path, known.prefix) &&
                      absl::EndsWith(path, known.suffix) &&
                      path.size() > known.prefix.size() + known.suffix.size();
    if (fits && (best == nullptr || known.suffix.size() > best->suffix.size())) best = &known;
  }
  return best;
}

Gateway::Responder Gateway::Metered(const HttpRequest& request, const RegisteredRoute* known,
                                    const std::string& id, Responder responder) const {
  responder = WithRequestId(origins_.WithCors(request, std::move(responder)), id);
  if (options_.metrics == nullptr) return responder;
  return std::make_shared<MeteredResponder>(std::move(responder), MethodLabel(request.method),
                                            known != nullptr ? known->name : "other",
                                            options_.clock, options_.metrics);
}

std::string Gateway::IdOf(const HttpRequest& request) const {
  std::string id;
  openai::ReadRequestIdHeader(request.headers, &id);
  return id.empty() ? absl::StrCat(options_.clock->NowUnixMillis(), "-", ++counter_) : id;
}

bool Gateway::Quick(const HttpRequest& request) const {
  const RegisteredRoute* known = FindRoute(request.path);
  return known != nullptr && known->quick;
}

void Gateway::Overloaded(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  const RegisteredRoute* known = FindRoute(request.path);
  SendError(
      *Metered(request, known, IdOf(request), std::move(responder)),
      absl::UnavailableError("the server is overloaded: too many requests or bytes are queued; try "
                             "again later"),
      ErrorFormatterFor(known, request.path));
}

std::string Gateway::RejectionBody(const std::string& path, int status,
                                   const std::string& message) const {
  return ErrorFormatterFor(FindRoute(path), path)({.http_status = status, .message = message});
}

void Gateway::OnRejected(const std::string& method, int status, absl::Duration after) const {
  if (options_.metrics == nullptr) return;
  options_.metrics->HttpAnswered(MethodLabel(method), "other", status,
                                 absl::ToDoubleSeconds(after));
}

void Gateway::SendBodyError(const absl::Status& status, const RegisteredRoute* known,
                            HttpResponder& responder) {
  openai::Error error{.message = std::string(status.message())};
  HttpResponder::Headers headers;
  if (absl::IsUnimplemented(status)) {
    error.http_status = 415;
    headers.emplace_back("Accept-Encoding", kContentCodings);
  } else if (absl::IsOutOfRange(status)) {
    error.http_status = 413;
  }
  SendError(responder, error, std::move(headers),
            known != nullptr ? known->error_formatter : &openai::ToJson);
}

ErrorFormatter Gateway::ErrorFormatterFor(const RegisteredRoute* known, const std::string& path) {
  if (known != nullptr) return known->error_formatter;
  // Clients of the Open Inference Protocol expect its errors of routes that are not there, too.
  return absl::StartsWith(path, "/v2/") ? &MessageAlone : &openai::ToJson;
}

bool Gateway::Admit(const HttpRequest& header,
                    const std::shared_ptr<HttpResponder>& responder) const {
  const RegisteredRoute* known = FindRoute(header.path);
  Caller ignored;
  return Admit(header, known, *Metered(header, known, IdOf(header), responder), &ignored);
}

bool Gateway::Admit(const HttpRequest& header, const RegisteredRoute* known,
                    HttpResponder& responder, Caller* caller) const {
  if (const absl::Status refused = origins_.Check(header); !refused.ok()) {
    SendError(responder, refused, ErrorFormatterFor(known, header.path));
    return false;
  }
  if (origins_.IsPreflight(header)) {
    OriginPolicy::AnswerPreflight(header, responder);
    return false;
  }
  const bool open = options_.open_probes && known != nullptr && known->probe;
  const std::string method = header.method == "HEAD" ? "GET" : header.method;
  const bool exists = known != nullptr && known->by_method.count(method) > 0;
  // Authorize first, before revealing which routes exist.
  *caller = open ? Caller() : Caller::Unrestricted();
  if (options_.access != nullptr && !open) {
    const absl::StatusOr<Caller> allowed =
        exists ? options_.access->Admit(absl::StrCat(method, " ", known->name), KeyOf(header))
               : options_.access->Authenticate(KeyOf(header));
    if (!allowed.ok()) {
      SendError(responder, allowed.status(), ErrorFormatterFor(known, header.path));
      return false;
    }
    *caller = *allowed;
  }
  if (known == nullptr) {
    SendError(responder,
              openai::Error{.http_status = 404,
                            .message = absl::StrCat("there is no ", header.method.substr(0, 40),
                                                    " ", header.path.substr(0, 200))},
              {}, ErrorFormatterFor(known, header.path));
    return false;
  }
  if (const absl::Status coding = CheckContentCoding(header); !coding.ok()) {
    SendBodyError(coding, known, responder);
    return false;
  }
  if (exists) return true;
  const std::string allowed =
      absl::StrJoin(known->by_method, ", ", [](std::string* out, const auto& entry) {
        out->append(entry.first == "GET" ? "GET, HEAD" : entry.first);
      });
  SendError(responder,
            openai::Error{.http_status = 405,
                          .message = absl::StrCat(known->name, " takes ", allowed, ", not ",
                                                  header.method.substr(0, 40))},
            {{"Allow", allowed}}, known->error_formatter);
  return false;
}

void Gateway::Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  const RegisteredRoute* known = FindRoute(request.path);
  Call call{std::move(request), "", "", {}};
  call.id = IdOf(call);
  responder = Metered(call, known, call.id, std::move(responder));
  if (!Admit(call, known, *responder, &call.caller)) return;
  if (const absl::Status decoded = DecodeBody(options_.max_body_bytes, &call); !decoded.ok()) {
    SendBodyError(decoded, known, *responder);
    return;
  }
  call.headers["authorization"] = KeyOf(call);
  const size_t around = known->prefix.size() + known->suffix.size();
  if (around > 0) {
    call.name = DecodeSegment(call.path.substr(known->prefix.size(), call.path.size() - around));
  }
  const Route route = known->by_method.at(call.method == "HEAD" ? "GET" : call.method);
  (this->*route)(call, std::move(responder));
}

RouteContext Gateway::Context(const Call& request) {
  return {options_.models, options_.metrics,      options_.clock,
          request.id,      serialization_thread_, request.headers.at("authorization"),
          request.caller};
}

void Gateway::Completions(const Call& request, Responder responder) {
  Generate(openai::Kind::kCompletion, request, Context(request), std::move(responder));
}

void Gateway::ChatCompletions(const Call& request, Responder responder) {
  Generate(openai::Kind::kChat, request, Context(request), std::move(responder));
}

ResponsesContext Gateway::ForResponses(const Call& request) {
  return {Context(request), responses_};
}

void Gateway::CreateResponse(const Call& request, Responder responder) {
  espalier::CreateResponse(request, ForResponses(request), std::move(responder));
}

void Gateway::CountResponseInputTokens(const Call& request, Responder responder) {
  espalier::CountResponseInputTokens(request, ForResponses(request), std::move(responder));
}

void Gateway::GetResponse(const Call& request, Responder responder) {
  espalier::GetResponse(request, request.name, ForResponses(request), std::move(responder));
}

void Gateway::DeleteResponse(const Call& request, Responder responder) {
  espalier::DeleteResponse(request.name, ForResponses(request), std::move(responder));
}

void Gateway::CancelResponse(const Call& request, Responder responder) {
  espalier::CancelResponse(request.name, ForResponses(request), std::move(responder));
}

void Gateway::ListResponseInputItems(const Call& request, Responder responder) {
  espalier::ListResponseInputItems(request, request.name, ForResponses(request),
                                   std::move(responder));
}

void Gateway::Models(const Call& request, Responder responder) {
  std::vector<openai::ModelEntry> entries;
  for (const v1::ServedModel& model : options_.models->ListFor(request.caller)) {
    entries.push_back(EntryOf(model));
    for (const v1::LoraAdapter& adapter : model.adapters()) {
      entries.push_back(EntryOf(model, adapter.name()));
    }
  }
  responder->Send(200, kJson, openai::ModelList(entries));
}

void Gateway::Model(const Call& request, Responder responder) {
  absl::StatusOr<ModelServer::Target> target =
      options_.models->Resolve(request.name, request.caller);
  if (!target.ok()) return SendError(*responder, target.status());
  responder->Send(200, kJson,
                  openai::ModelJson(EntryOf(target->model->description, target->adapter)));
}

void Gateway::Health(const Call& request, Responder responder) {
  responder->Send(200, kJson,
                  request.path == "/health" ? R"({"status":"ok"})" : R"({"live":true})");
}

void Gateway::Ready(const Call& request, Responder responder) {
  bool ready = !options_.ready || options_.ready();
  if (request.path == "/v2/health/ready") {
    ready = ready && AllModelsReady(*options_.models);
    responder->Send(ready ? 200 : 503, kJson,
                    absl::StrCat(R"({"ready":)", ready ? "true" : "false", "}"));
    return;
  }
  responder->Send(ready ? 200 : 503, kJson,
                  ready ? R"({"status":"ready"})" : R"({"status":"not ready"})");
}

void Gateway::Version(const Call&, Responder responder) {
  responder->Send(200, kJson, absl::StrCat(R"({"version":")", options_.version, "\"}"));
}

void Gateway::Metrics(const Call&, Responder responder) {
  if (options_.metrics != nullptr) {
    options_.metrics->SetModels(options_.models->CountByState());
    options_.metrics->Collect();
  }
  responder->Send(200, "text/plain; version=0.0.4; charset=utf-8",
                  options_.exposition ? options_.exposition() : "");
}

void Gateway::ServerMetadata(const Call&, Responder responder) {
  const inference::ServerMetadataResponse server = DescribeServer(options_.version);
  responder->Send(
      200, kJson,
      openai::Dump({{"name", server.name()},
                    {"version", server.version()},
                    {"extensions", std::vector<std::string>(server.extensions().begin(),
                                                            server.extensions().end())}}));
}

void Gateway::ModelMetadata(const Call& request, Responder responder) {
  const absl::StatusOr<inference::ModelMetadataResponse> model =
      DescribeModel(ModelVersion<inference::ModelMetadataRequest>(request.name), request.caller,
                    *options_.models);
  if (!model.ok()) return SendError(*responder, model.status(), &MessageAlone);
  responder->Send(200, kJson,
                  openai::Dump({{"name", model->name()},
                                {"versions", std::vector<std::string>(model->versions().begin(),
                                                                      model->versions().end())},
                                {"platform", model->platform()},
                                {"inputs", TensorsJson(model->inputs())},
                                {"outputs", TensorsJson(model->outputs())}}));
}

void Gateway::ModelStatistics(const Call& request, Responder responder) {
  const auto wanted = ModelVersion<inference::ModelStatisticsRequest>(request.name);
  const absl::StatusOr<inference::ModelStatisticsResponse> statistics =
      StatisticsOf(wanted, request.caller, *options_.models);
  if (!statistics.ok()) return SendError(*responder, statistics.status(), &MessageAlone);
  responder->Send(200, kJson, openai::Dump(StatisticsJson(*statistics)));
}
void Gateway::ModelInfer(const Call& request, Responder responder) {
  const auto wanted = ModelVersion<inference::ModelReadyRequest>(request.name);
  Infer(request, wanted.name(), wanted.version(), Context(request), std::move(responder));
}

void Gateway::ModelReady(const Call& request, Responder responder) {
  const auto wanted = ModelVersion<inference::ModelReadyRequest>(request.name);
  const absl::StatusOr<bool> ready = espalier::ModelReady(wanted, request.caller, *options_.models);
  if (!ready.ok()) return SendError(*responder, ready.status(), &MessageAlone);
  responder->Send(*ready ? 200 : 503, kJson,
                  openai::Dump({{"name", wanted.name()}, {"ready", *ready}}));
}

}  // namespace espalier
