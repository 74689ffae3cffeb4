// The routes beneath /v1/messages.
#pragma once

#include <memory>

#include "server/http/completions_route.h"
#include "server/http/http_server.h"

namespace espalier {

// POST /v1/messages. Returns at once; the answer comes from the engine's thread. A client that goes
// away ends it.
void CreateMessage(const HttpRequest& http, const RouteContext& context,
                   std::shared_ptr<HttpResponder> responder);

// POST /v1/messages/count_tokens: how many tokens such a request would have.
void CountMessageTokens(const HttpRequest& http, const RouteContext& context,
                        std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
