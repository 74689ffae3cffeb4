// Handles POST /rerank, in the form that Jina, Cohere, vLLM and llama-server share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/v1/inference.pb.h"
#include "server/http/http_server.h"
#include "server/http/openai_error.h"
#include "server/http/route_context.h"

namespace espalier {

struct RerankRequest {
  v1::EmbedRequest embed;  // the query, then the documents
  std::vector<std::string> documents;
  int most = 0;  // results to return; 0: all
  bool return_documents = true;
};

// Checks every field, as openai::Parse does.
std::optional<openai::Error> ParseRerank(const std::string& body, RerankRequest* request);

// Returns the answer: documents by falling cosine similarity of their embedding and the query's,
// equal ones in their order. REQUIRES: normalized embeddings of all inputs.
std::string RerankJson(const RerankRequest& request, const std::string& id,
                       const v1::EmbedReply& reply);

// Scores documents by the cosine similarity of embeddings, as vLLM does for bi-encoders. Refuses
// models that were not trained for it. Returns at once; the engine's thread sends the answer.
void Rerank(const HttpRequest& http, const RouteContext& context,
            std::shared_ptr<HttpResponder> responder);

}  // namespace espalier
