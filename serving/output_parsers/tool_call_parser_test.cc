// The chat template determines the tool-call format.
#include "serving/output_parsers/tool_call_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

#include "serving/grammar/grammar_test_util.h"
#include "serving/output_parsers/output_parser.h"
#include "serving/output_parsers/reasoning_parser.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

TEST(ToolCallParser, IsChosenByTheChatTemplate) {
  const std::pair<const char*, const char*> cases[] = {
      {"for each call return <tool_call>\n{\"name\": <function-name>}\n</tool_call>", "hermes"},
      {"<tool_call>\n<function=example>\n<parameter=p>\nv\n</parameter></function>", "qwen3_coder"},
      {"[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", "mistral_args"},
      {"a python list: [func_name1(params_name1=params_value1)] {{ '<|python_tag|>' }}",
       "pythonic"},
      {"{{ '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + '\\n```json\\n' }}",
       "deepseek_v3"},
      {"{{ '<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' }}",
       "deepseek_v31"},
      {"{{ '[TOOL_CALLS] [' }}{%- for tool_call in message.tool_calls %}", "mistral"},
      {"{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}", "phi4_mini_json"},
      {"{{- \"<|python_tag|>\" + tool_call.name + \".call(\" }}", "llama3_json"},
      {"{{ message['content'] }}", "hermes"},
      {"", "hermes"}};
  for (const auto& [source, name] : cases)
    EXPECT_STREQ(ToolCallParserFor(source).name(), name) << source;
}

TEST(ToolCallParser, InvalidOrTooDeepJsonIsNoCall) {
  const std::vector<Tool> tools = {{"f", nullptr}};
  const std::string deep =
      R"({"name": "f", "arguments": )" + std::string(5000, '[') + std::string(5000, ']') + "}";
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("{}"), std::string("[]"),
        std::string("[1]"), std::string(R"({"name": 5, "arguments": {}})"),
        std::string(R"({"name": "f"})"), std::string(R"({"name": "f", "arguments": [1]})"),
        std::string(R"({"name": "f", "arguments": {}} and more)"), deep}) {
    EXPECT_TRUE(ParseJsonCalls(text, tools).empty()) << text.substr(0, 60);
  }
  // Some models write the arguments as a string that holds JSON, as the API does.
  const std::vector<ToolCall> calls =
      ParseJsonCalls(R"({"name": "f", "arguments": "{\"a\": 1}"})", tools);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].arguments, R"({"a": 1})");
}

// Whatever a structural tag allows parses as calls of the tools, with arguments that satisfy the
// schema. It allows what models usually write.
TEST(ToolCallParser, StructuralTagTextsParseAsCalls) {
  std::vector<Tool> tools = {
      {"get_weather", Json::parse(R"({"type": "object", "properties": {
           "place": {"type": "string"}, "unit": {"enum": ["C", "F"]},
           "days": {"type": "integer", "minimum": 0, "maximum": 99},
           "more": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
           "required": ["place", "days"], "additionalProperties": false})"),
       true},
      {"loose", Json::parse(R"({"type": "object", "properties": {"x": {"type": "number"}}})"),
       false},
      {"empty", nullptr, true}};
  const ToolCallParser* styles[] = {
      &HermesToolCallParser(),   &LlamaToolCallParser(),       &PhiToolCallParser(),
      &MistralToolCallParser(),  &MistralArgsToolCallParser(), &Qwen3CoderToolCallParser(),
      &PythonicToolCallParser(), &DeepSeekV3ToolCallParser(),  &DeepSeekV31ToolCallParser()};
  std::mt19937 random(7);
  for (const ToolCallParser* tool_parser : styles) {
    SCOPED_TRACE(tool_parser->name());
    const StructuralTag form = tool_parser->MakeStructuralTag(tools);
    // Without text around the sections, every text is calls.
    StructuralTag alone = form;
    alone.layout = StructuralTag::kSingleSection;
    GrammarMatcher calls({.kind = StructuredOutput::kStructuralTag, .structural_tag = alone});
    GrammarMatcher whole({.kind = StructuredOutput::kStructuralTag, .structural_tag = form});
    std::map<std::string, int> seen;
    for (int i = 0; i < 100; ++i) {
      const std::string text = calls.Random(random);
      if (text.empty()) continue;  // too long
      SCOPED_TRACE(text);
      OutputParserOptions options{
          .tool_parser = tool_parser, .tools = tools, .choice = ToolChoice::kAuto};
      OutputParser parser(options);
      const OutputDelta begin = parser.Append(text), end = parser.Finish();
      ASSERT_EQ(begin.text + end.text, "");
      std::vector<ToolCallDelta> made = begin.calls;
      made.insert(made.end(), end.calls.begin(), end.calls.end());
      ASSERT_FALSE(made.empty());
      for (const ToolCallDelta& call : made) {
        ++seen[call.name];
        const Json arguments = Json::parse(call.arguments);
        if (call.name == "empty") {
          EXPECT_EQ(arguments, Json::object());
        }
        if (call.name != "get_weather") continue;
        ASSERT_TRUE(arguments.contains("place") && arguments["place"].is_string());
        ASSERT_TRUE(arguments.contains("days") && arguments["days"].is_number_integer());
        EXPECT_LE(arguments["days"].get<int>(), 99);
        if (arguments.contains("unit")) {
          EXPECT_TRUE(arguments["unit"] == "C" || arguments["unit"] == "F");
        }
        const Json more = arguments.value("more", Json());
        EXPECT_TRUE(more.is_null() || more.is_boolean());
      }
      // Text may surround it.
      EXPECT_TRUE(whole.Accepts(text));
    }
    // Random text up to a tag hardly ever ends.
    EXPECT_EQ(seen.size(), tool_parser == &Qwen3CoderToolCallParser() ? 1u : 3u);
  }
}

