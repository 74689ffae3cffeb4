#include "server/http/gateway/embeddings_route.h"

#include <utility>

#include "server/http/answer_embedding.h"
#include "server/http/openai_embeddings.h"
#include "server/http/openai_request.h"
#include "server/http/request_id.h"
#include "server/http/send_error.h"

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
  AnswerEmbedding(request.embed, *std::move(target), context, std::move(responder),
                  [form = FormOf(request)](const v1::EmbedReply& all) {
                    return openai::EmbeddingsJson(form, all);
                  });
}

}  // namespace espalier
