#include "server/http/gateway/embeddings_route.h"

#include <utility>

#include "server/http/openai_embeddings.h"
#include "server/http/openai_request.h"
#include "server/http/request_id.h"
#include "server/http/send_error.h"
#include "server/inference/requests/embedding.h"

namespace espalier {

namespace {

// Copies the fields that shape the answer, without the inputs, which may be large.
openai::EmbeddingsRequest FormOf(const openai::EmbeddingsRequest& request) {
  openai::EmbeddingsRequest form;
  form.embed.set_model(request.embed.model());
  form.base64 = request.base64;
  form.id = request.id;
  return form;
}

}  // namespace

void Embed(const HttpRequest& http, const RouteContext& context,
           std::shared_ptr<HttpResponder> responder) {
  openai::EmbeddingsRequest request;
  if (const auto error = openai::ParseEmbeddings(http.body, &request)) {
    SendError(*responder, *error);
    return;
  }
  openai::ReadRequestIdHeader(http.headers, &request.id);
  if (!request.id.empty()) responder = WithRequestId(std::move(responder), request.id);
  absl::StatusOr<ModelServer::Target> target =
      context.models->Resolve(request.embed.model(), context.caller);
  if (!target.ok()) return SendError(*responder, target.status());
  request.embed.set_cache_salt(
      context.models->PrefixSalt(context.authorization, request.embed.cache_salt()));
  absl::StatusOr<std::shared_ptr<Generation>> embedding = StartEmbedding(
      request.embed, *std::move(target), context.metrics,
      [responder, form = FormOf(request),
       large = context.serialization_thread](const absl::StatusOr<v1::EmbedReply>& reply) {
        if (!reply.ok()) return SendError(*responder, reply.status());
        const auto send = [responder, form](const v1::EmbedReply& all) {
          responder->Send(200, "application/json", openai::EmbeddingsJson(form, all));
        };
        if (large == nullptr) return send(*reply);
        large->Run([send, all = *reply] { send(all); });
      });
  if (!embedding.ok()) return SendError(*responder, embedding.status());
  responder->OnClose([weak = std::weak_ptr<Generation>(*embedding)] {
    if (const auto embedding = weak.lock()) embedding->Cancel();
  });
}

}  // namespace espalier
