// Reasoning, content and calls come out the same however the answer is cut into pieces.
#include "serving/output_parsers/output_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

const ReasoningTags kThink = {"<think>", "</think>"};

std::vector<Tool> Tools() {
  return {{"f",
           {{"type", "object"},
            {"properties", {{"a", {{"type", "integer"}}}, {"s", {{"type", "string"}}}}}}},
          {"g", nullptr}};
}

struct Whole {
  std::string reasoning, text;
  std::string order;  // the text with the calls at their positions
  Calls calls;
  std::vector<std::string> ids;
  bool called = false;

  void Add(const OutputDelta& part) {
    reasoning += part.reasoning;
    text += part.text;
    size_t at = 0;
    for (const ToolCallDelta& call : part.calls) {
      ASSERT_LE(at, call.text_before);
      ASSERT_LE(call.text_before, part.text.size());
      order += part.text.substr(at, call.text_before - at) + call.name + call.arguments;
      at = call.text_before;
      if (!call.id.empty()) {
        calls.emplace_back(call.name, "");
        ids.push_back(call.id);
      }
      ASSERT_EQ(call.index, static_cast<int>(calls.size()) - 1);
      calls.back().second += call.arguments;
    }
    order += part.text.substr(at);
  }
};

// `pieces` of 0: all at once; otherwise pieces of 1 to that many bytes.
Whole Read(const OutputParserOptions& options, const std::string& answer, size_t pieces,
           std::mt19937* random) {
  OutputParser parser(options);
  Whole out;
  for (size_t at = 0; at < answer.size();) {
    const size_t n = pieces == 0 ? answer.size() : 1 + (*random)() % pieces;
    out.Add(parser.Append(answer.substr(at, n)));
    at += n;
  }
  out.Add(parser.Finish());
  out.called = parser.has_tool_calls();
  return out;
}

struct Case {
  const ToolCallParser* tool_parser;
  std::string answer;
  std::string text;
  Calls calls = {};
  std::string reasoning = "";
  ToolChoice choice = ToolChoice::kAuto;
  bool begins_in_reasoning = false;
};

// Removes whitespace from JSON arguments.
Calls Compact(Calls calls) {
  for (auto& [name, arguments] : calls) {
    const auto parsed =
        nlohmann::ordered_json::parse(arguments, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_discarded()) arguments = parsed.dump();
  }
  return calls;
}

