// How models write calls of tools into their answers: styles named after the models that brought
// them up, each with a file of its own unless it is JSON between marks, and an entry in
// tool_style.cc.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace espalier {

// What may be called.
struct Tool {
  std::string name;
  nlohmann::ordered_json parameters;  // JSON schema of the arguments; null: none given
};

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON, as a rule an object
};

class ToolStyle {
 public:
  // Calls stand between these; an empty `close` means up to the next `open` or the end.
  struct Section {
    std::string open;
    std::string close;
  };

  virtual ~ToolStyle() = default;

  virtual const char* name() const = 0;
  // Whether a chat template teaches its model this style.
  virtual bool IsOf(absl::string_view chat_template) const = 0;
  virtual std::vector<Section> sections() const = 0;
  // What else it may spell with special tokens, inside of sections.
  virtual std::vector<std::string> marks() const { return {}; }
  // The calls inside of a section, in order. Empty if it is anything else, a call of what is no
  // tool for one.
  virtual std::vector<ToolCall> Read(absl::string_view inside,
                                     const std::vector<Tool>& tools) const = 0;
  // Its templates take ids of just nine letters and digits.
  virtual bool short_ids() const { return false; }
};

// The first style that a template asks for; Hermes' if none does.
const ToolStyle& ToolStyleOf(absl::string_view chat_template);

// One object {"name": ..., "arguments" or "parameters": {...}}, a list of such, or several with
// semicolons between. Empty if it is anything else.
std::vector<ToolCall> ReadJsonCalls(absl::string_view text, const std::vector<Tool>& tools);

// Null if there is none of this name.
const Tool* FindTool(absl::string_view name, const std::vector<Tool>& tools);

// Parsed, if it is JSON of bounded depth; discarded otherwise.
nlohmann::ordered_json ParseBounded(absl::string_view text);

// The styles.
const ToolStyle& HermesStyle();     // json_styles.cc: also Qwen 2.5 and 3
const ToolStyle& LlamaStyle();      // json_styles.cc: 3.1 on
const ToolStyle& PhiStyle();        // json_styles.cc: Phi-4-mini
const ToolStyle& MistralStyle();    // mistral_style.cc
const ToolStyle& QwenCoderStyle();  // qwen_coder_style.cc: Qwen3-Coder

}  // namespace espalier
