// Fuzzes output parsers: any model output parses the same however it is split, and nothing is lost
// where there is no reasoning and no tool call. The first byte selects the parser.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "serving/output_parsers/output_parser.h"

namespace {

using namespace espalier;

// All parts as one text, calls in their places in it; then the thoughts.
std::string Read(const OutputParserOptions& options, const std::string& answer, size_t piece,
                 bool* only_text) {
  OutputParser parser(options);
  std::string text, reasoning;
  bool called = false;
  const auto add = [&](const OutputDelta& part) {
    reasoning += part.reasoning;
    size_t begin = 0;
    for (const ToolCallDelta& call : part.calls) {
      if (call.text_before < begin || call.text_before > part.text.size()) std::abort();
      text += part.text.substr(begin, call.text_before - begin);
      begin = call.text_before;
      text += call.id + call.name + call.arguments;
      if (call.index < 0) std::abort();
      called = true;
    }
    text += part.text.substr(begin);
  };
  for (size_t at = 0; at < answer.size(); at += piece) add(parser.Append(answer.substr(at, piece)));
  add(parser.Finish());
  *only_text = reasoning.empty() && !called;
  return text + '\0' + reasoning;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const ToolCallParser* const styles[] = {&HermesToolCallParser(),     &LlamaToolCallParser(),
                                          &MistralToolCallParser(),    &PhiToolCallParser(),
                                          &Qwen3CoderToolCallParser(), &PythonicToolCallParser(),
                                          &DeepSeekV3ToolCallParser()};
  const ToolChoice choices[] = {ToolChoice::kAuto, ToolChoice::kAuto, ToolChoice::kNone,
                                ToolChoice::kRequired};
  OutputParserOptions options;
  options.tool_parser = styles[data[0] % 7];
  options.choice = choices[data[0] / 7 % 4];
  if (data[0] / 28 % 4 > 0) options.reasoning = {"<think>", "</think>"};
  options.begins_in_reasoning = data[0] / 28 % 4 == 2;
  options.tools = {{"f", {{"properties", {{"a", {{"type", {"integer", "null"}}}}}}}},
                   {"g", nullptr}};
  options.id = "call";
  const std::string answer(reinterpret_cast<const char*>(data) + 1, size - 1);
  bool only_text = false;
  const std::string whole = Read(options, answer, size, &only_text);
  for (const size_t piece : {1, 3, 8}) {
    bool only = false;
    if (Read(options, answer, piece, &only) != whole) std::abort();
  }
  // Empty thoughts leave no trace.
  const bool thinks = !options.reasoning.empty();
  // What is left of a required call that is cut off is no content.
  const bool required = options.choice == ToolChoice::kRequired;
  if (only_text && !thinks && !required && whole != answer + '\0') std::abort();
  if (only_text && !thinks && required &&
      !absl::StartsWith(answer + '\0', whole.substr(0, whole.size() - 1))) {
    std::abort();
  }
  return 0;
}
