#include "server/http/gateway.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "server/http/openai.h"
#include "serving/tokenizer/chat_template.h"

namespace espalier {
namespace {

constexpr char kJson[] = "application/json";
constexpr int kDefaultMaxTokens = 16;

void SendError(HttpResponder& responder, const openai::Error& error,
               HttpResponder::Headers headers = {}) {
  if (error.http_status == 429 || error.http_status == 503) {
    headers.emplace_back("Retry-After", "1");
  }
  if (error.http_status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  responder.Send(error.http_status, kJson, openai::ToJson(error), std::move(headers));
}

openai::UsageCounts Counts(const Usage& usage) {
  return {usage.prompt_tokens, usage.completion_tokens, usage.drafted_tokens, usage.accepted_tokens,
          usage.verification_steps};
}

// One answer, streamed or whole. Lives in the engine's listener; used on the engine's thread alone.
class Answer {
 public:
  Answer(openai::Head head, bool stream, bool include_usage,
         std::shared_ptr<HttpResponder> responder, ServingMetrics* metrics)
      : head_(std::move(head)),
        stream_(stream),
        include_usage_(include_usage),
        responder_(std::move(responder)),
        metrics_(metrics) {}

  void On(const RequestEvent& event) {
    if (event.finished && metrics_ != nullptr) metrics_->RequestFinished(head_.model, event);
    if (event.reason == FinishReason::kError) {
      Fail(openai::FromStatus(event.error));
      return;
    }
    if (stream_) {
      Stream(event);
      return;
    }
    text_ += event.text;
    if (event.finished) {
      responder_->Send(200, kJson,
                       openai::WholeAnswer(head_, text_, Name(event.reason), Counts(event.usage)));
    }
  }

 private:
  // Before the first token the status line can still tell; afterwards only the stream can.
  void Fail(const openai::Error& error) {
    if (!started_) {
      SendError(*responder_, error);
      return;
    }
    responder_->Write(openai::ErrorChunk(error));
    responder_->End();
  }

  void Stream(const RequestEvent& event) {
    if (!started_) {
      started_ = true;
      responder_->StartStream(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
      responder_->Write(openai::FirstChunk(head_));
    }
    if (!event.text.empty()) responder_->Write(openai::Chunk(head_, event.text, ""));
    if (!event.finished) return;
    responder_->Write(openai::Chunk(head_, "", Name(event.reason)));
    if (include_usage_) responder_->Write(openai::UsageChunk(head_, Counts(event.usage)));
    responder_->Write(openai::kDone);
    responder_->End();
  }

  const openai::Head head_;
  const bool stream_;
  const bool include_usage_;
  const std::shared_ptr<HttpResponder> responder_;
  ServingMetrics* const metrics_;
  bool started_ = false;
  std::string text_;
};

// A conversation in the model's own form. Its special tokens are spelled in the text.
absl::StatusOr<std::vector<int>> ChatPromptOf(const openai::Request& request,
                                              const EngineHost& host, const Clock& clock) {
  ChatRequest chat;
  chat.messages = nlohmann::ordered_json::array();
  for (const openai::Message& message : request.messages) {
    chat.messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  chat.strftime_now = [&clock](const std::string& format) {
    return absl::FormatTime(format, absl::FromUnixMillis(clock.NowUnixMillis()),
                            absl::LocalTimeZone());
  };
  absl::StatusOr<std::string> text = host.chat()->Render(chat);
  if (!text.ok()) return text.status();
  return host.tokenizer().TryEncode(*text, {.parse_special = true});
}

absl::StatusOr<std::vector<int>> PromptOf(openai::Kind kind, const openai::Request& request,
                                          const EngineHost& host, const Clock& clock) {
  const Tokenizer& tokenizer = host.tokenizer();
  if (request.prompt_tokens.has_value()) return *request.prompt_tokens;
  if (kind == openai::Kind::kCompletion) {
    return tokenizer.TryEncode(request.prompt, {.add_special = true, .parse_special = true});
  }
  if (host.chat() != nullptr) return ChatPromptOf(request, host, clock);
  std::vector<ChatMessage> messages;
  for (const openai::Message& message : request.messages) {
    messages.push_back({message.role == "developer" ? "system" : message.role, message.content});
  }
  absl::StatusOr<std::string> text = RenderPlainChat(messages);
  if (!text.ok()) return text.status();
  return tokenizer.Encode(*text);
}

void Generate(openai::Kind kind, const HttpRequest& http, const GatewayOptions& gateway,
              int64_t number, std::shared_ptr<HttpResponder> responder) {
  openai::Request request;
  if (const auto error = openai::Parse(kind, http.body, &request)) {
    SendError(*responder, *error);
    return;
  }
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = gateway.models->Find(request.model);
  if (!model.ok()) {
    openai::Error error = openai::FromStatus(model.status());
    error.param = "model";
    SendError(*responder, error);
    return;
  }
  EngineHost& host = *(*model)->host;
  absl::StatusOr<std::vector<int>> prompt = PromptOf(kind, request, host, *gateway.clock);
  if (!prompt.ok()) {
    SendError(*responder, openai::FromStatus(prompt.status()));
    return;
  }
  if (request.speculation.value_or(false) && !host.has_ssms()) {
    SendError(*responder, {.message = absl::StrCat("field 'speculation' is true, but model '",
                                                   request.model, "' is served without SSMs"),
                           .param = "speculation"});
    return;
  }
  RequestOptions options;
  options.max_tokens = request.max_tokens;
  if (options.max_tokens == 0) {
    // Chat answers run to the end of the context unless they are limited.
    options.max_tokens = kind == openai::Kind::kChat
                             ? std::max(1, host.context() - static_cast<int>(prompt->size()))
                             : kDefaultMaxTokens;
  }
  options.stop = request.stop;
  options.ignore_eos = request.ignore_eos;
  options.speculate = request.speculation.value_or(true);
  options.sampling.temperature = request.temperature;
  options.sampling.top_p = request.top_p;
  options.sampling.top_k = request.top_k;
  options.sampling.seed = request.seed.value_or(gateway.models->NextSeed());
  openai::Head head{kind,
                    absl::StrCat(kind == openai::Kind::kChat ? "chatcmpl-" : "cmpl-",
                                 gateway.clock->NowUnixMillis(), "-", number),
                    gateway.clock->NowUnixMillis() / 1000, request.model};
  auto answer = std::make_shared<Answer>(std::move(head), request.stream, request.include_usage,
                                         responder, gateway.metrics);
  absl::StatusOr<EngineHost::Ticket> ticket =
      host.Submit(*std::move(prompt), std::move(options),
                  [answer](const RequestEvent& event) { answer->On(event); });
  if (!ticket.ok()) {
    SendError(*responder, openai::FromStatus(ticket.status()));
    return;
  }
  // Weak: an open connection must not keep an unloaded model alive.
  responder->OnClose([weak = std::weak_ptr<LoadedModel>(*model), ticket = *ticket] {
    if (auto model = weak.lock()) model->host->Cancel(ticket);
  });
}

}  // namespace

Gateway::Gateway(GatewayOptions options) : options_(std::move(options)) {
  routes_["/v1/completions"]["POST"] = &Gateway::Completions;
  routes_["/v1/chat/completions"]["POST"] = &Gateway::ChatCompletions;
  routes_["/v1/models"]["GET"] = &Gateway::Models;
  routes_["/health"]["GET"] = &Gateway::Health;
  routes_["/ready"]["GET"] = &Gateway::Ready;
  routes_["/version"]["GET"] = &Gateway::Version;
  routes_["/metrics"]["GET"] = &Gateway::Metrics;
}

void Gateway::Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  auto path = routes_.find(request.path);
  if (path == routes_.end()) {
    SendError(*responder, {.http_status = 404,
                           .message = absl::StrCat("there is no ", request.method, " ",
                                                   request.path.substr(0, 200))});
    return;
  }
  const bool head = request.method == "HEAD";
  auto route = path->second.find(head ? "GET" : request.method);
  if (route == path->second.end()) {
    const std::string allowed = absl::StrJoin(
        path->second, ", ", [](std::string* out, const auto& entry) { out->append(entry.first); });
    SendError(*responder,
              {.http_status = 405,
               .message = absl::StrCat(request.path, " takes ", allowed, ", not ",
                                       request.method.substr(0, 40))},
              {{"Allow", allowed}});
    return;
  }
  if (options_.authorize && request.path != "/health") {
    const absl::Status allowed = options_.authorize(absl::StrCat(route->first, " ", request.path),
                                                    request.headers["authorization"]);
    if (!allowed.ok()) {
      SendError(*responder, openai::FromStatus(allowed));
      return;
    }
  }
  (this->*route->second)(request, std::move(responder));
}

void Gateway::Completions(const HttpRequest& request, std::shared_ptr<HttpResponder> responder) {
  Generate(openai::Kind::kCompletion, request, options_, ++counter_, std::move(responder));
}

void Gateway::ChatCompletions(const HttpRequest& request,
                              std::shared_ptr<HttpResponder> responder) {
  Generate(openai::Kind::kChat, request, options_, ++counter_, std::move(responder));
}

void Gateway::Models(const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
  std::vector<openai::ModelEntry> entries;
  for (const proto::ServedModel& model : options_.models->List()) {
    entries.push_back({model.name(), model.loaded_unix_ms() / 1000});
  }
  responder->Send(200, kJson, openai::ModelList(entries));
}

void Gateway::Health(const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
  responder->Send(200, kJson, R"({"status":"ok"})");
}

void Gateway::Ready(const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
  const bool ready = !options_.ready || options_.ready();
  responder->Send(ready ? 200 : 503, kJson,
                  ready ? R"({"status":"ready"})" : R"({"status":"starting"})");
}

void Gateway::Version(const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
  responder->Send(200, kJson, absl::StrCat(R"({"version":")", options_.version, "\"}"));
}

void Gateway::Metrics(const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
  if (options_.metrics != nullptr) options_.metrics->Collect();
  responder->Send(200, "text/plain; version=0.0.4; charset=utf-8",
                  options_.exposition ? options_.exposition() : "");
}

}  // namespace espalier
