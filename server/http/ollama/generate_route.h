// Handles POST /api/generate and /api/chat of Ollama's API.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "server/http/http_server.h"
#include "server/http/ollama/ollama_options.h"
#include "server/http/route_context.h"

namespace espalier::ollama {

// Return at once; the engine's thread sends the answer. A disconnect of the client cancels it.
void Generate(const HttpRequest& http, const RouteContext& context,
              std::shared_ptr<HttpResponder> responder);
void Chat(const HttpRequest& http, const RouteContext& context,
          std::shared_ptr<HttpResponder> responder);

// Returns InvalidArgument if a request asks for a longer context than the model is served with.
absl::Status CheckContext(const LoadOptions& load, int context);

}  // namespace espalier::ollama
