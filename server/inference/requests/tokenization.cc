#include "server/inference/requests/tokenization.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/inference/field_error.h"
#include "server/inference/requests/generation.h"

namespace espalier {
namespace {

constexpr int kMaxTokenStrings = 1 << 20;  // in one reply: each takes some hundred bytes

}  // namespace

absl::StatusOr<v1::TokenizeReply> Tokenize(const v1::TokenizeRequest& request, const Caller& caller,
                                           const ModelServer& models) {
  if (request.text().size() > kMaxTokenizeBytes) {
    return FieldError("prompt", absl::StrCat("field 'text' has ", request.text().size(),
                                             " bytes, expected at most ", kMaxTokenizeBytes));
  }
  const absl::StatusOr<ModelServer::Target> target = models.ResolveOrOnly(request.model(), caller);
  if (!target.ok()) return target.status();
  v1::GenerateRequest generate;
  generate.set_no_special_tokens(request.no_special_tokens());
  if (request.has_chat()) {
    *generate.mutable_chat() = request.chat();
  } else {
    generate.set_text(request.text());
  }
  const absl::StatusOr<Prompt> prompt = PromptOf(generate, *target->model);
  if (!prompt.ok()) return prompt.status();
  v1::TokenizeReply reply;
  reply.mutable_tokens()->Assign(prompt->tokens.begin(), prompt->tokens.end());
  reply.set_count(static_cast<int>(prompt->tokens.size()));
  reply.set_max_model_len(target->model->engine->context());
  if (request.return_token_strings()) {
    if (reply.count() > kMaxTokenStrings) {
      return FieldError(
          "return_token_strs",
          absl::StrCat("the text has ", reply.count(), " tokens, and at most ", kMaxTokenStrings,
                       " come with their texts; leave return_token_strs out"));
    }
    const Tokenizer& tokenizer = target->model->engine->tokenizer();
    for (const int token : prompt->tokens) reply.add_token_strings(tokenizer.TokenBytes(token));
  }
  return reply;
}

absl::StatusOr<v1::DetokenizeReply> Detokenize(const v1::DetokenizeRequest& request,
                                               const Caller& caller, const ModelServer& models) {
  if (request.tokens_size() > kMaxDetokenizeTokens) {
    return FieldError("tokens", absl::StrCat("field 'tokens' has ", request.tokens_size(),
                                             " entries, expected at most ", kMaxDetokenizeTokens));
  }
  const absl::StatusOr<ModelServer::Target> target = models.ResolveOrOnly(request.model(), caller);
  if (!target.ok()) return target.status();
  const Tokenizer& tokenizer = target->model->engine->tokenizer();
  for (const int token : request.tokens()) {
    if (token >= 0 && token < tokenizer.vocabulary()) continue;
    return FieldError("tokens", absl::StrCat("token ", token, " is outside the vocabulary of ",
                                             tokenizer.vocabulary()));
  }
  v1::DetokenizeReply reply;
  reply.set_text(tokenizer.Decode({request.tokens().begin(), request.tokens().end()}));
  return reply;
}

}  // namespace espalier
