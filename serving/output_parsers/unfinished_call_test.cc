// A client executes the calls of a finished answer: which calls are whole when it ends.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "serving/output_parsers/output_parser.h"

namespace espalier {
namespace {

// A stop string or max_tokens may cut an answer off anywhere.
TEST(UnfinishedCall, IsOneThatIsCutOff) {
  using Unfinished = UnfinishedCall;
  std::mt19937 random(6);
  const std::string f = R"({"name": "f", "arguments": {"a": 1}})";
  const ToolCallParser* hermes = &HermesToolCallParser();
  const ToolCallParser* coder = &Qwen3CoderToolCallParser();
  const ToolCallParser* mistral = &MistralArgsToolCallParser();
  const ToolCallParser* python = &PythonicToolCallParser();
  struct {
    const ToolCallParser* tool_parser;
    ToolChoice choice;
    std::string answer, text;
    size_t calls;
    UnfinishedCall unfinished;
  } cases[] = {
      {hermes, ToolChoice::kNamed, R"({"a": "et )", "", 1, Unfinished::kArguments},
      {hermes, ToolChoice::kNamed, R"({"a": {"b": 1})", "", 1, Unfinished::kArguments},
      {hermes, ToolChoice::kNamed, R"({"a": 1})", "", 1, Unfinished::kNone},
      {hermes, ToolChoice::kNamed, R"( {"a": "}"} )", "", 1, Unfinished::kNone},
      {hermes, ToolChoice::kNamed, "<think>hm", "", 0, Unfinished::kNone},
      // What a required call leaves is never content.
      {hermes, ToolChoice::kRequired, "", "", 0, Unfinished::kNone},
      {hermes, ToolChoice::kRequired, "[", "", 0, Unfinished::kHead},
      {hermes, ToolChoice::kRequired, R"([{"name": "f", "argum)", "", 0, Unfinished::kHead},
      {hermes, ToolChoice::kRequired, R"([{"name": "f", "arguments": {"a)", "", 1,
       Unfinished::kArguments},
      {hermes, ToolChoice::kRequired, "[" + f, "", 1, Unfinished::kNone},
      {hermes, ToolChoice::kRequired, "[" + f + ", ", "", 1, Unfinished::kNone},
      {hermes, ToolChoice::kRequired, "[" + f + R"(, {"name": "g)", "", 1, Unfinished::kHead},
      {hermes, ToolChoice::kRequired, "[" + f + "]", "", 1, Unfinished::kNone},
      {hermes, ToolChoice::kAuto, R"(So.<tool_call>{"name": "f", "arguments": {"s": "x)", "So.", 1,
       Unfinished::kArguments},
      {hermes, ToolChoice::kAuto, "So.<tool_call>" + f, "So.", 1, Unfinished::kNone},
      {hermes, ToolChoice::kAuto, "<tool_call>" + f + R"(</tool_call><tool_call>{"na)",
       R"(<tool_call>{"na)", 1, Unfinished::kHead},
      {hermes, ToolChoice::kAuto, "<tool_call>" + f + "</tool_call>Now I", "Now I", 1,
       Unfinished::kNone},
      {hermes, ToolChoice::kAuto, R"({"name": "f", "arguments": {"s": "x)", "", 1,
       Unfinished::kArguments},
      {mistral, ToolChoice::kAuto, R"([TOOL_CALLS]f[ARGS]{"s": [)", "", 1, Unfinished::kArguments},
      {mistral, ToolChoice::kAuto, R"([TOOL_CALLS]f[ARGS]{"s": []})", "", 1, Unfinished::kNone},
      {coder, ToolChoice::kAuto, "<tool_call><function=f><parameter=s>ab\n", "", 1,
       Unfinished::kArguments},
      {coder, ToolChoice::kAuto, "<tool_call><function=f><parameter=s>ab\n</parameter></function>",
       "", 1, Unfinished::kNone},
      // Parsed as a whole, so that nothing of it is a call yet.
      {python, ToolChoice::kAuto, "[f(a=1", "[f(a=1", 0, Unfinished::kHead},
      {python, ToolChoice::kAuto, "[f(a=1)]", "", 1, Unfinished::kNone},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.answer);
    for (const size_t pieces : {0, 1, 1, 7, 7}) {
      OutputParserOptions options;
      options.reasoning = {"<think>", "</think>"};
      options.tool_parser = test.tool_parser;
      options.tools = {{"f", {{"type", "object"}, {"properties", {{"s", {{"type", "string"}}}}}}},
                       {"g", nullptr}};
      options.choice = test.choice;
      options.named_tool = "f";
      options.id = "call";
      OutputParser parser(options);
      std::string text;
      size_t calls = 0;
      const auto add = [&](const OutputDelta& part) {
        text += part.text;
        for (const ToolCallDelta& call : part.calls) calls += call.id.empty() ? 0 : 1;
      };
      for (size_t at = 0; at < test.answer.size();) {
        const size_t n = pieces == 0 ? test.answer.size() : 1 + random() % pieces;
        add(parser.Append(test.answer.substr(at, n)));
        at += n;
      }
      add(parser.Finish());
      EXPECT_EQ(text, test.text);
      EXPECT_EQ(calls, test.calls);
      EXPECT_EQ(parser.unfinished_call(), test.unfinished);
    }
  }
}

}  // namespace
}  // namespace espalier
