// Handles Ollama's routes about models and the server.
#pragma once

#include <memory>

#include "server/http/http_server.h"
#include "server/http/route_context.h"

namespace espalier::ollama {

// GET /api/tags: served models and adapters.
void ListTags(const HttpRequest& http, const RouteContext& context,
              std::shared_ptr<HttpResponder> responder);
// GET /api/ps: those that answer requests.
void ListRunning(const HttpRequest& http, const RouteContext& context,
                 std::shared_ptr<HttpResponder> responder);
// POST /api/show.
void Show(const HttpRequest& http, const RouteContext& context,
          std::shared_ptr<HttpResponder> responder);
// GET /api/version: the version of Ollama's API that these routes follow, by which clients decide
// what they may use.
void ApiVersion(const HttpRequest& http, const RouteContext& context,
                std::shared_ptr<HttpResponder> responder);
// GET /: the text by which clients find a server.
void Running(const HttpRequest& http, const RouteContext& context,
             std::shared_ptr<HttpResponder> responder);
// The routes that pull, push, create, copy and delete models: 501 with what to do instead.
void RefuseManagement(const HttpRequest& http, const RouteContext& context,
                      std::shared_ptr<HttpResponder> responder);

}  // namespace espalier::ollama
