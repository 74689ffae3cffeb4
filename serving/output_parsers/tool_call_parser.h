// Tool-call formats of models, named as vLLM's --tool-call-parser names them. Each format has a
// file *_tool_parser.cc and an entry in tool_call_parser.cc. A format can be parsed, streamed and
// enforced by a structural tag.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "serving/grammar/structural_tag.h"
#include "serving/output_parsers/tool_arguments_parser.h"

namespace espalier {

// A function that the model may call.
struct Tool {
  std::string name;
  nlohmann::ordered_json parameters;  // JSON schema of the arguments; null: not given
  bool strict = false;                // calls must satisfy the schema
};

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON, usually an object
};

// Parses one object {"name": ..., "arguments" or "parameters": {...}}, a list of them, or several
// separated by semicolons. Returns an empty vector for anything else.
std::vector<ToolCall> ParseJsonCalls(absl::string_view text, const std::vector<Tool>& tools);

// The head of a call, up to its arguments.
struct ToolCallStart {
  std::string name;
  size_t arguments = 0;  // offset at which they begin
  std::unique_ptr<ToolArgumentsParser> parser;
};

// Parses the head of the next JSON call whose name precedes its arguments. `text` may begin with
// what closes the call before it. Returns nullopt if the text is incomplete or is anything else.
std::optional<ToolCallStart> ParseJsonCallStart(absl::string_view text,
                                                const std::vector<Tool>& tools);

// `text` follows the arguments of a JSON call. Returns where the enclosing object ends, which may
// have more members. Returns 0 if it does not end.
size_t EndOfJsonCall(absl::string_view text);

class ToolCallParser {
 public:
  // The tags around calls. With an empty `close` a section extends to the next `open` or to the
  // end.
  struct Section {
    std::string open;
    std::string close;
  };

  virtual ~ToolCallParser() = default;

  virtual const char* name() const = 0;
  // Whether a chat template teaches its model this format.
  virtual bool MatchesTemplate(absl::string_view chat_template) const = 0;
  virtual std::vector<Section> sections() const = 0;
  // Special tokens that the format uses inside of sections.
  virtual std::vector<std::string> inner_special_tokens() const { return {}; }
  // Parses the complete text of a section. Returns the calls in order, or an empty vector for
  // anything else, such as a call of an unknown tool.
  virtual std::vector<ToolCall> ParseSection(absl::string_view inside,
                                             const std::vector<Tool>& tools) const = 0;
  // Parses an answer that is calls as a whole, without tags.
  virtual std::vector<ToolCall> ParseUntagged(absl::string_view answer,
                                              const std::vector<Tool>& tools) const {
    return ParseJsonCalls(answer, tools);
  }
  // Parses the head of the next call in a section if its arguments can be streamed. See
  // ParseJsonCallStart.
  virtual std::optional<ToolCallStart> ParseCallStart(absl::string_view inside,
                                                      const std::vector<Tool>& tools) const {
    return std::nullopt;
  }
  // `text` follows the arguments of a call that ParseCallStart returned. Returns where the call
  // ends: at the end of `text` if it is cut off, 0 if nothing closes it.
  virtual size_t EndOfCall(absl::string_view text) const { return EndOfJsonCall(text); }
  // Returns a structural tag for answers whose calls are well-formed calls of `tools`; arguments of
  // strict tools satisfy their schemas. ParseSection and ParseUntagged understand such answers.
  virtual StructuralTag MakeStructuralTag(const std::vector<Tool>& tools) const = 0;
  // Whether calls without tags are part of the format, not a slip of the model.
  virtual bool allows_untagged_calls() const { return false; }
  // Whether the chat template only accepts ids of nine letters and digits.
  virtual bool short_ids() const { return false; }
};

// Returns the first format that the template matches, or Hermes' format.
const ToolCallParser& ToolCallParserFor(absl::string_view chat_template);

// Returns null if there is no tool of this name.
const Tool* FindTool(absl::string_view name, const std::vector<Tool>& tools);

// Dumps on one line; replaces ill-formed UTF-8.
std::string DumpJson(const nlohmann::ordered_json& value);

// The schema of a call's arguments: any object unless the tool is strict.
nlohmann::ordered_json ArgumentsSchema(const Tool& tool);

// Returns {"name": "f", `arguments`: {...}} for each tool.
std::vector<TagItem> JsonCallItems(const std::vector<Tool>& tools, absl::string_view arguments);

// The parameters by name, for formats that do not write an object. Each is written as
// `before_name`, name, `behind_name`, value, `end`.
std::vector<TagField> ParameterFields(const Tool& tool, absl::string_view before_name,
                                      absl::string_view behind_name, absl::string_view end,
                                      ValueSyntax syntax);

// hermes_llama_phi_tool_parsers.cc; also Qwen 2.5 and 3
const ToolCallParser& HermesToolCallParser();
const ToolCallParser& LlamaToolCallParser();    // hermes_llama_phi_tool_parsers.cc; since Llama 3.1
const ToolCallParser& PhiToolCallParser();      // hermes_llama_phi_tool_parsers.cc; Phi-4-mini
const ToolCallParser& MistralToolCallParser();  // mistral_tool_parser.cc
const ToolCallParser& MistralArgsToolCallParser();  // mistral_tool_parser.cc; with [ARGS]
const ToolCallParser& Qwen3CoderToolCallParser();   // qwen3_coder_tool_parser.cc
// pythonic_tool_parser.cc; Llama 3.2 and 4, ToolACE, LFM2
const ToolCallParser& PythonicToolCallParser();
// deepseek_tool_parser.cc; V3, R1 and models distilled from it
const ToolCallParser& DeepSeekV3ToolCallParser();
const ToolCallParser& DeepSeekV31ToolCallParser();  // deepseek_tool_parser.cc; since V3.1

}  // namespace espalier
