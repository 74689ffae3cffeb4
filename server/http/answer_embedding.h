// Answers a request whose answer is made of embeddings, for the routes of all APIs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/http_server.h"
#include "server/http/route_context.h"
#include "server/http/send_error.h"
#include "server/inference/models/model_server.h"

namespace espalier {

// Embeds the inputs with the model that `target` names, and answers 200 with the JSON that `body`
// makes of the reply: on the serialization thread if there is one, otherwise on the engine's.
// Returns at once. A disconnect of the client cancels the request.
void AnswerEmbedding(v1::EmbedRequest request, ModelServer::Target target,
                     const RouteContext& context, std::shared_ptr<HttpResponder> responder,
                     std::function<std::string(const v1::EmbedReply&)> body,
                     ErrorFormatter errors = &openai::ToJson);

}  // namespace espalier
