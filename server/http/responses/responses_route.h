// The routes beneath /v1/responses.
#pragma once

#include <memory>
#include <string>

#include "server/http/completions_route.h"
#include "server/http/http_server.h"
#include "server/http/responses/response_store.h"

namespace espalier {

struct ResponsesContext {
  RouteContext generate;
  std::shared_ptr<ResponseStore> store;
};

// POST /v1/responses. Returns at once; the answer comes from the engine's thread. A client that
// goes away ends it, unless it runs in the background.
void CreateResponse(const HttpRequest& http, const ResponsesContext& context,
                    std::shared_ptr<HttpResponder> responder);

// POST /v1/responses/input_tokens: how many tokens such a request would have.
void CountResponseInput(const HttpRequest& http, const ResponsesContext& context,
                        std::shared_ptr<HttpResponder> responder);

// Of the response that the path names: GET, DELETE, POST .../cancel, GET .../input_items.
void GetResponse(const HttpRequest& http, const std::string& id, ResponseStore& store,
                 std::shared_ptr<HttpResponder> responder);
void DeleteResponse(const HttpRequest& http, const std::string& id, ResponseStore& store,
                    std::shared_ptr<HttpResponder> responder);
void CancelResponse(const HttpRequest& http, const std::string& id, ResponseStore& store,
                    std::shared_ptr<HttpResponder> responder);
void ListResponseInput(const HttpRequest& http, const std::string& id, ResponseStore& store,
                       std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
