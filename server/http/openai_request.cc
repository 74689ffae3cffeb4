#include "server/http/openai_request.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "server/http/json_reader.h"
#include "server/http/openai_chat.h"
#include "server/http/openai_sampling.h"
#include "server/http/openai_structured_output.h"
#include "server/http/text_or_tokens_reader.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

void ReadCompletion(JsonReader& reader, Request* request) {
  v1::GenerateRequest& generate = request->generate;
  ReadTextsOrTokens(reader, "prompt", kMaxPrompts,
                    [&] { return &request->prompts.emplace_back(); });
  bool echo = false;
  reader.Bool("echo", &echo);
  generate.set_echo(echo);
  int value = 0;
  // max_tokens 0 is only useful with echo.
  reader.Integer("max_tokens", echo ? 0 : 1, kMaxTokensLimit, &value);
  generate.set_max_tokens(value);
  generate.set_prompt_only(echo && reader.Find("max_tokens") != nullptr && value == 0);
  if (reader.Find("logprobs") != nullptr) {
    value = 0;
    reader.Integer("logprobs", 0, 64, &value);
    generate.set_logprobs(value);
  }
  value = 0;
  reader.Integer("best_of", 1, 128, &value);
  if (value > 0 && value < generate.n()) {
    reader.Fail("best_of", "field 'best_of' must be at least 'n'");
  }
  if (value > generate.n() && request->stream) {
    reader.Fail("best_of", "field 'best_of': answers that compete cannot be streamed");
  }
  generate.set_best_of(value);
  reader.Unsupported("suffix", IsOff);
  if (static_cast<int64_t>(request->prompts.size()) * std::max(generate.n(), value) > 1024) {
    reader.Fail("n", "prompts times n must be at most 1024");
  }
}

// Reads whether the assistant starts a turn, continues its last one, or neither.
void ReadTurn(JsonReader& reader, v1::ChatPrompt* chat) {
  bool go_on = false;
  reader.Bool("continue_final_message", &go_on);
  bool begin = !go_on;
  reader.Bool("add_generation_prompt", &begin);
  if (begin && go_on) {
    reader.Fail("add_generation_prompt",
                "field 'add_generation_prompt' excludes 'continue_final_message'");
  }
  chat->set_continue_final_message(go_on);
  chat->set_no_generation_prompt(!begin && !go_on);
}

void ReadChat(JsonReader& reader, Request* request) {
  v1::GenerateRequest& generate = request->generate;
  ReadMessages(reader, generate.mutable_chat());
  ReadTools(reader, generate.mutable_chat());
  ReadReasoning(reader, request);
  int value = 0;
  reader.Integer("max_tokens", 1, kMaxTokensLimit, &value);
  reader.Integer("max_completion_tokens", 1, kMaxTokensLimit, &value);
  generate.set_max_tokens(value);
  bool logprobs = false;
  reader.Bool("logprobs", &logprobs);
  value = 0;
  reader.Integer("top_logprobs", 0, 64, &value);
  if (value > 0 && !logprobs) {
    reader.Fail("top_logprobs", "field 'top_logprobs' goes with 'logprobs': true");
  }
  if (logprobs) generate.set_logprobs(value);
  ReadTurn(reader, generate.mutable_chat());
  ReadTemplateArguments(reader, generate.mutable_chat());
  // Whether the answer includes the assistant message that it continues.
  bool echo = false;
  reader.Bool("echo", &echo);
  if (echo && !generate.chat().turns().empty()) {
    const v1::ChatTurn& last = generate.chat().turns(generate.chat().turns_size() - 1);
    if (last.role() == "assistant") request->echo = last.content();
  }
  for (const char* name : {"chat_template", "functions", "function_call", "audio", "prediction",
                           "web_search_options"}) {
    reader.Unsupported(name, IsOff);
  }
  reader.Unsupported("verbosity", [](const json& v) { return v == "medium"; });
  // The prefix cache covers every prompt.
  reader.Ignore({"prompt_cache_retention", "prompt_cache_options"});
  reader.Unsupported("modalities", [](const json& v) { return v == json::array({"text"}); });
}

}  // namespace

std::optional<Error> Parse(Kind kind, const std::string& body, Request* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  v1::GenerateRequest& generate = request->generate;
  reader.String("model", true, generate.mutable_model());
  ReadStream(reader, &request->stream, [&](JsonReader& options) {
    options.Bool("include_usage", &request->include_usage);
    options.Bool("continuous_usage_stats", &request->usage_in_every_chunk);
  });
  ReadSampling(reader, &generate);
  ReadOutputOptions(reader, &generate);
  ReadStructuredOutput(reader, &generate);
  if (kind == Kind::kCompletion) {
    ReadCompletion(reader, request);
  } else {
    ReadChat(reader, request);
  }
  reader.Bool("return_token_ids", &request->return_token_ids);
  generate.set_return_prompt_tokens(request->return_token_ids || request->usage_in_every_chunk);
  reader.Bool("return_tokens_as_token_ids", &request->tokens_as_ids);
  reader.Unsupported("use_beam_search", IsOff);
  reader.Unsupported("length_penalty", [](const json& v) { return IsOff(v) || v == 1; });
  ReadRequestId(reader, &request->id);
  ReadServiceTier(reader, &request->service_tier);
  // Chat completions are not stored.
  reader.Unsupported("store", IsOff);
  // No effect here: special tokens have no text.
  reader.Unsupported("spaces_between_special_tokens",
                     [&](const json& v) { return v == true || !generate.show_special_tokens(); });
  // Labels that do not affect the answer.
  reader.Ignore({"user", "metadata", "safety_identifier", "prompt_cache_key"});
  reader.RefuseUnknown();
  return reader.error();
}

void ReadRequestIdHeader(const std::map<std::string, std::string>& headers, std::string* id) {
  const auto header = headers.find("x-request-id");
  if (header != headers.end() && IsRequestId(header->second)) *id = header->second;
}

std::optional<Error> ParseTokenize(const std::string& body, TokenizeRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  reader.String("model", false, &request->model);
  bool add_special = true;
  reader.Bool("add_special_tokens", &add_special);
  request->generate.set_no_special_tokens(!add_special);
  reader.Bool("return_token_strs", &request->token_strings);
  if (reader.Find("messages") != nullptr) {
    v1::ChatPrompt* chat = request->generate.mutable_chat();
    ReadMessages(reader, chat);
    ReadTools(reader, chat);
    ReadEffort(reader, "reasoning_effort", chat);
    ReadTemplateArguments(reader, chat);
    ReadTurn(reader, chat);
  } else {
    reader.String("prompt", true, request->generate.mutable_text());
  }
  reader.RefuseUnknown();
  return reader.error();
}

std::optional<Error> ParseDetokenize(const std::string& body, TokenizeRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  reader.String("model", false, &request->model);
  if (reader.Find("tokens") == nullptr) reader.Fail("tokens", "field 'tokens' is missing");
  reader.Tokens("tokens", kMaxPromptTokens, [&](int token) { request->tokens.push_back(token); });
  reader.RefuseUnknown();
  return reader.error();
}

}  // namespace espalier::openai
