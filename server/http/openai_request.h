// Parses OpenAI API requests, with vLLM's extensions, into GenerateRequests. Pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "espalier/v1/inference.pb.h"
#include "server/http/openai_error.h"

namespace espalier::openai {

enum class Kind { kCompletion, kChat };

struct Request {
  // All but a completion's prompts.
  v1::GenerateRequest generate;
  // Completions: prompts, each with only `text` or `tokens` set.
  std::vector<v1::GenerateRequest> prompts;
  bool stream = false;
  bool include_usage = false;
  bool include_reasoning = true;      // chats: send the reasoning
  bool usage_in_every_chunk = false;  // continuous_usage_stats
  std::string echo;                   // chats: text that precedes each answer
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // logprobs name tokens as "token_id:N"
  std::string id;              // client's request ID; empty: none
  std::string service_tier;    // to report back; empty: not requested
};

inline constexpr int kMaxPrompts = 256;

// Checks every field. Rejects by name a field of the API that is not supported, unless its value
// means "off", and every unknown field, so that a misspelled option is not lost.
std::optional<Error> Parse(Kind kind, const std::string& body, Request* request);

// Takes the ID from the X-Request-Id header, which overrides the body's, if it is well-formed.
// Ignores a malformed one: a proxy may have set it, which the client cannot change.
void ReadRequestIdHeader(const std::map<std::string, std::string>& headers, std::string* id);

// Requests of /tokenize and /detokenize.
struct TokenizeRequest {
  std::string model;             // empty: the only model
  v1::GenerateRequest generate;  // text or chat
  std::vector<int> tokens;       // for /detokenize
  bool token_strings = false;    // also return each token's string
};
std::optional<Error> ParseTokenize(const std::string& body, TokenizeRequest* request);
std::optional<Error> ParseDetokenize(const std::string& body, TokenizeRequest* request);

}  // namespace espalier::openai
