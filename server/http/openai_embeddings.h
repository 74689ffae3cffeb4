// Parses requests and writes answers of POST /v1/embeddings. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/openai_error.h"

namespace espalier::openai {

inline constexpr int kMaxEmbedInputs = 2048;

struct EmbeddingsRequest {
  v1::EmbedRequest embed;
  bool base64 = false;  // otherwise lists of numbers
  std::string id;       // client's request ID; empty: none
};

// Checks fields as Parse (openai_request.h) does. Supports vLLM's truncate_prompt_tokens,
// add_special_tokens, normalize and request_id.
std::optional<Error> ParseEmbeddings(const std::string& body, EmbeddingsRequest* request);

// base64 encodes a vector as little-endian f32.
std::string EmbeddingsJson(const EmbeddingsRequest& request, const v1::EmbedReply& reply);

}  // namespace espalier::openai
