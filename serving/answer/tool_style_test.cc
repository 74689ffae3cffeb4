// Styles are told by what chat templates of the models say.
#include "serving/answer/tool_style.h"

#include <gtest/gtest.h>

#include <utility>

#include "serving/answer/answer_style.h"

namespace espalier {
namespace {

TEST(ToolStyle, IsThatOfTheTemplate) {
  const std::pair<const char*, const char*> cases[] = {
      {"for each call return <tool_call>\n{\"name\": <function-name>}\n</tool_call>", "hermes"},
      {"<tool_call>\n<function=example>\n<parameter=p>\nv\n</parameter></function>", "qwen-coder"},
      {"{{ '[TOOL_CALLS] [' }}{%- for tool_call in message.tool_calls %}", "mistral"},
      {"{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}", "phi"},
      {"{{- \"<|python_tag|>\" + tool_call.name + \".call(\" }}", "llama"},
      {"{{ message['content'] }}", "hermes"},
      {"", "hermes"}};
  for (const auto& [source, name] : cases) EXPECT_STREQ(ToolStyleOf(source).name(), name) << source;
}

TEST(ToolStyle, WhatIsNoJsonOrTooDeepIsNoCall) {
  const std::vector<Tool> tools = {{"f", nullptr}};
  const std::string deep =
      R"({"name": "f", "arguments": )" + std::string(5000, '[') + std::string(5000, ']') + "}";
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("{}"), std::string("[]"),
        std::string("[1]"), std::string(R"({"name": 5, "arguments": {}})"),
        std::string(R"({"name": "f"})"), std::string(R"({"name": "f", "arguments": [1]})"),
        std::string(R"({"name": "f", "arguments": {}} and more)"), deep}) {
    EXPECT_TRUE(ReadJsonCalls(text, tools).empty()) << text.substr(0, 60);
  }
  // Some models write the arguments as a text that holds JSON, as the API does.
  const std::vector<ToolCall> calls =
      ReadJsonCalls(R"({"name": "f", "arguments": "{\"a\": 1}"})", tools);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].arguments, R"({"a": 1})");
}

TEST(ReasoningMarks, AreThoseOfTheTemplate) {
  EXPECT_EQ(ReasoningMarksOf("{{ content.split('</think>')[-1] }}").close, "</think>");
  EXPECT_EQ(ReasoningMarksOf("draft your thinking: [THINK]").open, "[THINK]");
  EXPECT_TRUE(ReasoningMarksOf("{{ message.content }}").empty());
  const ReasoningMarks think = {"<think>", "</think>"};
  EXPECT_TRUE(EndsInReasoning("<|im_start|>assistant\n<think>\n", think));
  EXPECT_FALSE(EndsInReasoning("<think>\n\n</think>\n\n", think));
  EXPECT_FALSE(EndsInReasoning("", think));
  EXPECT_FALSE(EndsInReasoning("x", {}));
}

}  // namespace
}  // namespace espalier
