#include "server/http/ollama/embed_route.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "server/http/answer_embedding.h"
#include "server/http/json_reader.h"
#include "server/http/ollama/generate_route.h"
#include "server/http/ollama/ollama_request.h"
#include "server/http/ollama/served_name.h"
#include "server/http/send_error.h"

namespace espalier::ollama {
namespace {

using json = nlohmann::ordered_json;

json ValuesOf(const v1::Embedding& embedding) {
  json values = json::array();
  for (const float value : embedding.values()) values.push_back(value);
  return values;
}

// `old`: of /api/embeddings.
std::string EmbeddingsAnswer(bool old, const std::string& model, const v1::EmbedReply& reply,
                             absl::Duration took) {
  if (old) {
    return openai::Dump(
        {{"embedding",
          reply.embeddings().empty() ? json::array() : ValuesOf(reply.embeddings(0))}});
  }
  json all = json::array();
  for (const v1::Embedding& embedding : reply.embeddings()) all.push_back(ValuesOf(embedding));
  return openai::Dump({{"model", model},
                       {"embeddings", std::move(all)},
                       {"total_duration", absl::ToInt64Nanoseconds(took)},
                       {"load_duration", 0},
                       {"prompt_eval_count", reply.usage().prompt_tokens()}});
}

void AnswerEmbed(bool old, const HttpRequest& http, const RouteContext& context,
                 std::shared_ptr<HttpResponder> responder) {
  EmbedRequest request;
  const auto error = old ? ParseEmbeddings(http.body, &request) : ParseEmbed(http.body, &request);
  if (error) return SendError(*responder, *error, {}, &MessageAlone);
  v1::EmbedRequest& embed = request.embed;
  const std::string asked = embed.model();
  embed.set_model(ServedName(context, asked));
  absl::StatusOr<ModelServer::Target> target =
      context.models->Resolve(embed.model(), context.caller);
  if (!target.ok()) return SendError(*responder, target.status(), &MessageAlone);
  const int length = target->model->engine->context();
  if (absl::Status status = CheckContext(request.load, length); !status.ok()) {
    return SendError(*responder, status, &MessageAlone);
  }
  if (embed.truncate()) embed.set_truncate_prompt_tokens(request.load.num_ctx.value_or(0));
  if (embed.inputs().empty()) {
    const std::string none = EmbeddingsAnswer(old, asked, {}, absl::ZeroDuration());
    return responder->Send(200, "application/json", none);
  }
  AnswerEmbedding(
      embed, *std::move(target), context, std::move(responder),
      [old, asked, clock = context.clock, start = context.clock->Now()](const v1::EmbedReply& all) {
        return EmbeddingsAnswer(old, asked, all, clock->Now() - start);
      },
      &MessageAlone);
}

}  // namespace

void Embed(const HttpRequest& http, const RouteContext& context,
           std::shared_ptr<HttpResponder> responder) {
  AnswerEmbed(/*old=*/false, http, context, std::move(responder));
}

void Embeddings(const HttpRequest& http, const RouteContext& context,
                std::shared_ptr<HttpResponder> responder) {
  AnswerEmbed(/*old=*/true, http, context, std::move(responder));
}

}  // namespace espalier::ollama
