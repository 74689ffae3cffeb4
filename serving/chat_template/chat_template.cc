#include "serving/chat_template/chat_template.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::Create(
    const TokenizerConfig& config) {
  auto format = std::make_shared<ChatTemplate>();
  for (const auto& [name, source] : config.chat_templates) {
    absl::StatusOr<jinja::Template> parsed = jinja::Template::Parse(source);
    if (!parsed.ok()) {
      return absl::Status(parsed.status().code(),
                          absl::StrCat("template \"", name, "\": ", parsed.status().message()));
    }
    format->templates_.emplace(name, Named{source, *std::move(parsed)});
  }
  format->special_tokens_ = config.special_tokens;
  return std::shared_ptr<const ChatTemplate>(std::move(format));
}

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::Replace(
    const ChatTemplate* own, const std::string& source) {
  TokenizerConfig config;
  if (own != nullptr) config.special_tokens = own->special_tokens_;
  config.chat_templates["default"] = source;
  return Create(config);
}

const ChatTemplate::Named* ChatTemplate::Find(bool with_tools) const {
  auto chosen = with_tools ? templates_.find("tool_use") : templates_.end();
  if (chosen == templates_.end()) chosen = templates_.find("default");
  return chosen == templates_.end() ? nullptr : &chosen->second;
}

const std::string& ChatTemplate::Source(bool with_tools) const {
  static const std::string* none = new std::string;
  const Named* chosen = Find(with_tools);
  return chosen == nullptr ? *none : chosen->source;
}

absl::StatusOr<std::string> ChatTemplate::Render(const ChatRequest& request) const {
  const bool has_tools = request.tools.is_array() && !request.tools.empty();
  const Named* chosen = Find(has_tools);
  if (chosen == nullptr) {
    return absl::FailedPreconditionError(
        "the model has no chat template (tokenizer_config.json: chat_template, or "
        "chat_template.jinja); write the prompt yourself and use completions");
  }
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  for (const auto& [role, spelling] : special_tokens_) variables[role] = spelling;
  variables["documents"] = nlohmann::ordered_json();
  if (request.variables.is_object()) variables.update(request.variables);
  variables["messages"] = request.messages;
  variables["tools"] = has_tools ? request.tools : nlohmann::ordered_json();
  variables["add_generation_prompt"] = request.add_generation_prompt;
  jinja::RenderOptions options;
  options.strftime_now = request.strftime_now;
  return chosen->parsed.Render(variables, options);
}

}  // namespace espalier
