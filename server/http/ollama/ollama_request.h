// Parses requests of Ollama's API. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "espalier/v1/inference.pb.h"
#include "server/http/ollama/ollama_options.h"
#include "server/http/openai_error.h"

namespace espalier::ollama {

// Of /api/generate and /api/chat.
struct Request {
  // Model, sampling and format; of a chat also messages and tools. The prompt of /api/generate is
  // below, because its form depends on the model.
  v1::GenerateRequest generate;
  LoadOptions load;
  bool stream = true;
  std::optional<bool> think;  // absent: as the model does by default
  std::string think_level;    // "low", "medium" or "high", with `think`; empty: none
  bool empty = false;         // no prompt or messages: only asks to load or unload the model

  // Of /api/generate.
  std::string prompt, system;
  bool raw = false;          // the prompt goes to the model without a chat template
  std::vector<int> context;  // tokens of an earlier answer's conversation
};

// Check every field. Reject by name what is not supported, unless its value means "off", and
// unknown fields.
std::optional<openai::Error> ParseGenerate(const std::string& body, Request* request);
std::optional<openai::Error> ParseChat(const std::string& body, Request* request);

// Of /api/embed and of /api/embeddings.
struct EmbedRequest {
  v1::EmbedRequest embed;
  LoadOptions load;
};
std::optional<openai::Error> ParseEmbed(const std::string& body, EmbedRequest* request);
// The older form: one prompt, and no normalization.
std::optional<openai::Error> ParseEmbeddings(const std::string& body, EmbedRequest* request);

// Parses the body of /api/show, which names a model.
std::optional<openai::Error> ParseShow(const std::string& body, std::string* model);

}  // namespace espalier::ollama
