#include "server/http/gateway.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/http/embeddings_route.h"
#include "server/http/json_reader.h"
#include "server/http/openai_response.h"
#include "server/inference/generation.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

constexpr char kJson[] = "application/json";
constexpr absl::string_view kOpenAiModels = "/v1/models/";
constexpr absl::string_view kInferenceModels = "/v2/models/";
constexpr absl::string_view kReadySuffix = "/ready";

// Notes when and how a request was answered.
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

// The name in "/v2/models/NAME" or "/v2/models/NAME/ready".
std::string NameIn(absl::string_view path, absl::string_view prefix) {
  path.remove_prefix(prefix.size());
  if (absl::EndsWith(path, kReadySuffix)) path.remove_suffix(kReadySuffix.size());
  return std::string(path);
}

// Of a model, or of one of its adapters.
openai::ModelEntry EntryOf(const proto::ServedModel& model, const std::string& adapter = "") {
  openai::ModelEntry entry{model.name(), model.loaded_unix_ms() / 1000,
                           model.max_sequence_length()};
  if (adapter.empty()) return entry;
  entry.parent = std::exchange(entry.name, adapter);
  return entry;
}

}  // namespace

Gateway::Gateway(GatewayOptions options) : options_(std::move(options)) {
  const auto add = [this](const std::string& path, const char* method, Route route,
                          const std::string& name = "") -> Known& {
    Known& known = routes_[path];
    known.name = name.empty() ? path : name;
    known.by_method[method] = route;
    return known;
  };
  add("/v1/completions", "POST", &Gateway::Completions);
  add("/v1/chat/completions", "POST", &Gateway::ChatCompletions);
  add("/v1/embeddings", "POST", &Gateway::Embeddings);
  add("/tokenize", "POST", &Gateway::Tokenize);
  add("/detokenize", "POST", &Gateway::Detokenize);
  add("/v1/models", "GET", &Gateway::Models);
  add("/v1/models/", "GET", &Gateway::Model, "/v1/models/NAME");
  add("/health", "GET", &Gateway::Health).probe = true;
  add("/ready", "GET", &Gateway::Ready).probe = true;
  add("/version", "GET", &Gateway::Version);
  add("/metrics", "GET", &Gateway::Metrics);
  add("/v2", "GET", &Gateway::ServerMetadata);
  add("/v2/health/live", "GET", &Gateway::Health).probe = true;
  add("/v2/health/ready", "GET", &Gateway::Ready).probe = true;
  add("/v2/models/", "GET", &Gateway::ModelMetadata, "/v2/models/NAME");
}

std::vector<Gateway::RouteName> Gateway::Routes() const {
  std::vector<RouteName> routes;
  for (const auto& [path, known] : routes_) {
    for (const auto& [method, route] : known.by_method) routes.push_back({method, known.name});
  }
  return routes;
}

const Gateway::Known* Gateway::FindRoute(const std::string& path) const {
  auto it = routes_.find(path);
  for (const absl::string_view prefix : {kOpenAiModels, kInferenceModels}) {
    if (it == routes_.end() && path.size() > prefix.size() && absl::StartsWith(path, prefix)) {
      it = routes_.find(std::string(prefix));
    }
  }
  const bool nameless = path == kOpenAiModels || path == kInferenceModels;
  return it == routes_.end() || nameless ? nullptr : &it->second;
}

void Gateway::Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  const Known* known = FindRoute(request.path);
  if (options_.metrics != nullptr) {
    // Names that clients make up must not become labels.
    static const char* const kMethods[] = {"GET", "HEAD", "POST"};
    const bool usual =
        std::find(std::begin(kMethods), std::end(kMethods), request.method) != std::end(kMethods);
    responder = std::make_shared<MeteredResponder>(
        std::move(responder), usual ? request.method : "other",
        known != nullptr ? known->name : "other", options_.clock, options_.metrics);
  }
  const bool open = options_.open_probes && known != nullptr && known->probe;
  const bool head = request.method == "HEAD";
  const std::string method = head ? "GET" : request.method;
  // Before anything is told about what there is.
  if (options_.authorize && !open) {
    const absl::Status allowed = options_.authorize(
        absl::StrCat(method.substr(0, 40), " ", known != nullptr ? known->name : "other"),
        request.headers["authorization"]);
    if (!allowed.ok()) {
      SendError(*responder, allowed);
      return;
    }
  }
  if (known == nullptr) {
    SendError(*responder,
              openai::Error{.http_status = 404,
                            .message = absl::StrCat("there is no ", request.method.substr(0, 40),
                                                    " ", request.path.substr(0, 200))});
    return;
  }
  const auto route = known->by_method.find(method);
  if (route == known->by_method.end()) {
    const std::string allowed =
        absl::StrJoin(known->by_method, ", ",
                      [](std::string* out, const auto& entry) { out->append(entry.first); });
    SendError(*responder,
              openai::Error{.http_status = 405,
                            .message = absl::StrCat(known->name, " takes ", allowed, ", not ",
                                                    request.method.substr(0, 40))},
              {{"Allow", allowed}});
    return;
  }
  (this->*route->second)(request, std::move(responder));
}

GenerateContext Gateway::Context() {
  return {options_.models, options_.metrics, options_.clock, ++counter_};
}

absl::StatusOr<std::shared_ptr<LoadedModel>> Gateway::ModelOf(const std::string& name) const {
  if (!name.empty()) {
    absl::StatusOr<ModelServer::Target> target = options_.models->Resolve(name);
    if (!target.ok()) return target.status();
    return std::move(target->model);
  }
  const std::vector<std::string> names = options_.models->Names();
  if (names.size() == 1) return options_.models->Find(names[0]);
  return absl::InvalidArgumentError(
      absl::StrCat("field 'model' is missing, and ", names.size(), " models are served"));
}

