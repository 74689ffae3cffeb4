// The OpenAI wire format: request bodies in, answers and stream chunks out. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace espalier::openai {

// What clients of the OpenAI API expect to find under "error".
struct Error {
  int http_status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // empty: null
  std::string code;   // empty: null
};

struct Message {
  std::string role;
  std::string content;
};

struct Request {
  std::string model;
  // Completions: text or token ids. Chat: messages.
  std::string prompt;
  std::optional<std::vector<int>> prompt_tokens;
  std::vector<Message> messages;
  int max_tokens = 0;  // 0: not given
  std::vector<std::string> stop;
  double temperature = 1;
  double top_p = 1;
  int top_k = 0;
  std::optional<uint64_t> seed;
  bool stream = false;
  bool include_usage = false;
  bool ignore_eos = false;
  std::optional<bool> speculation;  // extension: use draft trees or not
};

enum class Kind { kCompletion, kChat };

// Every field is checked; one that is known to the API and not supported here is refused by name,
// unless it has the value that means "off". Unknown fields are refused too: a misspelt option must
// not be lost.
std::optional<Error> Parse(Kind kind, const std::string& body, Request* request);

std::string ToJson(const Error& error);
// HTTP status and error object for a status of ours.
Error FromStatus(const absl::Status& status);

struct UsageCounts {
  int prompt_tokens = 0;
  int completion_tokens = 0;
  int drafted_tokens = 0;
  int accepted_tokens = 0;
  int verification_steps = 0;
};

// Identity of one answer, the same in all its chunks.
struct Head {
  Kind kind;
  std::string id;
  int64_t created_unix_seconds;
  std::string model;
};

// finish_reason empty: null. Text is made valid UTF-8.
std::string WholeAnswer(const Head& head, const std::string& text, const std::string& finish_reason,
                        const UsageCounts& usage);
// Server-sent events, "data: {...}\n\n".
std::string FirstChunk(const Head& head);  // chat: carries the role; completions: empty string
std::string Chunk(const Head& head, const std::string& text, const std::string& finish_reason);
std::string UsageChunk(const Head& head, const UsageCounts& usage);
std::string ErrorChunk(const Error& error);
extern const char kDone[];  // "data: [DONE]\n\n"

struct ModelEntry {
  std::string name;
  int64_t created_unix_seconds;
};
std::string ModelList(const std::vector<ModelEntry>& models);

}  // namespace espalier::openai
