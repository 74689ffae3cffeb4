// POST /v2/models/NAME/infer of the Open Inference Protocol.
#pragma once

#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "server/http/route_context.h"

namespace espalier {

// Answers a request for version `version` of a served graph; empty: the one that is served.
void Infer(const HttpRequest& request, const std::string& model, const std::string& version,
           const RouteContext& context, std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
