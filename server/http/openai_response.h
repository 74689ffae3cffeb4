// Answers of the OpenAI API: whole ones and stream chunks. Pure functions.
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
  std::string service_tier = {};  // empty: not named
};

// One of the choices, or what is new of it.
struct ChoicePart {
  int index = 0;
  std::string reasoning;
  std::string text;
  std::vector<v1::ToolCall> tool_calls;     // in a stream, parts of such
  std::vector<v1::TokenLogprobs> logprobs;  // of the echoed prompt, then of the answer
  bool with_logprobs = false;
  std::vector<v1::TokenLogprobs> prompt_logprobs;  // vLLM's field of its own
  bool with_prompt_logprobs = false;
  // vLLM's, too: with return_token_ids. The prompt's come once, with the first part.
  std::vector<int> prompt_tokens, tokens;
  bool with_tokens = false;
  bool tokens_as_ids = false;  // logprobs have "token_id:7" in the place of the token's text
  int text_offset = 0;  // characters of the choice before this part, for completions' logprobs
  std::string finish_reason;  // empty: null
  // What ended it, if it was a stop string or token.
  std::string stop_string;
  int stop_token = -1;
};

std::string WholeAnswer(const Head& head, const std::vector<ChoicePart>& choices,
                        const v1::Usage& usage);

// Server-sent events, "data: {...}\n\n". Text is made valid UTF-8. `so_far`: what was used until
// then, if every chunk is to say so.
std::string RoleChunk(const Head& head, int index,  // a chat's first chunk of a choice
                      const v1::Usage* so_far = nullptr);
std::string Chunk(const Head& head, const ChoicePart& part, const v1::Usage* so_far = nullptr);
std::string UsageChunk(const Head& head, const v1::Usage& usage);
std::string ErrorChunk(const Error& error);
extern const char kDone[];  // "data: [DONE]\n\n"

// A token's log-probability as chats have it, its alternatives included. `as_ids`: see ChoicePart.
nlohmann::ordered_json LogprobJson(const v1::TokenLogprobs& token, bool as_ids = false);

// What drafts did for an answer; no field of OpenAI's.
nlohmann::ordered_json SpeculationJson(const v1::Usage& usage);

// How many characters of the text the log-probabilities' tokens are, as text_offset counts.
int CharactersOf(const ChoicePart& part);

struct ModelEntry {
  std::string name;
  int64_t created_unix_seconds = 0;
  int max_model_len = 0;
  std::string parent;  // of an adapter: the model that it changes
};
std::string ModelJson(const ModelEntry& model);
std::string ModelList(const std::vector<ModelEntry>& models);

std::string TokensJson(const std::vector<int>& tokens, const std::vector<std::string>* strings,
                       int max_model_len);
std::string PromptJson(const std::string& prompt);

}  // namespace espalier::openai
