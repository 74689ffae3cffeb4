#include "server/http/ollama/ollama_request.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "server/http/json_reader.h"
#include "server/http/ollama/ollama_messages.h"
#include "server/http/openai_embeddings.h"
#include "server/http/text_or_tokens_reader.h"

namespace espalier::ollama {
namespace {

using json = nlohmann::ordered_json;
using openai::Error;
using openai::IsOff;
using openai::JsonReader;

void ReadThink(JsonReader& reader, Request* request) {
  const json* think = reader.Find("think");
  if (think == nullptr) return;
  if (think->is_boolean()) {
    request->think = think->get<bool>();
  } else if (*think == "low" || *think == "medium" || *think == "high") {
    request->think = true;
    request->think_level = think->get<std::string>();
  } else {
    reader.Fail("think", "field 'think' must be true, false, low, medium or high");
  }
}

// Reads what /api/generate and /api/chat share.
void ReadCommon(JsonReader& reader, Request* request) {
  reader.String("model", true, request->generate.mutable_model());
  reader.Bool("stream", &request->stream);
  ReadOptions(reader, &request->generate, &request->load);
  ReadFormat(reader, &request->generate);
  ReadLogprobs(reader, &request->generate);
  ReadThink(reader, request);
  // Whether a prompt or an answer that exceeds the context loses its beginning: an error and an end
  // with "length" tell it here.
  for (const char* name : {"truncate", "shift"}) reader.Unsupported(name, IsOff);
}

void ReadTruncate(JsonReader& reader, v1::EmbedRequest* embed) {
  bool truncate = false;
  reader.Bool("truncate", &truncate);
  embed->set_truncate(truncate);
}

// Sampling has no effect on embeddings, but is checked.
void ReadEmbedOptions(JsonReader& reader, EmbedRequest* request) {
  v1::GenerateRequest unused;
  ReadOptions(reader, &unused, &request->load);
}

}  // namespace

std::optional<Error> ParseGenerate(const std::string& body, Request* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  ReadCommon(reader, request);
  reader.String("prompt", false, &request->prompt);
  reader.String("system", false, &request->system);
  reader.Bool("raw", &request->raw);
  reader.Tokens("context", openai::kMaxPromptTokens,
                [&](int token) { request->context.push_back(token); });
  request->empty = request->prompt.empty();
  if (request->raw && (!request->system.empty() || !request->context.empty())) {
    reader.Fail("raw", "field 'raw' excludes 'system' and 'context': the prompt is the whole text");
  }
  RefuseImages(reader, "");
  if (const json* form = reader.Find("template"); form != nullptr && !IsOff(*form)) {
    reader.Fail("template",
                "field 'template' is not supported: serve the model with --chat-template, or send "
                "the whole text with 'raw': true");
  }
  reader.Unsupported("suffix", IsOff);
  // Of image generation.
  for (const char* name : {"width", "height", "steps"}) reader.Unsupported(name, IsOff);
  reader.RefuseUnknown();
  return reader.error();
}

std::optional<Error> ParseChat(const std::string& body, Request* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  ReadCommon(reader, request);
  ollama::ReadMessages(reader, request->generate.mutable_chat());
  ollama::ReadTools(reader, request->generate.mutable_chat());
  request->empty = request->generate.chat().turns().empty();
  // Ollama's server continues a last message of the assistant.
  if (!request->empty) {
    const v1::ChatPrompt& chat = request->generate.chat();
    const v1::ChatTurn& last = chat.turns(chat.turns_size() - 1);
    if (last.role() == "assistant" && last.tool_calls().empty()) {
      request->generate.mutable_chat()->set_continue_final_message(true);
    }
  }
  reader.RefuseUnknown();
  return reader.error();
}

std::optional<Error> ParseEmbed(const std::string& body, EmbedRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  v1::EmbedRequest& embed = request->embed;
  reader.String("model", true, embed.mutable_model());
  const json* input = reader.Find("input");
  if (input != nullptr && input->is_string()) {
    embed.add_inputs()->set_text(input->get<std::string>());
  } else if (input == nullptr) {
    reader.Fail("input", "field 'input' is missing");
  } else {
    reader.Strings("input", openai::kMaxEmbedInputs,
                   [&](const std::string& text) { embed.add_inputs()->set_text(text); });
  }
  ReadTruncate(reader, &embed);
  int dimensions = 0;
  reader.Integer("dimensions", 0, 1 << 20, &dimensions);
  embed.set_dimensions(dimensions);
  ReadEmbedOptions(reader, request);
  reader.RefuseUnknown();
  return reader.error();
}

std::optional<Error> ParseEmbeddings(const std::string& body, EmbedRequest* request) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  reader.String("model", true, request->embed.mutable_model());
  std::string prompt;
  reader.String("prompt", false, &prompt);
  if (!prompt.empty()) request->embed.add_inputs()->set_text(prompt);
  request->embed.set_no_normalization(true);
  ReadTruncate(reader, &request->embed);
  ReadEmbedOptions(reader, request);
  reader.RefuseUnknown();
  return reader.error();
}

std::optional<Error> ParseShow(const std::string& body, std::string* model) {
  json parsed;
  if (auto error = JsonReader::ParseBody(body, &parsed)) return error;
  JsonReader reader(parsed);
  // Older clients say "name".
  const bool old = reader.Find("model") == nullptr && reader.Find("name") != nullptr;
  reader.String(old ? "name" : "model", true, model);
  reader.Ignore({"name", "verbose"});
  for (const char* name : {"system", "template", "options"}) reader.Unsupported(name, IsOff);
  reader.RefuseUnknown();
  return reader.error();
}

}  // namespace espalier::ollama
