// How a model wants its conversations written: its own chat templates with its special tokens.
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
  nlohmann::ordered_json messages;  // as the OpenAI API has them
  nlohmann::ordered_json tools;     // null: none
  bool add_generation_prompt = true;
  // Further variables of the template (chat_template_kwargs): an object or null.
  nlohmann::ordered_json variables;
  // See jinja::RenderOptions.
  std::function<std::string(const std::string& format)> strftime_now;
};

// Immutable, hence usable from any thread.
class ChatTemplate {
 public:
  // A model without templates has a format, too, which refuses. Errors as of jinja::Template::Parse,
  // with the template's name.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Create(const TokenizerConfig& config);

  // With this template in the place of all others, and the special tokens of `own` (may be null).
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Replace(const ChatTemplate* own,
                                                                   const std::string& source);

  // The prompt, whose special tokens are spelled out: to be encoded with parse_special, without
  // add_special. FailedPrecondition if the model has no template; else as jinja::Template::Render.
  // With tools, a template named tool_use comes first, as in transformers.
  absl::StatusOr<std::string> Render(const ChatRequest& request) const;

  // The text of the template that Render takes; empty if the model has none.
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
