#include "server/http/embeddings_route.h"

#include <utility>

#include "server/http/openai_embeddings.h"
#include "server/http/openai_request.h"
#include "server/inference/embedding.h"

namespace espalier {

void Embed(const HttpRequest& http, const GenerateContext& context,
           std::shared_ptr<HttpResponder> responder) {
  openai::EmbeddingsRequest request;
  if (const auto error = openai::ParseEmbeddings(http.body, &request)) {
    SendError(*responder, *error);
    return;
  }
  if (const auto error = openai::ReadRequestIdHeader(http.headers, &request.id)) {
    SendError(*responder, *error);
    return;
  }
  absl::StatusOr<ModelServer::Target> target = context.models->Resolve(request.embed.model());
  if (!target.ok()) return SendError(*responder, target.status());
  absl::StatusOr<std::shared_ptr<Generation>> embedding = StartEmbedding(
      request.embed, *std::move(target), /*timeout_seconds=*/0, context.metrics,
      [responder, request](const absl::StatusOr<proto::EmbedReply>& reply) {
        if (!reply.ok()) return SendError(*responder, reply.status());
        responder->Send(200, "application/json", openai::EmbeddingsJson(request, *reply));
      });
  if (!embedding.ok()) return SendError(*responder, embedding.status());
  responder->OnClose([weak = std::weak_ptr<Generation>(*embedding)] {
    if (const auto embedding = weak.lock()) embedding->Cancel();
  });
}

}  // namespace espalier