void Check(const std::vector<Case>& cases) {
  std::mt19937 random(4);
  for (const Case& test : cases) {
    SCOPED_TRACE(test.answer);
    OutputParserOptions options;
    options.reasoning = kThink;
    options.begins_in_reasoning = test.begins_in_reasoning;
    options.tool_parser = test.tool_parser;
    options.tools = Tools();
    options.choice = test.choice;
    options.named_tool = "f";
    options.id = "call";
    Whole first;
    for (int trial = 0; trial < 60; ++trial) {
      const size_t pieces = trial == 0 ? 0 : trial < 10 ? 1 : 7;
      const Whole got = Read(options, test.answer, pieces, &random);
      if (trial == 0) first = got;
      EXPECT_EQ(got.text, test.text);
      EXPECT_EQ(got.reasoning, test.reasoning);
      EXPECT_EQ(got.calls, first.calls);
      EXPECT_EQ(got.order, first.order);
      EXPECT_EQ(Compact(got.calls), Compact(test.calls));
      EXPECT_EQ(got.called, !test.calls.empty());
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(OutputParser, FindsCallsInEveryFormat) {
  const ToolCallParser* hermes = &HermesToolCallParser();
  const ToolCallParser* llama = &LlamaToolCallParser();
  const ToolCallParser* mistral = &MistralToolCallParser();
  const ToolCallParser* phi = &PhiToolCallParser();
  const ToolCallParser* coder = &Qwen3CoderToolCallParser();
  const ToolCallParser* python = &PythonicToolCallParser();
  const ToolCallParser* deepseek = &DeepSeekV3ToolCallParser();
  const Calls one = {{"f", R"({"a":1})"}}, two = {{"f", R"({"a":1})"}, {"g", R"({"b":[2]})"}};
  Check({
      {hermes, "Let me see <b>", "Let me see <b>"},
      {hermes,
       "I try.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call> "
       R"(<tool_call>{"name":"g","arguments":{"b":[2]}}</tool_call>)",
       "I try.", two},
      {hermes, R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>Done.)", "Done.", one},
      {hermes,
       R"(A<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>B<tool_call>{"name": "g", )"
       R"("arguments": {"b":[2]}}</tool_call>C)",
       "ABC", two},
      {hermes, R"( {"name": "f", "parameters": {"a": 1}})", "", one},
      {hermes, R"({"name": "nobody", "parameters": {}})",
       R"({"name": "nobody", "parameters": {}})"},
      {hermes, R"({"name": "f", "param)", R"({"name": "f", "param)"},
      {hermes, "<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>"},
      {hermes, "x <tool_call>{", "x <tool_call>{"},
      {hermes, "{", "{"},
      // Once its arguments have begun, it is a call, whatever follows.
      {hermes, R"(<tool_call>{"name": "f", "arguments": {"s": "x)", "", {{"f", R"({"s": "x)"}}},
      {hermes,
       R"(<tool_call>{"name": "f", "arguments": {"s": "x</tool_call>Next.)",
       "",
       {{"f", R"({"s": "x</tool_call>Next.)"}}},
      {hermes,
       R"(<tool_call>{"name": "f", "arguments": {"a": [1</tool_call>Next.)",
       "Next.",
       {{"f", R"({"a": [1)"}}},
      {hermes, R"(<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>Next.)", "Next.", one},
      {hermes,
       R"(<tool_call>{"name": "f", "arguments": {"s": "\"</tool_call>"}}</tool_call>)",
       "",
       {{"f", R"({"s":"\"</tool_call>"})"}}},
      {hermes, R"(<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>)", "", one},
      {llama, R"({"name": "f", "parameters": {"a": 1}} and so on)", "and so on", one},
      {llama, R"({"type": "function", "name": "f", "parameters": {"a": 1}})", "", one},
      {llama, R"(<|python_tag|>{"name": "f", "parameters": {"a": 1}})", "", one},
      {llama, R"({"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {"b": [2]}})",
       "", two},
      {llama, R"({"name": "f", "parameters": {"s": "x; {y"}})", "", {{"f", R"({"s":"x; {y"})"}}},
      {llama, "[1, 2] is a list", "[1, 2] is a list"},
      {mistral,
       R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments":)"
       R"( {"b": [2]}}])",
       "", two},
      {mistral, R"([{"name": "f", "arguments": {"a": 1}}])", "", one},
      {mistral, R"(Yes.[TOOL_CALLS]f[ARGS]{"a":1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{"b":[2]})",
       "Yes.", two},
      {mistral, R"([TOOL_CALLS]f{"a":1})", "", one},
      {mistral, "[TOOL_CALLS]nobody[ARGS]{}", "[TOOL_CALLS]nobody[ARGS]{}"},
      {mistral, "[TOOL and more", "[TOOL and more"},
      {mistral, R"([TOOLS or not [TOOL_CALLS]f{"a":1})", "[TOOLS or not ", one},
      {phi, R"(<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>)", "", one},
      {phi, R"(functools[{"name": "f", "arguments": {"a": 1}}])", "", one},
      {phi, "functional", "functional"},
      {coder,
       "Hm.\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</"
       "tool_call>",
       "Hm.\n", one},
      {coder,
       "<tool_call>\n<function=f>\n<parameter=s>\n12\n\n</parameter>\n</function>\n</tool_call>",
       "",
       {{"f", R"({"s":"12\n"})"}}},
      {coder,
       "<tool_call><function=g><parameter=b>[2]</parameter></function></tool_call>",
       "",
       {{"g", R"({"b":[2]})"}}},
      {coder,
       "<tool_call><function=f><parameter=a>one</parameter></function></tool_call>",
       "",
       {{"f", R"({"a":"one"})"}}},
      {coder, "<tool_call><function=g></function></tool_call>", "", {{"g", "{}"}}},
      {python, "[f(a=1), g(b=[2])]", "", two},
      {python, "f(a = 1)", "f(a = 1)"},  // without brackets it may be prose about a call
      {python, "<|tool_call_start|>[f(a=1)]<|tool_call_end|>Soon.", "Soon.", one},
      {python, "<|python_tag|>f(a=1)", "", one},
      {python, R"([f(s='it\'s "x" [1')])", "", {{"f", R"({"s":"it's \"x\" [1"})"}}},
      {python, R"([{"name": "f", "arguments": {"a": 1}}])", "", one},
      {python, "[nobody()]", "[nobody()]"},
      {python, "[f(1)]", "[f(1)]"},
      {python, "[f(a=1]", "[f(a=1]"},
      {python, "[1, 2]", "[1, 2]"},
      {deepseek,
       "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
       "1}\n"
       "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{\"b\": "
       "[2]}\n"
       "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "Hm.", two},
      {deepseek,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
       "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{\"b\": [2]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "", two},
      {deepseek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}", "", one},
      {deepseek, "<｜tool▁calls▁begin｜>f<｜tool▁sep｜>{}<｜tool▁calls▁end｜>",
       "<｜tool▁calls▁begin｜>f<｜tool▁sep｜>{}<｜tool▁calls▁end｜>"},
      {coder, "<tool_call><function=f><parameter=a>1</function></tool_call>", "", one},
      {coder,
       "<tool_call>\n<function=f>\n<parameter=s>\ngrüße \"你\"\n</func\n</parameter>\n"
       "<parameter=a>\n1\n</parameter>\n</function>\n<function=g>\n</function>\n</tool_call>Done.",
       "Done.",
       {{"f", R"({"s":"grüße \"你\"\n</func","a":1})"}, {"g", "{}"}}},
      {coder,
       "<tool_call><function=f><parameter=s>\n\n</parameter></function></tool_call>",
       "",
       {{"f", R"({"s":""})"}}},
      {coder, "<tool_call><function=f><parameter=s>ab\n", "", {{"f", R"({"s":"ab)"}}},
      {coder,
       "<tool_call><function=f>nonsense</function></tool_call>Next.",
       "Next.",
       {{"f", "{}"}}},
      {coder, "<tool_call><function=nobody></function></tool_call>",
       "<tool_call><function=nobody></function></tool_call>"},
  });
}

// Streaming must not change whether there is a call.
TEST(OutputParser, TextThatBeginsWithABracketIsStreamed) {
  for (const ToolCallParser* tool_parser :
       {&HermesToolCallParser(), &LlamaToolCallParser(), &PythonicToolCallParser()}) {
    for (const std::string begin :
         {"[1", "[ \"a\"", "[[1", "[]", "[fg(", "[h", "{\"answer\"", "[{\"answer\"", "{}", "{1",
          "[{\"names\"", "{\"names\\n", "{\"x\\u0041\""}) {
      SCOPED_TRACE(absl::StrCat(tool_parser->name(), " ", begin));
      OutputParserOptions options{
          .tool_parser = tool_parser, .tools = Tools(), .choice = ToolChoice::kAuto};
      OutputParser parser(options);
      EXPECT_EQ(parser.Append(begin).text, begin);
      EXPECT_EQ(parser.Append(" and so on").text, " and so on");
    }
    for (const std::string begin : {"[", "[ ", "[[", "[f", "[f (", "{", "{\"na",
                                    "[[{\"name\": ", "{\"parameters\"", "{\"\\u006e"}) {
      SCOPED_TRACE(absl::StrCat(tool_parser->name(), " ", begin));
      OutputParserOptions options{
          .tool_parser = tool_parser, .tools = Tools(), .choice = ToolChoice::kAuto};
      OutputParser parser(options);
      EXPECT_EQ(parser.Append(begin).text, "") << "it may become a call";
      EXPECT_EQ(parser.Finish().text, begin);
    }
  }
}

TEST(OutputParser, TextBehindAStreamedCallIsKept) {
  const ToolCallParser* hermes = &HermesToolCallParser();
  const ToolCallParser* llama = &LlamaToolCallParser();
  const ToolCallParser* mistral = &MistralToolCallParser();
  const ToolCallParser* marked = &MistralArgsToolCallParser();
  const ToolCallParser* phi = &PhiToolCallParser();
  const ToolCallParser* coder = &Qwen3CoderToolCallParser();
  const ToolCallParser* deepseek = &DeepSeekV3ToolCallParser();
  const std::string f = R"({"name": "f", "arguments": {"a": 1}})";
  // The name comes too late, or the arguments are no object.
  const std::string late = R"({"arguments": {"b": [2]}, "name": "g"})";
  const std::string quoted = R"({"name": "g", "arguments": "{\"b\": [2]}"})";
  const std::string unknown = R"({"name": "nobody", "arguments": {}})";
  const Calls one = {{"f", R"({"a":1})"}}, two = {{"f", R"({"a":1})"}, {"g", R"({"b":[2]})"}};
  std::vector<Case> cases;
  for (const std::string& second : {late, quoted}) {
    for (const char* separator : {",", ", ", ",\n "}) {
      const std::string list = "[" + f + separator + second + "]";
      cases.push_back({hermes, "<tool_call>" + list + "</tool_call> Done.", "Done.", two});
      cases.push_back({hermes, "<tool_call>\n" + list + "\n</tool", "", two});
      cases.push_back({hermes, list, "", two});
      cases.push_back({hermes, list, "", two, "", ToolChoice::kRequired});
      cases.push_back({phi, "<|tool_call|>" + list + "<|/tool_call|>", "", two});
      cases.push_back({phi, "functools" + list, "", two});
      cases.push_back({mistral, "[TOOL_CALLS] " + list, "", two});
      cases.push_back(
          {mistral, "[TOOL_CALLS]" + list + "[TOOL_CALLS]" + f, "", {two[0], two[1], one[0]}});
    }
    cases.push_back({llama, f + "; " + second, "", two});
    cases.push_back({llama, "<|python_tag|>" + f + "; " + second, "", two});
    cases.push_back({hermes, "<tool_call>" + f + "\n" + second + "</tool_call>", "", two});
  }
  const std::string list = "[" + f + ", " + unknown + "]";
  for (const std::string& end : {std::string("</tool_call>"), std::string()}) {
    cases.push_back({hermes, "<tool_call>" + list + end, unknown + "]", one});
  }
  cases.push_back(
      {hermes, "<tool_call>" + list + "</tool_call>\nDone.", unknown + "]\nDone.", one});
  cases.push_back({phi, "functools" + list, unknown + "]", one});
  cases.push_back({mistral, "[TOOL_CALLS]" + list, unknown + "]", one});
  cases.push_back({llama, f + "; " + unknown, unknown, one});
  cases.push_back({llama, "<|python_tag|>" + f + "; so", "so", one});
  cases.push_back(
      {marked, "[TOOL_CALLS]f[ARGS]{\"a\":1} so [TOOL_CALLS]g[ARGS]{\"b\":[2]}", "so ", two});
  // Other members of the object are not content.
  const std::string id = R"({"name": "f", "arguments": {"a": 1}, "id": "x]}", "more": [{}]})";
  cases.push_back({mistral, "[TOOL_CALLS][" + id + "," + late + "]", "", two});
  cases.push_back({hermes, "<tool_call>" + id + "</tool_call>", "", one});
  cases.push_back({hermes, id.substr(0, id.size() - 9), "", one});
  cases.push_back({coder,
                   "<tool_call><function=f><parameter=a>1</parameter></function>\n"
                   "<function=nobody></function></tool_call>",
                   "<function=nobody></function>", one});
  const std::string begin = "<｜tool▁call▁begin｜>", sep = "<｜tool▁sep｜>",
                    end = "<｜tool▁call▁end｜>";
  const std::string call = begin + "function" + sep + "f\n```json\n{\"a\": 1}\n```" + end;
  const std::string other = begin + "function" + sep + "nobody\n```json\n{}\n```" + end;
  cases.push_back({deepseek,
                   "<｜tool▁calls▁begin｜>" + call + "\n" + other + "<｜tool▁calls▁end｜>", other,
                   one});
  for (size_t cut = 0; cut < end.size() + 4; ++cut) {
    cases.push_back(
        {deepseek, "<｜tool▁calls▁begin｜>" + call.substr(0, call.size() - cut), "", one});
  }
  Check(cases);
}

// parallel_tool_calls: false has no grammar to enforce it where the answer is free.
TEST(OutputParser, SingleCallEndsTheAnswerAtTheSecondCall) {
  std::mt19937 random(5);
  const std::string f = R"({"name": "f", "arguments": {"a":1}})";
  const std::string g = R"({"name": "g", "arguments": {}})";
  // Its arguments cannot be streamed.
  const std::string late = R"({"arguments": {"a":1}, "name": "f"})";
  const auto hermes = [](const std::string& call) {
    return "<tool_call>\n" + call + "\n</tool_call>";
  };
  struct {
    const ToolCallParser* tool_parser;
    std::string answer, text;
    bool over;
  } cases[] = {
      {&HermesToolCallParser(), "Hm. " + hermes(f) + "\n" + hermes(g) + " and more", "Hm. ", true},
      {&HermesToolCallParser(), hermes(f) + " Then " + hermes(f) + hermes(g), "Then ", true},
      {&HermesToolCallParser(), hermes(late) + hermes(late) + hermes(g), "", true},
      {&HermesToolCallParser(), hermes(f) + " And that is it.", "And that is it.", false},
      {&HermesToolCallParser(), "[" + f + ", " + g + "]", "", true},
      {&HermesToolCallParser(), "[" + late + ", " + late + "]", "", true},
      {&MistralToolCallParser(), "[TOOL_CALLS] [" + f + ", " + g + "]", "", true},
      {&MistralArgsToolCallParser(), "[TOOL_CALLS]f[ARGS]{\"a\":1}[TOOL_CALLS]g[ARGS]{}", "", true},
      {&LlamaToolCallParser(), f + "; " + g, "", true},
  };
  for (const auto& c : cases) {
    for (const size_t pieces : {0, 1, 7}) {
      OutputParserOptions options;
      options.tool_parser = c.tool_parser;
      options.tools = Tools();
      options.choice = ToolChoice::kAuto;
      options.single_call = true;
      OutputParser parser(options);
      Whole read;
      for (size_t at = 0; at < c.answer.size();) {
        const size_t n = pieces == 0 ? c.answer.size() : 1 + random() % pieces;
        read.Add(parser.Append(c.answer.substr(at, n)));
        at += n;
      }
      read.Add(parser.Finish());
      EXPECT_EQ(read.calls, (Calls{{"f", R"({"a":1})"}})) << c.answer;
      EXPECT_EQ(read.text, c.text) << c.answer;
      EXPECT_TRUE(parser.has_tool_calls()) << c.answer;
      EXPECT_EQ(parser.done(), c.over) << c.answer;
    }
  }
}

TEST(OutputParser, JsonArgumentsAreStreamed) {
  OutputParserOptions options;
  options.tool_parser = &HermesToolCallParser();
  options.tools = Tools();
  options.choice = ToolChoice::kAuto;
  OutputParser parser(options);
  OutputDelta part = parser.Append("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"lo");
  ASSERT_EQ(part.calls.size(), 1u);
  EXPECT_EQ(part.calls[0].name, "f");
  EXPECT_EQ(part.calls[0].arguments, "{\"s\": \"lo");
  part = parser.Append("ng\"");
  ASSERT_EQ(part.calls.size(), 1u);
  EXPECT_EQ(part.calls[0].id, "");
  EXPECT_EQ(part.calls[0].arguments, "ng\"");
  part = parser.Append("}}\n</tool_call>");
  EXPECT_EQ(part.calls[0].arguments, "}");
  EXPECT_TRUE(parser.Finish().calls.empty());
}

TEST(OutputParser, XmlStringParametersAreStreamed) {
  OutputParserOptions options;
  options.tool_parser = &Qwen3CoderToolCallParser();
  options.tools = Tools();
  options.choice = ToolChoice::kAuto;
  OutputParser parser(options);
  OutputDelta part = parser.Append("<tool_call>\n<function=f>\n<parameter=s>\nlo");
  ASSERT_EQ(part.calls.size(), 1u);
  EXPECT_EQ(part.calls[0].name, "f");
  EXPECT_EQ(part.calls[0].arguments, R"({"s":"lo)");
  part = parser.Append("ng \"text\"\n");
  ASSERT_EQ(part.calls.size(), 1u);
  EXPECT_EQ(part.calls[0].arguments, R"(ng \"text\")");
  part = parser.Append("of lines\n</parameter>\n<parameter=a>\n12");
  EXPECT_EQ(part.calls[0].arguments, R"(\nof lines","a":)");
  part = parser.Append("3\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(part.calls[0].arguments, "123}");
  EXPECT_TRUE(parser.Finish().calls.empty());
}

TEST(OutputParser, SplitsReasoningFromContent) {
  const ToolCallParser* hermes = &HermesToolCallParser();
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)";
  const Calls one = {{"f", R"({"a":1})"}};
  const ToolChoice none = ToolChoice::kNone;
  Check({
      {hermes,
       "<think>\nHm, \n so </thi.\n</think>\n\nYes\n",
       "Yes\n",
       {},
       "Hm, \n so </thi.",
       none},
      {hermes, "\n<think>a</think>b", "b", {}, "a", none},
      {hermes, "<think>\n\n</think>\n\nYes", "Yes", {}, "", none},
      {hermes, "No thoughts <think>x</think>", "No thoughts <think>x</think>", {}, "", none},
      {hermes, "<thin ice", "<thin ice", {}, "", none},
      {hermes, "<think>never done \n", "", {}, "never done", none},
      {hermes, "so it is\n</think>\nYes </think>", "Yes </think>", {}, "so it is", none, true},
      {hermes, "<think>hm</think>\n\n" + call, "", one, "hm"},
      {hermes, "<think>" + call + "</think>no", "no", {}, call},
      {hermes, R"(hm</think>{"name": "f", "parameters": {"a": 1}})", "", one, "hm",
       ToolChoice::kAuto, true},
      {hermes, R"(<think>hm</think> [{"name": "f", "arguments": {"a": 1}}])", "", one, "hm",
       ToolChoice::kRequired},
      {hermes,
       R"(<think>hm</think> {"a": 5})",
       "",
       {{"f", R"({"a": 5})"}},
       "hm",
       ToolChoice::kNamed},
      {hermes,
       R"({"name": "f", "parameters": {}})",
       R"({"name": "f", "parameters": {}})",
       {},
       "",
       none},
  });
}

// Mistral's template refuses all other ids when the call comes back.
TEST(OutputParser, MistralIdsHaveNineLettersAndDigits) {
  std::mt19937 random(4);
  std::set<std::string> ids;
  for (uint64_t request = 0; request < 50; ++request) {
    OutputParserOptions options;
    options.tool_parser = &MistralToolCallParser();
    options.tools = Tools();
    options.choice = ToolChoice::kAuto;
    options.id = "call";
    options.short_id = request;
    const Whole got =
        Read(options, R"([TOOL_CALLS][{"name":"f","arguments":{}},{"name":"g","arguments":{}}])", 5,
             &random);
    ASSERT_EQ(got.ids.size(), 2u);
    for (const std::string& id : got.ids) {
      EXPECT_EQ(id.size(), 9u);
      EXPECT_EQ(id.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz"), std::string::npos);
      EXPECT_TRUE(ids.insert(id).second) << id;
    }
    options.tool_parser = &HermesToolCallParser();
    const Whole plain =
        Read(options, R"([{"name":"f","arguments":{}},{"name":"g","arguments":{}}])", 5, &random);
    EXPECT_EQ(plain.ids, (std::vector<std::string>{"call-0", "call-1"}));
  }
}

}  // namespace
}  // namespace espalier