void Gateway::Completions(const HttpRequest& request, Responder responder) {
  Generate(openai::Kind::kCompletion, request, Context(), std::move(responder));
}

void Gateway::ChatCompletions(const HttpRequest& request, Responder responder) {
  Generate(openai::Kind::kChat, request, Context(), std::move(responder));
}

void Gateway::Embeddings(const HttpRequest& request, Responder responder) {
  Embed(request, Context(), std::move(responder));
}

void Gateway::Tokenize(const HttpRequest& request, Responder responder) {
  openai::TokenizeRequest wanted;
  if (const auto error = openai::ParseTokenize(request.body, &wanted)) {
    SendError(*responder, *error);
    return;
  }
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = ModelOf(wanted.model);
  if (!model.ok()) return SendError(*responder, model.status());
  absl::StatusOr<Prompt> prompt = PromptOf(wanted.generate, **model);
  if (!prompt.ok()) return SendError(*responder, prompt.status());
  std::vector<std::string> strings;
  for (const int token : prompt->tokens)
    strings.push_back((*model)->host->tokenizer().TokenBytes(token));
  responder->Send(200, kJson,
                  openai::TokensJson(prompt->tokens, wanted.token_strings ? &strings : nullptr,
                                     (*model)->host->context()));
}

void Gateway::Detokenize(const HttpRequest& request, Responder responder) {
  openai::TokenizeRequest wanted;
  if (const auto error = openai::ParseDetokenize(request.body, &wanted)) {
    SendError(*responder, *error);
    return;
  }
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = ModelOf(wanted.model);
  if (!model.ok()) return SendError(*responder, model.status());
  const Tokenizer& tokenizer = (*model)->host->tokenizer();
  for (const int token : wanted.tokens) {
    if (token < tokenizer.vocabulary()) continue;
    return SendError(*responder, openai::Error{.message = absl::StrCat("token ", token,
                                                                       " is outside the "
                                                                       "vocabulary of ",
                                                                       tokenizer.vocabulary()),
                                               .param = "tokens"});
  }
  responder->Send(200, kJson, openai::PromptJson(tokenizer.Decode(wanted.tokens)));
}

void Gateway::Models(const HttpRequest&, Responder responder) {
  std::vector<openai::ModelEntry> entries;
  for (const proto::ServedModel& model : options_.models->List()) {
    entries.push_back(EntryOf(model));
    for (const proto::LoraAdapter& adapter : model.adapters()) {
      entries.push_back(EntryOf(model, adapter.name()));
    }
  }
  responder->Send(200, kJson, openai::ModelList(entries));
}

void Gateway::Model(const HttpRequest& request, Responder responder) {
  absl::StatusOr<ModelServer::Target> target =
      options_.models->Resolve(NameIn(request.path, kOpenAiModels));
  if (!target.ok()) return SendError(*responder, target.status());
  responder->Send(200, kJson,
                  openai::ModelJson(EntryOf(target->model->description, target->adapter)));
}

void Gateway::Health(const HttpRequest& request, Responder responder) {
  responder->Send(200, kJson,
                  request.path == "/health" ? R"({"status":"ok"})" : R"({"live":true})");
}

void Gateway::Ready(const HttpRequest& request, Responder responder) {
  const bool ready = !options_.ready || options_.ready();
  if (request.path == "/v2/health/ready") {
    responder->Send(ready ? 200 : 503, kJson,
                    absl::StrCat(R"({"ready":)", ready ? "true" : "false", "}"));
    return;
  }
  responder->Send(ready ? 200 : 503, kJson,
                  ready ? R"({"status":"ready"})" : R"({"status":"not ready"})");
}

void Gateway::Version(const HttpRequest&, Responder responder) {
  responder->Send(200, kJson, absl::StrCat(R"({"version":")", options_.version, "\"}"));
}

void Gateway::Metrics(const HttpRequest&, Responder responder) {
  if (options_.metrics != nullptr) options_.metrics->Collect();
  responder->Send(200, "text/plain; version=0.0.4; charset=utf-8",
                  options_.exposition ? options_.exposition() : "");
}

void Gateway::ServerMetadata(const HttpRequest&, Responder responder) {
  responder->Send(
      200, kJson,
      openai::Dump(
          {{"name", "espalier"}, {"version", options_.version}, {"extensions", json::array()}}));
}

void Gateway::ModelMetadata(const HttpRequest& request, Responder responder) {
  if (absl::EndsWith(request.path, kReadySuffix)) {
    ModelReady(request, std::move(responder));
    return;
  }
  absl::StatusOr<std::shared_ptr<LoadedModel>> model =
      options_.models->Find(NameIn(request.path, kInferenceModels));
  if (!model.ok()) return SendError(*responder, model.status());
  const auto text = [](const char* name) {
    return json::array({{{"name", name}, {"datatype", "BYTES"}, {"shape", {1}}}});
  };
  responder->Send(200, kJson,
                  openai::Dump({{"name", (*model)->description.name()},
                                {"versions", {"1"}},
                                {"platform", "espalier"},
                                {"inputs", text("prompt")},
                                {"outputs", text("text")}}));
}

void Gateway::ModelReady(const HttpRequest& request, Responder responder) {
  const std::string name = NameIn(request.path, kInferenceModels);
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = options_.models->Find(name);
  if (!model.ok()) return SendError(*responder, model.status());
  responder->Send(200, kJson, openai::Dump({{"name", name}, {"ready", true}}));
}

}  // namespace espalier
