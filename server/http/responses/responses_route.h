// Handles the routes under /v1/responses.
#pragma once

#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "server/http/responses/response_store.h"
#include "server/http/route_context.h"

namespace espalier {

struct ResponsesContext {
  RouteContext generate;
  std::shared_ptr<ResponseStore> store;
};

// POST /v1/responses. Returns at once; the engine's thread sends the answer. A disconnect of the
// client cancels it, unless it runs in the background.
void CreateResponse(const HttpRequest& http, const ResponsesContext& context,
                    std::shared_ptr<HttpResponder> responder);

// POST /v1/responses/input_tokens: counts the prompt tokens of such a request.
void CountResponseInputTokens(const HttpRequest& http, const ResponsesContext& context,
                              std::shared_ptr<HttpResponder> responder);

// On one response: GET, DELETE, POST .../cancel, GET .../input_items.
void GetResponse(const HttpRequest& http, const std::string& id, const ResponsesContext& context,
                 std::shared_ptr<HttpResponder> responder);
void DeleteResponse(const std::string& id, const ResponsesContext& context,
                    std::shared_ptr<HttpResponder> responder);
void CancelResponse(const std::string& id, const ResponsesContext& context,
                    std::shared_ptr<HttpResponder> responder);
void ListResponseInputItems(const HttpRequest& http, const std::string& id,
                            const ResponsesContext& context,
                            std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
