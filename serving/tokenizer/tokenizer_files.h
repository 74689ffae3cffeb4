// A model's tokenizer from the files that Hugging Face's libraries write beside it.
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

// The texts of the files; empty where there is none.
struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string special_tokens_map_json;
  std::string generation_config_json;
  std::string chat_template_jinja;
  std::map<std::string, std::string> additional_chat_templates;  // *.jinja there, by name
};

// What tokenizer_config.json and its companions say beside the tokenizer itself.
struct TokenizerConfig {
  // Spellings by role, such as "bos_token"; only those that there are.
  std::map<std::string, std::string> special_tokens;
  std::vector<std::string> additional_special_tokens;  // spellings without a role
  // Chat templates by name; a single one is "default". chat_template.jinja and the additional ones
  // stand before those in the configuration, as in transformers.
  std::map<std::string, std::string> chat_templates;
  std::string tokenizer_class;
  std::optional<bool> add_bos_token, add_eos_token;
};

// InvalidArgument naming file and field.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const TokenizerFiles& files);

// The tokenizer of tokenizer.json, which gives the tokens that Hugging Face's `tokenizers` gives,
// with padding and truncation off. An answer ends at generation_config.json's eos, at `model_eos`
// (that of config.json) and at the configuration's eos_token. What the configuration calls special
// is so, if the vocabulary has it, though tokenizer.json's added_tokens leave it out, as in
// transformers (but for its lstrip, rstrip and normalized): templates spell it. Invalid input is
// refused with file
// and field as InvalidArgument; what we do not know, as Unimplemented.
//
// Added tokens that a model of `vocabulary` tokens does not have are no tokens, but text, and come
// in `omitted_added_tokens` by their ids (optional): Gemma 3's one for images, in its models for texts alone.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(
    const TokenizerFiles& files, std::vector<int> model_eos = {}, int64_t vocabulary = INT64_MAX,
    std::map<int, std::string>* omitted_added_tokens = nullptr);

}  // namespace espalier
