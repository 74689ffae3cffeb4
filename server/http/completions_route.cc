#include "server/http/completions_route.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/completions_formatter.h"
#include "server/http/request_id.h"
#include "server/http/response_producer.h"
#include "server/http/send_error.h"
#include "server/inference/requests/generation.h"

namespace espalier {
namespace {

openai::Head HeadOf(openai::Kind kind, const openai::Request& request, const std::string& id,
                    const Clock& clock) {
  return {.kind = kind,
          .id = absl::StrCat(kind == openai::Kind::kChat ? "chatcmpl-" : "cmpl-", id),
          .created_unix_seconds = clock.NowUnixMillis() / 1000,
          .model = request.generate.model(),
          .usage_in_chunks = request.include_usage,
          .service_tier = request.service_tier};
}

}  // namespace

void Generate(openai::Kind kind, const HttpRequest& http, const RouteContext& context,
              std::shared_ptr<HttpResponder> responder) {
  openai::Request request;
  if (const auto error = openai::Parse(kind, http.body, &request)) {
    SendError(*responder, *error);
    return;
  }
  openai::ReadRequestIdHeader(http.headers, &request.id);
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = ModelOf(context, &request.generate);
  if (!model.ok()) {
    SendError(*responder, model.status());
    return;
  }
  SetDefaultTemperature(**model, &request.generate);
  responder = WithSchemaWarnings(std::move(responder), request.generate);
  const std::string id = request.id.empty() ? context.id : request.id;
  openai::CompletionShape shape = openai::ShapeOf(request);
  ResponseProducerOptions options;
  options.prompts = shape.prompts;
  options.formatter = std::make_unique<openai::CompletionsFormatter>(
      HeadOf(kind, request, id, *context.clock), std::move(shape), request.stream);
  options.clock = context.clock;
  options.serialization_thread = context.serialization_thread;
  const auto producer = std::make_shared<ResponseProducer>(std::move(options),
                                                           WithRequestId(std::move(responder), id));
  if (kind == openai::Kind::kCompletion) {
    producer->Accept(StartBatch(request.generate, request.prompts, *model, context.models,
                                context.metrics, producer->ListenerForPrompts()));
  } else {
    producer->Accept(StartGeneration(request.generate, *model, context.models, context.metrics,
                                     producer->Listener()));
  }
}

}  // namespace espalier
