// POST /v1/embeddings: from the body to the answer.
#pragma once

#include <memory>

#include "server/http/completions_route.h"

namespace espalier {

// Returns at once; the answer comes from the engine's thread. A client that goes away ends it.
void Embed(const HttpRequest& http, const RouteContext& context,
           std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
