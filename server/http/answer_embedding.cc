#include "server/http/answer_embedding.h"

#include <utility>

#include "server/inference/requests/embedding.h"

namespace espalier {

void AnswerEmbedding(v1::EmbedRequest request, ModelServer::Target target,
                     const RouteContext& context, std::shared_ptr<HttpResponder> responder,
                     std::function<std::string(const v1::EmbedReply&)> body,
                     ErrorFormatter errors) {
  request.set_cache_salt(context.models->PrefixSalt(context.authorization, request.cache_salt()));
  absl::StatusOr<std::shared_ptr<Generation>> embedding = StartEmbedding(
      std::move(request), std::move(target), context.metrics,
      [responder, errors, body = std::move(body),
       thread = context.serialization_thread](const absl::StatusOr<v1::EmbedReply>& reply) {
        if (!reply.ok()) return SendError(*responder, reply.status(), errors);
        const auto send = [responder, body](const v1::EmbedReply& all) {
          responder->Send(200, "application/json", body(all));
        };
        if (thread == nullptr) return send(*reply);
        thread->Run([send, all = *reply] { send(all); });
      });
  if (!embedding.ok()) return SendError(*responder, embedding.status(), errors);
  responder->OnClose([weak = std::weak_ptr<Generation>(*embedding)] {
    if (const auto embedding = weak.lock()) embedding->Cancel();
  });
}

}  // namespace espalier