TEST(ToolCallParser, StructuralTagAllowsWhatModelsWrite) {
  const std::vector<Tool> tools = {
      {"f", Json::parse(R"({"type": "object", "properties": {"s": {"type": "string"},
                            "b": {"type": "boolean"}}, "required": ["s"]})"),
       true}};
  const struct {
    const ToolCallParser* tool_parser;
    std::vector<std::string> good, bad;
  } cases[] = {
      {&HermesToolCallParser(),
       {"Just text, with <tool and {\"name\": \"x\"}.", "",
        "First.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>\n"
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"\", \"b\": true}}\n</tool_call>"},
       {"<tool_call>", "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
        "x<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": 1}}\n</tool_call>"}},
      {&LlamaToolCallParser(),
       {"{\"name\": \"f\", \"parameters\": {\"s\": \"x\"}}", "{\"title\": 1}"},
       {"{\"name\": \"f\", \"parameters\": {\"s\": \"x\"}} and more"}},
      {&MistralArgsToolCallParser(), {"[TOOL_CALLS]f[ARGS]{\"s\": \"x\"}"}, {"[TOOL_CALLS]f{}"}},
      {&Qwen3CoderToolCallParser(),
       {"<tool_call>\n<function=f>\n<parameter=s>\nTwo\nlines\n</parameter>\n<parameter=b>\ntrue\n"
        "</parameter>\n</function>\n</tool_call>"},
       {"<tool_call>\n<function=f>\n<parameter=b>\ntrue\n</parameter>\n</function>\n</tool_call>"}},
      {&PythonicToolCallParser(),
       {"[f(s=\"x\", b=True)]", "[1, 2]", "[f(s=\"x\"), f(s=\"y\")]"},
       {"[f(b=True)]", "[f(s=\"x\", b=1)]", "[f(s=\"x\")] or so"}},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.tool_parser->name());
    GrammarMatcher language({.kind = StructuredOutput::kStructuralTag,
                             .structural_tag = test.tool_parser->MakeStructuralTag(tools)});
    for (const std::string& text : test.good) EXPECT_TRUE(language.Accepts(text)) << text;
    for (const std::string& text : test.bad) EXPECT_FALSE(language.Accepts(text)) << text;
  }
}

TEST(ToolCallParser, UnsupportedKeywordIsNamed) {
  const std::vector<Tool> tools = {
      {"f", Json::parse(R"({"type": "object", "properties": {"s": {"type": "string",
                            "pattern": "a+"}}})"),
       true}};
  const GrammarMatcher coder(
      {.kind = StructuredOutput::kStructuralTag,
       .structural_tag = Qwen3CoderToolCallParser().MakeStructuralTag(tools)});
  EXPECT_THAT(coder.status.ToString(), HasSubstr("'<parameter=s>"));
  EXPECT_THAT(coder.status.ToString(), HasSubstr("'pattern' is not supported"));
  const GrammarMatcher hermes({.kind = StructuredOutput::kStructuralTag,
                               .structural_tag = HermesToolCallParser().MakeStructuralTag(tools)});
  EXPECT_TRUE(hermes.status.ok()) << hermes.status;
}

TEST(ReasoningTags, AreFoundInTheChatTemplate) {
  EXPECT_EQ(ReasoningTagsFor("{{ content.split('</think>')[-1] }}").close, "</think>");
  EXPECT_EQ(ReasoningTagsFor("draft your thinking: [THINK]").open, "[THINK]");
  EXPECT_TRUE(ReasoningTagsFor("{{ message.content }}").empty());
  const ReasoningTags think = {"<think>", "</think>"};
  EXPECT_TRUE(EndsInReasoning("<|im_start|>assistant\n<think>\n", think));
  EXPECT_FALSE(EndsInReasoning("<think>\n\n</think>\n\n", think));
  EXPECT_FALSE(EndsInReasoning("", think));
  EXPECT_FALSE(EndsInReasoning("x", {}));
}

}  // namespace
}  // namespace espalier
