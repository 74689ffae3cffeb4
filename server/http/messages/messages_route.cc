#include "server/http/messages/messages_route.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/http/json_reader.h"
#include "server/http/messages/messages_error.h"
#include "server/http/messages/messages_formatter.h"
#include "server/http/messages/messages_request.h"
#include "server/http/response_producer.h"
#include "server/http/send_error.h"
#include "server/inference/requests/generation.h"
#include "serving/chat_template/chat_template.h"

namespace espalier {
namespace {

struct PreparedRequest {
  anthropic::MessagesRequest request;
  std::shared_ptr<LoadedModel> model;
};

std::optional<openai::Error> Read(anthropic::Purpose purpose, const HttpRequest& http,
                                  const RouteContext& context, PreparedRequest* prepared) {
  v1::GenerateRequest& generate = prepared->request.generate;
  if (auto error = anthropic::ParseMessages(purpose, http.body, &prepared->request)) return error;
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = ModelOf(context, &generate);
  if (!model.ok()) return openai::FromStatus(model.status());
  prepared->model = *std::move(model);
  const ChatTemplate* format = prepared->model->engine->chat();
  if (prepared->request.no_thinking && generate.chat().reasoning_effort().empty() &&
      format != nullptr &&
      absl::StrContains(format->Source(!generate.chat().tools().empty()), "enable_thinking")) {
    generate.mutable_chat()->set_reasoning_effort("none");
  }
  return std::nullopt;
}

}  // namespace

void CreateMessage(const HttpRequest& http, const RouteContext& context,
                   std::shared_ptr<HttpResponder> responder) {
  PreparedRequest prepared;
  if (const auto error = Read(anthropic::Purpose::kAnswer, http, context, &prepared)) {
    SendError(*responder, *error, {}, &anthropic::ErrorJson);
    return;
  }
  v1::GenerateRequest& generate = prepared.request.generate;
  generate.set_return_prompt_tokens(true);
  SetDefaultTemperature(*prepared.model, &generate);
  responder = WithSchemaWarnings(std::move(responder), generate);
  anthropic::MessageHead head{.id = absl::StrCat("msg_", context.id),
                              .model = generate.model(),
                              .max_tokens = generate.max_tokens(),
                              .include_thinking = prepared.request.include_thinking};
  ResponseProducerOptions options;
  options.formatter =
      std::make_unique<anthropic::MessagesFormatter>(std::move(head), prepared.request.stream);
  options.error_formatter = &anthropic::ErrorJson;
  options.clock = context.clock;
  options.serialization_thread = context.serialization_thread;
  const auto producer =
      std::make_shared<ResponseProducer>(std::move(options), std::move(responder));
  producer->Accept(StartGeneration(generate, prepared.model, context.models, context.metrics,
                                   producer->Listener()));
}

void CountMessageTokens(const HttpRequest& http, const RouteContext& context,
                        std::shared_ptr<HttpResponder> responder) {
  PreparedRequest prepared;
  if (const auto error = Read(anthropic::Purpose::kCount, http, context, &prepared)) {
    SendError(*responder, *error, {}, &anthropic::ErrorJson);
    return;
  }
  absl::StatusOr<Prompt> prompt = PromptOf(prepared.request.generate, *prepared.model);
  if (!prompt.ok()) {
    SendError(*responder, prompt.status(), &anthropic::ErrorJson);
    return;
  }
  responder->Send(200, "application/json", openai::Dump({{"input_tokens", prompt->tokens.size()}}));
}

}  // namespace espalier
