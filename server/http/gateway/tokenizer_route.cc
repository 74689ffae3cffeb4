#include "server/http/gateway/tokenizer_route.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/json/bounded_json.h"
#include "server/http/json_reader.h"
#include "server/http/openai_request.h"
#include "server/http/openai_response.h"
#include "server/http/percent_encoding.h"
#include "server/http/send_error.h"
#include "server/inference/requests/tokenization.h"
#include "serving/chat_template/chat_template.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

constexpr char kJsonType[] = "application/json";

// Returns tokenizer_config.json, or what is known without it.
json TokenizerConfigOf(const LoadedModel& model) {
  const absl::StatusOr<json> parsed = ParseBoundedJson<json>(model.engine->tokenizer_config());
  json config = parsed.ok() && parsed->is_object() ? *parsed : json::object();
  // Paths on the machine that wrote it.
  for (const char* name : {"vocab_file", "merges_file"}) config.erase(name);
  if (!config.value("tokenizer_class", json()).is_string()) {
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
  }
  const Tokenizer& tokenizer = model.engine->tokenizer();
  if (!config.contains("bos_token") && tokenizer.bos() >= 0) {
    config["bos_token"] = tokenizer.TokenBytes(tokenizer.bos());
  }
  if (!config.contains("eos_token") && !tokenizer.eos().empty()) {
    config["eos_token"] = tokenizer.TokenBytes(tokenizer.eos()[0]);
  }
  if (!config.contains("model_max_length")) config["model_max_length"] = model.engine->context();
  config.erase("chat_template");
  const ChatTemplate* chat = model.engine->chat();
  const std::string source = chat == nullptr ? "" : chat->Source(/*with_tools=*/false);
  if (!source.empty()) config["chat_template"] = source;
  return config;
}

}  // namespace

void TokenizeText(const HttpRequest& http, const RouteContext& context,
                  std::shared_ptr<HttpResponder> responder) {
  openai::TokenizeRequest wanted;
  if (const auto error = openai::ParseTokenize(http.body, &wanted)) {
    return SendError(*responder, *error);
  }
  v1::TokenizeRequest tokenize;
  tokenize.set_model(wanted.model);
  if (wanted.generate.has_chat()) {
    *tokenize.mutable_chat() = std::move(*wanted.generate.mutable_chat());
  } else {
    tokenize.set_text(std::move(*wanted.generate.mutable_text()));
  }
  tokenize.set_no_special_tokens(wanted.generate.no_special_tokens());
  tokenize.set_return_token_strings(wanted.token_strings);
  const absl::StatusOr<v1::TokenizeReply> reply =
      Tokenize(tokenize, context.caller, *context.models);
  if (!reply.ok()) return SendError(*responder, reply.status());
  const std::vector<std::string> strings(reply->token_strings().begin(),
                                         reply->token_strings().end());
  responder->Send(
      200, kJsonType,
      openai::TokensJson({reply->tokens().begin(), reply->tokens().end()},
                         wanted.token_strings ? &strings : nullptr, reply->max_model_len()));
}

void DetokenizeTokens(const HttpRequest& http, const RouteContext& context,
                      std::shared_ptr<HttpResponder> responder) {
  openai::TokenizeRequest wanted;
  if (const auto error = openai::ParseDetokenize(http.body, &wanted)) {
    return SendError(*responder, *error);
  }
  v1::DetokenizeRequest detokenize;
  detokenize.set_model(wanted.model);
  detokenize.mutable_tokens()->Assign(wanted.tokens.begin(), wanted.tokens.end());
  const absl::StatusOr<v1::DetokenizeReply> reply =
      Detokenize(detokenize, context.caller, *context.models);
  if (!reply.ok()) return SendError(*responder, reply.status());
  responder->Send(200, kJsonType, openai::PromptJson(reply->text()));
}

void DescribeTokenizer(const HttpRequest& http, const RouteContext& context,
                       std::shared_ptr<HttpResponder> responder) {
  std::string name;
  for (const absl::string_view part : absl::StrSplit(http.query, '&', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> field = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (field.first != "model") {
      return SendError(*responder, openai::Error{.message = absl::StrCat(
                                                     "parameter '", field.first.substr(0, 100),
                                                     "' is not known here",
                                                     openai::DidYouMean(field.first, {"model"})),
                                                 .param = field.first.substr(0, 100)});
    }
    name = DecodeSegment(field.second);
  }
  const absl::StatusOr<ModelServer::Target> target =
      context.models->ResolveOrOnly(name, context.caller);
  if (!target.ok()) return SendError(*responder, target.status());
  responder->Send(200, kJsonType, openai::Dump(TokenizerConfigOf(*target->model)));
}

}  // namespace espalier
