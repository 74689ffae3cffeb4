// Handles POST /api/embed and /api/embeddings of Ollama's API.
#pragma once

#include <memory>

#include "server/http/http_server.h"
#include "server/http/route_context.h"

namespace espalier::ollama {

// Return at once; the engine's thread sends the answer. A disconnect of the client cancels it.
void Embed(const HttpRequest& http, const RouteContext& context,
           std::shared_ptr<HttpResponder> responder);
// The older form: the embedding of one prompt, as the model gives it.
void Embeddings(const HttpRequest& http, const RouteContext& context,
                std::shared_ptr<HttpResponder> responder);

}  // namespace espalier::ollama
