#include "server/http/openai_response.h"

#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/http/json_reader.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

json UsageJson(const v1::Usage& usage) {
  json out = {{"prompt_tokens", usage.prompt_tokens()},
              {"completion_tokens", usage.completion_tokens()},
              {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
              {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens()}}},
              // completion_tokens does not include rejected draft tokens.
              {"completion_tokens_details",
               {{"accepted_prediction_tokens", usage.accepted_tokens()},
                {"rejected_prediction_tokens", usage.drafted_tokens() - usage.accepted_tokens()}}},
              {"speculation", SpeculationJson(usage)}};
  if (usage.has_reasoning_tokens()) {
    out["completion_tokens_details"]["reasoning_tokens"] = usage.reasoning_tokens();
  }
  return out;
}

json Frame(const Head& head, bool chunk) {
  const char* object = head.kind == Kind::kCompletion ? "text_completion"
                       : chunk                        ? "chat.completion.chunk"
                                                      : "chat.completion";
  json frame = {{"id", head.id},
                {"object", object},
                {"created", head.created_unix_seconds},
                {"model", head.model}};
  if (!head.service_tier.empty()) frame["service_tier"] = head.service_tier;
  if (chunk && head.usage_in_chunks) frame["usage"] = nullptr;
  return frame;
}

json OrNull(const std::string& text) { return text.empty() ? json() : json(text); }

std::string Event(const json& value) { return absl::StrCat("data: ", Dump(value), "\n\n"); }

// Returns a token's bytes as text; incomplete characters become U+FFFD.
std::string Valid(const std::string& bytes) {
  Utf8Stream stream;
  std::string out = stream.Append(bytes);
  return out + stream.Flush();
}

bool IsFirstOfPrompt(const v1::TokenLogprobs& token) { return token.rank() == 0; }

