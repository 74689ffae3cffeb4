// A model's chat templates and special tokens, which turn a conversation into a prompt.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "serving/chat_template/jinja_template.h"
#include "serving/tokenizer/tokenizer_files.h"

namespace espalier {

struct ChatRequest {
  nlohmann::ordered_json messages;  // in the format of the OpenAI API
  nlohmann::ordered_json tools;     // null: none
  bool add_generation_prompt = true;
  // Further template variables (chat_template_kwargs): an object or null.
  nlohmann::ordered_json variables;
  // See jinja::RenderOptions.
  std::function<std::string(const std::string& format)> strftime_now;
};

// Immutable and thus thread-safe.
class ChatTemplate {
 public:
  // A model without templates gets a ChatTemplate whose Render fails. Returns the error of
  // jinja::Template::Parse with the template's name.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Create(const TokenizerConfig& config);

  // Uses `source` instead of all other templates, with the special tokens of `own` (may be null).
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Replace(const ChatTemplate* own,
                                                                     const std::string& source);

  // Returns the prompt, with special tokens spelled out: encode it with parse_special and without
  // add_special. With tools, prefers a template named tool_use, as transformers does. Returns
  // FailedPrecondition if the model has no template, otherwise the errors of
  // jinja::Template::Render.
  absl::StatusOr<std::string> Render(const ChatRequest& request) const;

  // The source of the template that Render uses; empty if the model has none.
  const std::string& Source(bool with_tools) const;

 private:
  struct Named {
    std::string source;
    jinja::Template parsed;
  };

  const Named* Find(bool with_tools) const;

  std::map<std::string, Named> templates_;
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace espalier
