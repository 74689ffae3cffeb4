// Loads a tokenizer from the files of a Hugging Face model directory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

// Contents of the files; empty if a file is absent.
struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string special_tokens_map_json;
  std::string generation_config_json;
  std::string chat_template_jinja;
  // of additional_chat_templates/*.jinja, by name
  std::map<std::string, std::string> additional_chat_templates;
};

// What tokenizer_config.json and related files define in addition to the tokenizer.
struct TokenizerConfig {
  // Spellings by role, such as "bos_token"; absent roles are missing.
  std::map<std::string, std::string> special_tokens;
  std::vector<std::string> additional_special_tokens;  // spellings without a role
  // Chat templates by name; a single one is "default". As in transformers, chat_template.jinja and
  // the additional templates take precedence over those in the configuration.
  std::map<std::string, std::string> chat_templates;
  std::string tokenizer_class;
  std::optional<bool> add_bos_token, add_eos_token;
};

// Returns InvalidArgument naming file and field.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const TokenizerFiles& files);

// Creates the tokenizer of tokenizer.json. It produces the same tokens as Hugging Face's
// `tokenizers` with padding and truncation off. An answer ends at the eos of
// generation_config.json, at `model_eos` (from config.json) and at the configuration's eos_token.
// As in transformers, tokens that the configuration calls special are special if the vocabulary has
// them, even if added_tokens does not list them, since templates spell them; their lstrip, rstrip
// and normalized are ignored. Returns InvalidArgument with file and field for invalid input and
// Unimplemented for unknown features.
//
// Added tokens with ids beyond a model's `vocabulary` are treated as text and returned in
// *omitted_added_tokens (optional) by id; for example the image token in text-only Gemma 3 models.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(
    const TokenizerFiles& files, std::vector<int> model_eos = {}, int64_t vocabulary = INT64_MAX,
    std::map<int, std::string>* omitted_added_tokens = nullptr);

}  // namespace espalier