// Counts a character of several tokens at its first token. The space that some tokenizers put in
// front of a prompt does not count.
int CharactersOf(const ChoicePart& part, const v1::TokenLogprobs& token) {
  absl::string_view text = token.text();
  if (IsFirstOfPrompt(token) && !absl::StartsWith(part.text, text)) {
    // Tokenizers that prepend a space to the text remove it from the first token.
    if (!absl::ConsumePrefix(&text, " ") || !absl::StartsWith(part.text, text)) return 0;
  }
  return static_cast<int>(absl::c_count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

json BytesJson(const std::string& bytes) {
  json out = json::array();
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

// The key of a token in JSON. With IDs, tokens of equal text stay distinct.
template <typename Logprob>
std::string NameOf(const Logprob& token, bool as_id) {
  return as_id ? absl::StrCat("token_id:", token.token()) : Valid(token.text());
}

json CompletionLogprobs(const ChoicePart& part) {
  json tokens = json::array(), values = json::array(), top = json::array(), offsets = json::array();
  int offset = part.text_offset;
  for (const v1::TokenLogprobs& token : part.logprobs) {
    const std::string name = NameOf(token, part.tokens_as_ids);
    tokens.push_back(name);
    offsets.push_back(offset);
    offset += CharactersOf(part, token);
    if (IsFirstOfPrompt(token)) {
      values.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    values.push_back(token.logprob());
    json best = json::object();
    for (const v1::TopLogprob& other : token.top()) {
      // emplace keeps the most probable of tokens with equal text, which comes first.
      best.emplace(NameOf(other, part.tokens_as_ids), other.logprob());
    }
    best[name] = token.logprob();
    top.push_back(token.top().empty() ? json() : std::move(best));
  }
  return {{"tokens", tokens},
          {"token_logprobs", values},
          {"top_logprobs", top},
          {"text_offset", offsets}};
}

template <typename Logprob>
json ChatLogprob(const Logprob& token, bool as_id) {
  return {{"token", NameOf(token, as_id)},
          {"logprob", token.logprob()},
          {"bytes", BytesJson(token.text())}};
}

json ChatLogprobs(const ChoicePart& part) {
  json content = json::array();
  for (const v1::TokenLogprobs& token : part.logprobs) {
    content.push_back(LogprobJson(token, part.tokens_as_ids));
  }
  return {{"content", content}, {"refusal", nullptr}};
}

// vLLM's format, keyed by token ID.
json PromptLogprobs(const ChoicePart& part) {
  json out = json::array();
  for (const v1::TokenLogprobs& token : part.prompt_logprobs) {
    if (token.rank() == 0) {
      out.push_back(nullptr);
      continue;
    }
    json entry = json::object();
    const auto add = [&](int id, float logprob, int rank, const std::string& text) {
      entry[absl::StrCat(id)] = {
          {"logprob", logprob}, {"rank", rank}, {"decoded_token", Valid(text)}};
    };
    int rank = 0;
    for (const v1::TopLogprob& other : token.top()) {
      add(other.token(), other.logprob(), ++rank, other.text());
    }
    add(token.token(), token.logprob(), token.rank(), token.text());
    out.push_back(std::move(entry));
  }
  return out;
}

json ToolCallsJson(const std::vector<v1::ToolCall>& calls, bool chunk) {
  json out = json::array();
  for (const v1::ToolCall& call : calls) {
    json entry = {{"function", {{"arguments", call.arguments()}}}};
    if (chunk) entry["index"] = call.index();
    if (!call.id().empty()) {
      entry["id"] = call.id();
      entry["type"] = "function";
      entry["function"]["name"] = call.name();
    }
    out.push_back(std::move(entry));
  }
  return out;
}

json Choice(const Head& head, const ChoicePart& part, bool chunk) {
  json choice = {{"index", part.index}, {"finish_reason", OrNull(part.finish_reason)}};
  choice["logprobs"] = nullptr;
  if (part.with_logprobs && (!chunk || !part.logprobs.empty())) {
    choice["logprobs"] =
        head.kind == Kind::kCompletion ? CompletionLogprobs(part) : ChatLogprobs(part);
  }
  const bool completion = head.kind == Kind::kCompletion;
  if (completion && part.with_prompt_logprobs && (!chunk || !part.prompt_logprobs.empty())) {
    choice["prompt_logprobs"] = PromptLogprobs(part);
  }
  if (part.with_tokens) {
    choice["token_ids"] = part.tokens;
    if (head.kind == Kind::kCompletion && !part.prompt_tokens.empty()) {
      choice["prompt_token_ids"] = part.prompt_tokens;
    }
  }
  if (!part.finish_reason.empty()) {
    choice["stop_reason"] = part.stop_token >= 0 ? json(part.stop_token) : OrNull(part.stop_string);
  }
  if (head.kind == Kind::kCompletion) {
    choice["text"] = part.text;
    return choice;
  }
  json message = json::object();
  if (!chunk) {
    message["role"] = "assistant";
    const bool other = !part.tool_calls.empty() || !part.reasoning.empty();
    message["content"] = part.text.empty() && other ? json() : json(part.text);
  } else if (!part.text.empty()) {
    message["content"] = part.text;
  }
  // vLLM has used both names.
  for (const char* name : {"reasoning_content", "reasoning"}) {
    if (!part.reasoning.empty()) message[name] = part.reasoning;
  }
  if (!part.tool_calls.empty()) message["tool_calls"] = ToolCallsJson(part.tool_calls, chunk);
  choice[chunk ? "delta" : "message"] = std::move(message);
  return choice;
}

// A chat has one prompt for all choices.
void AddChatPrompt(const Head& head, const ChoicePart& part, json* answer) {
  if (head.kind != Kind::kChat) return;
  if (part.with_tokens && !part.prompt_tokens.empty()) {
    (*answer)["prompt_token_ids"] = part.prompt_tokens;
  }
  if (part.with_prompt_logprobs && !part.prompt_logprobs.empty()) {
    (*answer)["prompt_logprobs"] = PromptLogprobs(part);
  }
}

void AddUsage(const v1::Usage* so_far, json* chunk) {
  if (so_far != nullptr) (*chunk)["usage"] = UsageJson(*so_far);
}

json ModelObject(const ModelEntry& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created_unix_seconds},
          {"owned_by", "espalier"},
          {"max_model_len", model.max_model_len},
          {"parent", OrNull(model.parent)}};
}

}  // namespace

const char kDone[] = "data: [DONE]\n\n";

json LogprobJson(const v1::TokenLogprobs& token, bool as_ids) {
  json entry = ChatLogprob(token, as_ids);
  entry["top_logprobs"] = json::array();
  for (const v1::TopLogprob& other : token.top()) {
    entry["top_logprobs"].push_back(ChatLogprob(other, as_ids));
  }
  return entry;
}

json SpeculationJson(const v1::Usage& usage) {
  return {{"drafted_tokens", usage.drafted_tokens()},
          {"accepted_tokens", usage.accepted_tokens()},
          {"verification_steps", usage.verification_steps()}};
}

int CharactersOf(const ChoicePart& part) {
  int count = 0;
  for (const v1::TokenLogprobs& token : part.logprobs) count += CharactersOf(part, token);
  return count;
}

json WholeAnswer(const Head& head, const std::vector<ChoicePart>& choices, const v1::Usage& usage) {
  json answer = Frame(head, false);
  answer["choices"] = json::array();
  for (const ChoicePart& part : choices) answer["choices"].push_back(Choice(head, part, false));
  if (!choices.empty()) AddChatPrompt(head, choices[0], &answer);
  answer["usage"] = UsageJson(usage);
  return answer;
}

std::string RoleChunk(const Head& head, int index, const v1::Usage* so_far) {
  if (head.kind == Kind::kCompletion) return "";
  json chunk = Frame(head, true);
  chunk["choices"] = json::array({{{"index", index},
                                   {"delta", {{"role", "assistant"}, {"content", ""}}},
                                   {"logprobs", nullptr},
                                   {"finish_reason", nullptr}}});
  AddUsage(so_far, &chunk);
  return Event(chunk);
}

std::string Chunk(const Head& head, const ChoicePart& part, const v1::Usage* so_far) {
  json chunk = Frame(head, true);
  chunk["choices"] = json::array({Choice(head, part, true)});
  AddChatPrompt(head, part, &chunk);
  AddUsage(so_far, &chunk);
  return Event(chunk);
}

std::string UsageChunk(const Head& head, const v1::Usage& usage) {
  json chunk = Frame(head, true);
  chunk["choices"] = json::array();
  chunk["usage"] = UsageJson(usage);
  return Event(chunk);
}

std::string ErrorChunk(const Error& error) { return absl::StrCat("data: ", ToJson(error), "\n\n"); }

std::string ModelJson(const ModelEntry& model) { return Dump(ModelObject(model)); }

std::string ModelList(const std::vector<ModelEntry>& models) {
  json data = json::array();
  for (const ModelEntry& model : models) data.push_back(ModelObject(model));
  return Dump({{"object", "list"}, {"data", data}});
}

std::string TokensJson(const std::vector<int>& tokens, const std::vector<std::string>* strings,
                       int max_model_len) {
  json out = {{"count", tokens.size()}, {"max_model_len", max_model_len}, {"tokens", tokens}};
  if (strings != nullptr) {
    out["token_strs"] = json::array();
    for (const std::string& text : *strings) out["token_strs"].push_back(Valid(text));
  }
  return Dump(out);
}

std::string PromptJson(const std::string& prompt) { return Dump({{"prompt", prompt}}); }

}  // namespace espalier::openai
