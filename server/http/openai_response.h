// Writes OpenAI API answers: whole ones as JSON and stream chunks as text. Pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "espalier/v1/inference.pb.h"
#include "server/http/openai_error.h"
#include "server/http/openai_request.h"

namespace espalier::openai {

// Identity of one answer, the same in all its chunks.
struct Head {
  Kind kind;
  std::string id;
  int64_t created_unix_seconds;
  std::string model;
  bool usage_in_chunks = false;   // "usage": null in all chunks but the last
  std::string service_tier = {};  // empty: omitted
};

// One choice, or a delta of it.
struct ChoicePart {
  int index = 0;
  std::string reasoning;
  std::string text;
  std::vector<v1::ToolCall> tool_calls;     // in a stream, deltas
  std::vector<v1::TokenLogprobs> logprobs;  // of the echoed prompt, then of the answer
  bool with_logprobs = false;
  std::vector<v1::TokenLogprobs> prompt_logprobs;  // vLLM's prompt_logprobs
  bool with_prompt_logprobs = false;
  // vLLM's return_token_ids. The prompt's tokens come once, with the first part.
  std::vector<int> prompt_tokens, tokens;
  bool with_tokens = false;
  bool tokens_as_ids = false;  // logprobs show "token_id:7" in place of text
  int text_offset = 0;         // characters of the choice before this part (completions' logprobs)
  std::string finish_reason;   // empty: null
  // The stop string or token that ended it, if any.
  std::string stop_string;
  int stop_token = -1;
};

nlohmann::ordered_json WholeAnswer(const Head& head, const std::vector<ChoicePart>& choices,
                                   const v1::Usage& usage);

// Server-sent events, "data: {...}\n\n", in valid UTF-8. `so_far`: usage up to this chunk, if every
// chunk reports it.
std::string RoleChunk(const Head& head, int index,  // a chat's first chunk of a choice
                      const v1::Usage* so_far = nullptr);
std::string Chunk(const Head& head, const ChoicePart& part, const v1::Usage* so_far = nullptr);
std::string UsageChunk(const Head& head, const v1::Usage& usage);
std::string ErrorChunk(const Error& error);
extern const char kDone[];  // "data: [DONE]\n\n"

// A token's logprob in the chat format, with its alternatives. `as_ids`: see ChoicePart.
nlohmann::ordered_json LogprobJson(const v1::TokenLogprobs& token, bool as_ids = false);

// Statistics of speculative decoding; our extension.
nlohmann::ordered_json SpeculationJson(const v1::Usage& usage);

// Number of characters that the logprobs' tokens span, as text_offset counts them.
int CharactersOf(const ChoicePart& part);

struct ModelEntry {
  std::string name;
  int64_t created_unix_seconds = 0;
  int max_model_len = 0;
  std::string parent;  // for an adapter: its base model
};
std::string ModelJson(const ModelEntry& model);
std::string ModelList(const std::vector<ModelEntry>& models);

std::string TokensJson(const std::vector<int>& tokens, const std::vector<std::string>* strings,
                       int max_model_len);
std::string PromptJson(const std::string& prompt);

}  // namespace espalier::openai
