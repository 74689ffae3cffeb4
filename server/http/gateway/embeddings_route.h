// Handles POST /v1/embeddings.
#pragma once

#include <memory>

#include "server/http/http_server.h"
#include "server/http/route_context.h"

namespace espalier {

// Returns at once; the engine's thread sends the answer. A disconnect of the client cancels it.
void Embed(const HttpRequest& http, const RouteContext& context,
           std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
