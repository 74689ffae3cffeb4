// Request bodies of the OpenAI API, with vLLM's extensions, as GenerateRequests. Pure functions.
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
  // All but the prompt of a completion.
  v1::GenerateRequest generate;
  // Completions: answered one by one; each has `text` or `tokens` set and nothing else.
  std::vector<v1::GenerateRequest> prompts;
  bool stream = false;
  bool include_usage = false;
  bool include_reasoning = true;      // chats: the answer's thoughts are part of what is sent
  bool usage_in_every_chunk = false;  // what was used so far, with each part of a stream
  std::string echo;                   // chats: what the answers' texts begin with
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // log-probabilities name tokens by their ids
  std::string id;              // that the client gives it; empty: none
  std::string service_tier;    // to be named in the answer; empty: nobody asked
};

inline constexpr int kMaxPrompts = 256;

// Every field is checked; one that is known to the API and not supported here is refused by name,
// unless it has the value that means "off". Unknown fields are refused too: a misspelt option must
// not be lost.
std::optional<Error> Parse(Kind kind, const std::string& body, Request* request);

// The id in the header X-Request-Id comes before that in the body, if it is of the form that this
// one must have. Proxies put others there, for which their clients can do nothing: they are
// overlooked.
void ReadRequestIdHeader(const std::map<std::string, std::string>& headers, std::string* id);

// /tokenize and /detokenize.
struct TokenizeRequest {
  std::string model;                // empty: the only one
  v1::GenerateRequest generate;  // text or chat
  std::vector<int> tokens;          // of /detokenize
  bool token_strings = false;       // also what each token stands for
};
std::optional<Error> ParseTokenize(const std::string& body, TokenizeRequest* request);
std::optional<Error> ParseDetokenize(const std::string& body, TokenizeRequest* request);

}  // namespace espalier::openai
