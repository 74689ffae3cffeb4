// Handles vLLM's routes about tokens.
#pragma once

#include <memory>

#include "server/http/http_server.h"
#include "server/http/route_context.h"

namespace espalier {

// POST /tokenize.
void TokenizeText(const HttpRequest& http, const RouteContext& context,
                  std::shared_ptr<HttpResponder> responder);
// POST /detokenize.
void DetokenizeTokens(const HttpRequest& http, const RouteContext& context,
                      std::shared_ptr<HttpResponder> responder);
// GET /tokenizer_info: tokenizer_config.json with the chat template that is served. The parameter
// "model" is needed if several models are served.
void DescribeTokenizer(const HttpRequest& http, const RouteContext& context,
                       std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
