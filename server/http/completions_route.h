// Handles POST /v1/completions and /v1/chat/completions.
#pragma once

#include <memory>

#include "server/http/http_server.h"
#include "server/http/openai_request.h"
#include "server/http/route_context.h"

namespace espalier {

// Returns at once; the engine's thread sends the answer. A disconnect of the client cancels it.
void Generate(openai::Kind kind, const HttpRequest& http, const RouteContext& context,
              std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
