#include "server/http/ollama/generate_route.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/http/added_headers.h"
#include "server/http/json_reader.h"
#include "server/http/ollama/ollama_formatter.h"
#include "server/http/ollama/ollama_request.h"
#include "server/http/ollama/served_name.h"
#include "server/http/openai_response.h"
#include "server/http/response_producer.h"
#include "server/http/send_error.h"
#include "server/inference/field_error.h"
#include "server/inference/requests/generation.h"
#include "server/inference/requests/schema_warnings.h"
#include "serving/chat_template/chat_template.h"
#include "serving/output_parsers/reasoning_parser.h"

namespace espalier::ollama {
namespace {

constexpr char kEnableThinking[] = "enable_thinking";

// Fills in the prompt of /api/generate: a chat of one turn, or the text itself if it is raw or the
// model has no chat template.
absl::Status SetPrompt(const LoadedModel& model, Request* request) {
  v1::GenerateRequest& generate = request->generate;
  if (request->raw || model.engine->chat() == nullptr) {
    if (!request->system.empty()) {
      return FieldError("system",
                        "field 'system': the model has no chat template to say how it is told "
                        "from the prompt; write it into 'prompt', or use /api/chat");
    }
    generate.set_text(request->prompt);
    return absl::OkStatus();
  }
  const auto add = [&](const char* role, const std::string& text) {
    v1::ChatTurn* turn = generate.mutable_chat()->add_turns();
    turn->set_role(role);
    turn->set_content(text);
  };
  if (!request->system.empty()) add("system", request->system);
  add("user", request->prompt);
  return absl::OkStatus();
}

// Tells the template whether to think, and how much.
absl::Status SetThinking(const LoadedModel& model, Request* request) {
  if (!request->think.has_value()) return absl::OkStatus();
  v1::GenerateRequest& generate = request->generate;
  const ChatTemplate* format = generate.has_chat() ? model.engine->chat() : nullptr;
  const std::string source =
      format == nullptr ? "" : format->Source(!generate.chat().tools().empty());
  const bool can_switch = absl::StrContains(source, kEnableThinking);
  const bool has_levels = absl::StrContains(source, "reasoning_effort");
  if (!*request->think) {
    // One that cannot be told thinks nevertheless; its thoughts are not sent.
    if (can_switch) generate.mutable_chat()->set_reasoning_effort("none");
    return absl::OkStatus();
  }
  if (!can_switch && !has_levels && ReasoningTagsFor(source).empty()) {
    return FieldError("think", absl::StrCat("model '", generate.model(),
                                            "' does not support thinking; leave 'think' out"));
  }
  if (!request->think_level.empty()) {
    if (!has_levels) {
      return FieldError("think", absl::StrCat("field 'think' is '", request->think_level,
                                              "', but model '", generate.model(),
                                              "' can only think or not; accepted: true, false"));
    }
    generate.mutable_chat()->set_reasoning_effort(request->think_level);
  } else if (can_switch) {
    generate.mutable_chat()->set_template_arguments(openai::Dump({{kEnableThinking, true}}));
  }
  return absl::OkStatus();
}

// Puts the tokens of an earlier answer before the prompt.
absl::Status PrependContext(const LoadedModel& model, Request* request) {
  if (request->context.empty()) return absl::OkStatus();
  v1::GenerateRequest& generate = request->generate;
  absl::StatusOr<Prompt> prompt = PromptOf(generate, model);
  if (!prompt.ok()) return prompt.status();
  if (!prompt->reasoning.empty()) {
    return FieldError("context",
                      "field 'context' is not supported for models that think; send the "
                      "conversation to /api/chat");
  }
  std::vector<int>& tokens = prompt->tokens;
  const int bos = model.engine->tokenizer().bos();
  if (bos >= 0 && !tokens.empty() && tokens[0] == bos) tokens.erase(tokens.begin());
  auto* ids = generate.mutable_tokens()->mutable_ids();
  ids->Assign(request->context.begin(), request->context.end());
  ids->Add(tokens.begin(), tokens.end());
  return absl::OkStatus();
}

// Limits the answer: to the rest of the context, of num_ctx tokens if that is given.
absl::Status LimitAnswer(const LoadedModel& model, Request* request) {
  v1::GenerateRequest& generate = request->generate;
  const int context = model.engine->context();
  // Without a limit a text would get 16 tokens, as in OpenAI's API.
  if (generate.max_tokens() == 0 && !generate.has_chat()) generate.set_max_tokens(context);
  if (absl::Status status = CheckContext(request->load, context); !status.ok()) return status;
  if (!request->load.num_ctx.has_value()) return absl::OkStatus();
  const absl::StatusOr<Prompt> prompt = PromptOf(generate, model);
  if (!prompt.ok()) return prompt.status();
  const int left = *request->load.num_ctx - static_cast<int>(prompt->tokens.size());
  if (left < 1) {
    return FieldError("options.num_ctx",
                      absl::StrCat("the prompt has ", prompt->tokens.size(),
                                   " tokens, field 'options.num_ctx' is ", *request->load.num_ctx,
                                   ", of which at least one is for the answer"));
  }
  generate.set_max_tokens(generate.max_tokens() > 0 ? std::min(generate.max_tokens(), left) : left);
  return absl::OkStatus();
}

absl::Status Prepare(bool chat, const LoadedModel& model, Request* request) {
  absl::Status status = chat ? absl::OkStatus() : SetPrompt(model, request);
  if (status.ok()) status = SetThinking(model, request);
  if (status.ok()) status = PrependContext(model, request);
  if (status.ok()) status = LimitAnswer(model, request);
  if (status.ok()) SetDefaultTemperature(model, &request->generate);
  return status;
}

// Says in a header what has no effect.
std::shared_ptr<HttpResponder> WithWarnings(std::shared_ptr<HttpResponder> responder,
                                            const Request& request) {
  std::vector<std::string> warnings = SchemaWarnings(request.generate);
  if (request.load.unload) {
    warnings.push_back("keep_alive: the model stays loaded until `espalier unserve`");
  }
  std::string warning = WarningHeader(warnings);
  if (warning.empty()) return responder;
  return WithHeaders(std::move(responder), {{kWarningHeader, std::move(warning)}});
}

absl::Status NoUnload(const std::string& model) {
  return absl::UnimplementedError(absl::StrCat(
      "a model stays loaded while it is served; `espalier unserve ", model, "` ends that"));
}

void Answer(bool chat, const HttpRequest& http, const RouteContext& context,
            std::shared_ptr<HttpResponder> responder) {
  Request request;
  const auto error = chat ? ParseChat(http.body, &request) : ParseGenerate(http.body, &request);
  if (error) return SendError(*responder, *error, {}, &MessageAlone);
  AnswerForm form{.model = request.generate.model(), .chat = chat};
  v1::GenerateRequest& generate = request.generate;
  generate.set_model(ServedName(context, generate.model()));
  const absl::StatusOr<std::shared_ptr<LoadedModel>> model = ModelOf(context, &generate);
  if (!model.ok()) return SendError(*responder, model.status(), &MessageAlone);
  if (request.empty) {
    const absl::Status status = request.load.unload
                                    ? NoUnload(generate.model())
                                    : CheckContext(request.load, (*model)->engine->context());
    if (!status.ok()) return SendError(*responder, status, &MessageAlone);
    // One object, also of a stream.
    const std::string body = openai::Dump(LoadedAnswer(form, context.clock->Now()));
    return responder->Send(200, "application/json", body);
  }
  if (absl::Status status = Prepare(chat, **model, &request); !status.ok()) {
    return SendError(*responder, status, &MessageAlone);
  }
  form.include_thinking = request.think.value_or(true);
  form.logprobs = generate.has_logprobs();
  form.context = !chat && !request.raw;
  generate.set_return_prompt_tokens(form.context);
  responder = WithWarnings(std::move(responder), request);
  ResponseProducerOptions options;
  options.formatter =
      std::make_unique<OllamaFormatter>(std::move(form), context.clock, request.stream);
  options.error_formatter = &MessageAlone;
  options.clock = context.clock;
  options.serialization_thread = context.serialization_thread;
  const auto producer =
      std::make_shared<ResponseProducer>(std::move(options), std::move(responder));
  producer->Accept(
      StartGeneration(generate, *model, context.models, context.metrics, producer->Listener()));
}

}  // namespace

absl::Status CheckContext(const LoadOptions& load, int context) {
  if (load.num_ctx.value_or(0) <= context) return absl::OkStatus();
  return FieldError("options.num_ctx",
                    absl::StrCat("field 'options.num_ctx' is ", *load.num_ctx,
                                 ", but the model is served with a context of ", context,
                                 " tokens; serve it with --max-sequence-length=", *load.num_ctx,
                                 ", or leave num_ctx out"));
}

void Generate(const HttpRequest& http, const RouteContext& context,
              std::shared_ptr<HttpResponder> responder) {
  Answer(/*chat=*/false, http, context, std::move(responder));
}

void Chat(const HttpRequest& http, const RouteContext& context,
          std::shared_ptr<HttpResponder> responder) {
  Answer(/*chat=*/true, http, context, std::move(responder));
}

}  // namespace espalier::ollama
