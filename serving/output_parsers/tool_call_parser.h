// How models write calls of tools into their answers: styles named after the models that brought
// them up, each with a file of its own unless it is JSON between marks, and an entry in
// tool_call_parser.cc.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "serving/output_parsers/tool_arguments_parser.h"
#include "serving/grammar/structural_tag.h"

namespace espalier {

// What may be called.
struct Tool {
  std::string name;
  nlohmann::ordered_json parameters;  // JSON schema of the arguments; null: none given
  bool strict = false;                // calls of it must keep to that schema
};

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON, as a rule an object
};

// One object {"name": ..., "arguments" or "parameters": {...}}, a list of such, or several with
// semicolons between. Empty if it is anything else.
std::vector<ToolCall> ParseJsonCalls(absl::string_view text, const std::vector<Tool>& tools);

// The beginning of a call whose arguments come next.
struct ToolCallStart {
  std::string name;
  size_t arguments = 0;  // where they begin
  std::unique_ptr<ToolArgumentsParser> parser;
};

// Of `text`, from what closes a call before it on: a JSON call as above whose name comes before its
// arguments. nullopt: it is not sure yet, or is anything else.
std::optional<ToolCallStart> ParseJsonCallStart(absl::string_view text, const std::vector<Tool>& tools);

// Of `text` behind the arguments of a JSON call: where the object ends that they are a member of,
// which may have others behind them. 0: nowhere.
size_t EndOfJsonCall(absl::string_view text);

class ToolCallParser {
 public:
  // Calls stand between these; an empty `close` means up to the next `open` or the end.
  struct Section {
    std::string open;
    std::string close;
  };

  virtual ~ToolCallParser() = default;

  virtual const char* name() const = 0;
  // Whether a chat template teaches its model this tool_parser.
  virtual bool MatchesTemplate(absl::string_view chat_template) const = 0;
  virtual std::vector<Section> sections() const = 0;
  // What else it may spell with special tokens, inside of sections.
  virtual std::vector<std::string> inner_special_tokens() const { return {}; }
  // The calls inside of a section, in order. Empty if it is anything else, a call of what is no
  // tool for one.
  virtual std::vector<ToolCall> ParseSection(absl::string_view inside,
                                     const std::vector<Tool>& tools) const = 0;
  // The same of an answer that is calls as a whole, without marks.
  virtual std::vector<ToolCall> ParseUntagged(absl::string_view answer,
                                          const std::vector<Tool>& tools) const {
    return ParseJsonCalls(answer, tools);
  }
  // The next call in a section, if its arguments can be passed on as they come. As ParseJsonCallStart.
  virtual std::optional<ToolCallStart> ParseCallStart(absl::string_view inside,
                                         const std::vector<Tool>& tools) const {
    return std::nullopt;
  }
  // Of `text` behind the arguments of a call that ParseCallStart gave: where that call ends. What is cut
  // short ends with the text. 0: there, or nowhere.
  virtual size_t EndOfCall(absl::string_view text) const { return EndOfJsonCall(text); }
  // Answers in which every call is one of a tool, well written, and within the schema of those that
  // are strict. ParseSection and ParseUntagged understand them.
  virtual StructuralTag MakeStructuralTag(const std::vector<Tool>& tools) const = 0;
  // Answers that as a whole are calls, without marks, are its way, and not a model's lapse.
  virtual bool allows_untagged_calls() const { return false; }
  // Its templates take ids of just nine letters and digits.
  virtual bool short_ids() const { return false; }
};

// The first tool_parser that a template asks for; Hermes' if none does.
const ToolCallParser& ToolCallParserFor(absl::string_view chat_template);

// Null if there is none of this name.
const Tool* FindTool(absl::string_view name, const std::vector<Tool>& tools);

// On one line, ill-formed UTF-8 replaced.
std::string DumpJson(const nlohmann::ordered_json& value);

// The schema of a call's arguments: any object unless the tool is strict.
nlohmann::ordered_json ArgumentsSchema(const Tool& tool);

// {"name": "f", `arguments`: {...}}, for each tool.
std::vector<TagItem> JsonCallItems(const std::vector<Tool>& tools, absl::string_view arguments);

// Parameters by name, for styles that do not write an object: what `begin` and `end` put around
// each, and the schemas of their values.
std::vector<TagField> ParameterFields(const Tool& tool, absl::string_view before_name,
                                  absl::string_view behind_name, absl::string_view end,
                                  ValueSyntax syntax);

// The styles.
const ToolCallParser& HermesToolCallParser();          // hermes_llama_phi_tool_parsers.cc: also Qwen 2.5 and 3
const ToolCallParser& LlamaToolCallParser();           // hermes_llama_phi_tool_parsers.cc: 3.1 on
const ToolCallParser& PhiToolCallParser();             // hermes_llama_phi_tool_parsers.cc: Phi-4-mini
const ToolCallParser& MistralToolCallParser();         // mistral_tool_parser.cc
const ToolCallParser& MistralArgsToolCallParser();     // mistral_tool_parser.cc: with [ARGS]
const ToolCallParser& Qwen3CoderToolCallParser();       // qwen3_coder_tool_parser.cc: Qwen3-Coder
const ToolCallParser& PythonicToolCallParser();          // pythonic_tool_parser.cc: Llama 3.2 and 4, ToolACE, LFM2
const ToolCallParser& DeepSeekV3ToolCallParser();        // deepseek_tool_parser.cc: V3, R1 and what was distilled of it
const ToolCallParser& DeepSeekV31ToolCallParser();  // deepseek_tool_parser.cc: since V3.1

}  // namespace espalier
