// Handles the routes under /v1/messages.
#pragma once

#include <memory>

#include "server/http/http_server.h"
#include "server/http/route_context.h"

namespace espalier {

// POST /v1/messages. Returns at once; the engine's thread sends the answer. A disconnect of the
// client cancels it.
void CreateMessage(const HttpRequest& http, const RouteContext& context,
                   std::shared_ptr<HttpResponder> responder);

// POST /v1/messages/count_tokens: counts the prompt tokens of such a request.
void CountMessageTokens(const HttpRequest& http, const RouteContext& context,
                        std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
