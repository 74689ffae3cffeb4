// Tests tool calls in the replies of chats.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "server/inference/field_error.h"
#include "server/inference/requests/chat_answer_fixture.h"
#include "server/inference/requests/schema_warnings.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST_F(ChatAnswerTest, CallsInSpecialTokensAreFound) {
  Serve(kThinking);
  v1::GenerateRequest request = Ask();
  AddTool(&request);
  const std::string call = "<think>hm</think>[TOOL_CALLS]f[ARGS]{\"a\": 1}";
  const Said said = Say(request, call);
  ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
  EXPECT_EQ(said.calls[0].name(), "f");
  EXPECT_EQ(said.calls[0].arguments(), "{\"a\": 1}");
  EXPECT_EQ(said.calls[0].id().size(), 9u);
  EXPECT_EQ(said.reason, "tool_calls");
  EXPECT_EQ(said.reasoning, "hm");
  EXPECT_EQ(said.text, "");
  // Without tools, the tag is an ordinary special token: no text.
  request.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_NONE);
  EXPECT_EQ(Say(request, "[TOOL_CALLS]f[ARGS]{}").text, "f{}");
}

// The model chooses, and only the request forbids a second call.
TEST_F(ChatAnswerTest, SingleToolCallEndsAtTheSecondCall) {
  Serve("{% for m in messages %}{{ m.content }}{% endfor %}");
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string answer = call + "\n" + call + std::string(400, 'x');
  v1::GenerateRequest request = Ask();
  AddTool(&request);
  request.set_max_tokens(900);
  const Said both = Say(request, answer);
  ASSERT_TRUE(both.error.ok()) << both.error;
  EXPECT_EQ(both.calls.size(), 2u);
  request.mutable_chat()->set_single_tool_call(true);
  const Said one = Say(request, answer);
  ASSERT_TRUE(one.error.ok()) << one.error;
  ASSERT_EQ(one.calls.size(), 1u);
  EXPECT_EQ(Json::parse(one.calls[0].arguments())["a"], 1);
  EXPECT_EQ(one.text, "");
  EXPECT_EQ(one.reason, "tool_calls");
  EXPECT_LT(one.usage.completion_tokens(), both.usage.completion_tokens() - 100);
  // Two answers at once behave the same.
  request.set_n(2);
  EXPECT_EQ(Say(request, answer).reason, "tool_calls");
}

// A partial match of a stop string holds the answer back, and one reply brings all of it.
TEST_F(ChatAnswerTest, ReplyRecordsTextOffsetOfEachCall) {
  Serve("{% for m in messages %}{{ m.content }}{% endfor %}");
  const auto call = [](int a) {
    return absl::StrCat("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", a,
                        "}}</tool_call>");
  };
  const std::string answer = absl::StrCat("One.", call(1), "Two.", call(2), "I wait.");
  v1::GenerateRequest request = Ask();
  AddTool(&request);
  request.set_max_tokens(300);
  const Said apart = Say(request, answer);
  ASSERT_TRUE(apart.error.ok()) << apart.error;
  EXPECT_EQ(apart.order, "One.f{\"a\": 1}Two.f{\"a\": 2}I wait.");
  request.add_stop(answer.substr(2) + "!");
  const Said together = Say(request, answer);
  EXPECT_LE(together.replies, 3);
  EXPECT_GT(apart.replies, 20);
  EXPECT_EQ(together.order, apart.order);
  EXPECT_EQ(together.reason, "tool_calls");
  // The same for an answer chosen by best_of.
  request.clear_stop();
  request.set_best_of(2);
  const Said best = Say(request, answer);
  EXPECT_EQ(best.replies, 1);
  EXPECT_EQ(best.order, apart.order) << best.error;
}

TEST_F(ChatAnswerTest, OversizedToolsAreRejectedByName) {
  Serve("{% for m in messages %}{{ m.content }}{% endfor %}");
  const auto refused = [&](const Json& parameters) {
    v1::GenerateRequest request = Ask();
    AddTool(&request);
    request.mutable_chat()->add_tools(
        Json{{"type", "function"},
             {"function", {{"name", "big"}, {"strict", true}, {"parameters", parameters}}}}
            .dump());
    return Say(request, "hi").error;
  };
  const absl::Status large =
      refused({{"type", "object"}, {"$defs", {{"d", {{"const", std::string(1 << 20, 'x')}}}}}});
  EXPECT_EQ(large.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(large), "tools");
  EXPECT_THAT(large.message(), HasSubstr("tools[1]"));
  EXPECT_THAT(large.message(), HasSubstr("at most 1048576"));
  // Small, but each parameter may refer to the shared definitions.
  Json shared = {{"type", "object"}, {"$defs", {{"d", {{"const", std::string(100000, 'x')}}}}}};
  for (int i = 0; i < 1000; ++i) shared["properties"]["p" + std::to_string(i)] = Json::object();
  const absl::Status many = refused(shared);
  EXPECT_EQ(FieldOf(many), "tools");
  EXPECT_THAT(many.message(), HasSubstr("tools[1] ('big')"));
  EXPECT_THAT(many.message(), HasSubstr("once for each of the properties"));
}

TEST_F(ChatAnswerTest, RequiredCallIsMade) {
  Serve(kThinking);
  v1::GenerateRequest request = Ask();
  AddTool(&request);
  request.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  request.mutable_chat()->set_single_tool_call(true);
  const std::string call = R"([{"name": "f", "arguments": {"a": 12}}])";
  for (const std::string& thoughts : {std::string(), std::string("<think>hm</think>")}) {
    const Said said = Say(request, thoughts + call);
    ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
    EXPECT_EQ(Json::parse(said.calls[0].arguments()), Json({{"a", 12}}));
    EXPECT_EQ(said.reason, "tool_calls");
  }
  request.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_NAMED);
  request.mutable_chat()->set_named_tool("f");
  const Said named = Say(request, R"(<think>hm</think>{"a": 7})");
  ASSERT_EQ(named.calls.size(), 1u) << named.error;
  EXPECT_EQ(named.calls[0].name(), "f");
  EXPECT_EQ(Json::parse(named.calls[0].arguments()), Json({{"a", 7}}));
  EXPECT_EQ(named.reasoning, "hm");
}

// Clients execute the calls of an answer that ends with "tool_calls".
TEST_F(ChatAnswerTest, ACallThatIsCutOffIsNotFinished) {
  Serve("{% for m in messages %}{{ m.content }}{% endfor %}");
  const std::string call = R"({"name": "f", "arguments": {"a": 12}})";
  const std::string other = R"({"name": "f", "arguments": {"a": 3}})";
  const std::string in_head = R"(me": "f", "arguments": {"a": 3)";
  struct {
    v1::ToolChoice choice;
    std::string answer, stop;
    int max_tokens;
    std::string reason, text;
    std::vector<std::string> arguments;
  } cases[] = {
      {v1::TOOL_CHOICE_NAMED, R"({"a": 12})", "", 100, "tool_calls", "", {R"({"a": 12})"}},
      {v1::TOOL_CHOICE_NAMED, R"({"a": 12})", "2", 100, "stop", "", {R"({"a": 1)"}},
      {v1::TOOL_CHOICE_NAMED, R"({"a": 12})", "{", 100, "stop", "", {}},
      {v1::TOOL_CHOICE_NAMED, R"({"a": 12})", "", 4, "length", "", {R"({"a")"}},
      {v1::TOOL_CHOICE_REQUIRED, "[" + call + "]", "12", 100, "stop", "", {R"({"a": )"}},
      {v1::TOOL_CHOICE_REQUIRED, "[" + call + "]", "argu", 100, "stop", "", {}},
      {v1::TOOL_CHOICE_REQUIRED, "[" + call + "]", "]", 100, "tool_calls", "", {R"({"a": 12})"}},
      {v1::TOOL_CHOICE_REQUIRED, "[" + call + "]", "", 9, "length", "", {}},
      {v1::TOOL_CHOICE_REQUIRED,
       "[" + call + ", " + call + "]",
       "",
       43,
       "length",
       "",
       {R"({"a": 12})"}},
      {v1::TOOL_CHOICE_REQUIRED,
       "[" + call + ", " + call + "]",
       ", {",
       100,
       "tool_calls",
       "",
       {R"({"a": 12})"}},
      {v1::TOOL_CHOICE_REQUIRED,
       "[" + call + ", " + other + "]",
       in_head,
       100,
       "stop",
       "",
       {R"({"a": 12})"}},
      {v1::TOOL_CHOICE_AUTO,
       "So.<tool_call>" + call + "</tool_call>",
       "12",
       100,
       "stop",
       "So.",
       {R"({"a": )"}},
      // Stop strings that end a call are usual.
      {v1::TOOL_CHOICE_AUTO,
       "So.<tool_call>" + call + "</tool_call>x",
       "</tool_call>",
       100,
       "tool_calls",
       "So.",
       {R"({"a": 12})"}},
      {v1::TOOL_CHOICE_AUTO,
       "<tool_call>" + call + "</tool_call><tool_call>" + other,
       in_head,
       200,
       "stop",
       R"(<tool_call>{"na)",
       {R"({"a": 12})"}},
      {v1::TOOL_CHOICE_AUTO,
       "<tool_call>" + call + "</tool_call>Now!",
       "!",
       100,
       "tool_calls",
       "Now",
       {R"({"a": 12})"}},
      // The model ended by itself, but not its call.
      {v1::TOOL_CHOICE_AUTO,
       R"(<tool_call>{"name": "f", "arguments": {"a": 1)",
       "",
       100,
       "stop",
       "",
       {R"({"a": 1)"}},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(absl::StrCat(test.answer, " / ", test.stop, " / ", test.max_tokens));
    v1::GenerateRequest request = Ask();
    AddTool(&request);
    request.mutable_chat()->set_tool_choice(test.choice);
    if (test.choice == v1::TOOL_CHOICE_NAMED) request.mutable_chat()->set_named_tool("f");
    if (!test.stop.empty()) request.add_stop(test.stop);
    request.set_max_tokens(test.max_tokens);
    const Said said = Say(request, test.answer);
    ASSERT_TRUE(said.error.ok()) << said.error;
    EXPECT_EQ(said.reason, test.reason);
    EXPECT_EQ(said.text, test.text);
    std::vector<std::string> arguments;
    for (const v1::ToolCall& made : said.calls) arguments.push_back(made.arguments());
    EXPECT_EQ(arguments, test.arguments);
  }
}

TEST_F(ChatAnswerTest, RequiredCallMayUseRefsInItsSchema) {
  Serve(kThinking);
  v1::GenerateRequest request = Ask();
  for (const char* name : {"f", "g"}) {
    request.mutable_chat()->add_tools(
        Json{{"function",
              {{"name", name},
               {"parameters",
                {{"type", "object"},
                 {"properties", {{"next", {{"$ref", "#"}}}, {"of", {{"$ref", "#/$defs/d"}}}}},
                 {"required", {"of"}},
                 {"$defs", {{"d", {{"const", name}}}}}}}}}}
            .dump());
  }
  request.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  const Said said =
      Say(request, R"([{"name": "g", "arguments": {"next": {"of": "g"}, "of": "g"}}, )"
                   R"({"name": "f", "arguments": {"of": "g"}}])");
  ASSERT_EQ(said.calls.size(), 2u) << said.text << said.error;
  EXPECT_EQ(Json::parse(said.calls[0].arguments()), Json::parse(R"({"next":{"of":"g"},"of":"g"})"));
  EXPECT_EQ(Json::parse(said.calls[1].arguments()), Json({{"of", "f"}}));
}

TEST_F(ChatAnswerTest, StrictToolCallsFollowTheSchema) {
  Serve(kThinking);
  v1::GenerateRequest request = Ask();
  request.mutable_chat()->add_tools(
      R"({"type": "function", "function": {"name": "f", "strict": true, "parameters": {
          "type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["a"], "additionalProperties": false}}})");
  // Text stays unconstrained.
  EXPECT_EQ(Say(request, "Well: [x]{\"a\": true}.").text, "Well: [x]{\"a\": true}.");
  const std::string thoughts = "<think>[TOOL]</think>";
  Said said = Say(request, thoughts + "I try.[TOOL_CALLS]f[ARGS]{\"a\": 7}");
  ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
  EXPECT_EQ(said.text, "I try.");
  EXPECT_EQ(said.reasoning, "[TOOL]");
  EXPECT_EQ(said.calls[0].arguments(), "{\"a\": 7}");
  // The model would write another name and a non-integer.
  said = Say(request, "[TOOL_CALLS]g[ARGS]{\"a\": 7}");
  ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
  EXPECT_EQ(said.calls[0].name(), "f");
  said = Say(request, "[TOOL_CALLS]f[ARGS]{\"a\": x}");
  ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
  EXPECT_THAT(said.calls[0].arguments(), testing::MatchesRegex(R"(\{"a": [1-9]\})"));
  // Without strict, the model is free.
  v1::GenerateRequest loose = Ask();
  AddTool(&loose);
  said = Say(loose, "[TOOL_CALLS]f[ARGS]{\"a\": x}");
  ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
  EXPECT_EQ(said.calls[0].arguments(), "{\"a\": x}");
  request.mutable_structured_output()->mutable_structural_tag()->add_triggers("<n");
  said = Say(request, "");
  EXPECT_THAT(said.error.ToString(), HasSubstr("exclude a structural tag"));
  EXPECT_EQ(FieldOf(said.error), "tools");
}

// "strict" promises the schema; a required call follows what of it can be followed.
TEST_F(ChatAnswerTest, OnlyStrictToolsRefuseWhatIsNotEnforced) {
  Serve(kThinking);
  v1::GenerateRequest request = Ask();
  Json tool = {{"function",
                {{"name", "f"},
                 {"parameters",
                  {{"type", "object"},
                   {"properties", {{"a", {{"type", "integer"}, {"format", "int32"}}}}},
                   {"required", {"a"}}}}}}};
  request.mutable_chat()->add_tools(tool.dump());
  EXPECT_THAT(SchemaWarnings(request), testing::IsEmpty()) << "nothing binds the answer";
  request.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  const Said said = Say(request, R"([{"name": "f", "arguments": {"a": 3}}])");
  ASSERT_EQ(said.calls.size(), 1u) << said.error;
  EXPECT_EQ(said.calls[0].arguments(), "{\"a\": 3}");
  EXPECT_THAT(SchemaWarnings(request),
              testing::ElementsAre("tool f: #/properties/a/format: \"int32\" is not enforced"));
  EXPECT_THAT(WarningHeader({"a\nb", "\xc3\xa9"}), "a?b; ??");
  tool["function"]["strict"] = true;
  *request.mutable_chat()->mutable_tools(0) = tool.dump();
  const Said refused = Say(request, "");
  EXPECT_EQ(FieldOf(refused.error), "tools");
  EXPECT_THAT(refused.error.ToString(), HasSubstr("int32"));
}

// Per-parameter formats cannot express constraints across parameters.
TEST_F(ChatAnswerTest, StrictToolsOfPerParameterParsersFollowTheSchema) {
  Serve(
      "{{ '<function=f><parameter=p>' if false }}{% for m in messages %}{{ m.content }}"
      "{% endfor %}");
  const auto asking = [&](const Json& parameters) {
    v1::GenerateRequest request = Ask();
    request.mutable_chat()->add_tools(
        Json{{"type", "function"},
             {"function", {{"name", "f"}, {"strict", true}, {"parameters", parameters}}}}
            .dump());
    return Say(request, "<tool_call>\n<function=f>\n</function>\n</tool_call>");
  };
  const Json properties = {{"id", {{"type", "integer"}, {"minimum", 1}, {"maximum", 9}}}};
  // As pydantic writes recursive models.
  const Said said = asking(
      {{"$ref", "#/$defs/n"},
       {"$defs", {{"n", {{"type", "object"}, {"properties", properties}, {"required", {"id"}}}}}}});
  ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
  EXPECT_THAT(said.calls[0].arguments(), testing::MatchesRegex(R"(\{"id": ?[1-9]\})"));
  const std::vector<std::pair<std::string, Json>> refused = {
      {"'anyOf'", {{"properties", properties}, {"anyOf", {{{"required", {"id"}}}}}}},
      {"'minProperties'", {{"properties", properties}, {"minProperties", 1}}},
      {"none of the properties", {{"properties", properties}, {"required", {"name"}}}},
      {"\"#\"", {{"properties", {{"next", {{"type", "array"}, {"items", {{"$ref", "#"}}}}}}}}},
      {"'maxLength'",
       {{"properties",
         {{"a", {{"anyOf", {{{"type", "string"}}, {{"type", "null"}}}}, {"maxLength", 5}}}}}}},
      {"'maxLength'",
       {{"properties", {{"a", {{"type", "string"}, {"enum", {"a", "bbbb"}}, {"maxLength", 1}}}}}}}};
  for (const auto& [what, parameters] : refused) {
    const Said wrong = asking(parameters);
    EXPECT_THAT(wrong.error.ToString(), HasSubstr(what)) << parameters;
    EXPECT_EQ(FieldOf(wrong.error), "tools") << parameters;
  }
}

// response_format applies to the text: the model may call a tool instead.
TEST_F(ChatAnswerTest, ResponseFormatWithToolsConstrainsTheText) {
  Serve(kThinking);
  for (const bool strict : {false, true}) {
    v1::GenerateRequest request = Ask();
    request.mutable_chat()->add_tools(Json{
        {"function",
         {{"name", "f"},
          {"strict", strict},
          {"parameters",
           {{"type", "object"},
            {"properties", {{"a", {{"type", "integer"}, {"minimum", 1}, {"maximum", 9}}}}},
            {"required", {"a"}},
            {"additionalProperties",
             false}}}}}}.dump());
    request.mutable_structured_output()->set_json_schema(
        R"({"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]})");
    for (const std::string& thoughts : {std::string(), std::string("<think>h</think>")}) {
      Said said = Say(request, thoughts + "[TOOL_CALLS]f[ARGS]{\"a\": 7}");
      ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
      EXPECT_EQ(said.calls[0].arguments(), "{\"a\": 7}");
      EXPECT_EQ(said.text, "");
      EXPECT_EQ(said.reason, "tool_calls");
      said = Say(request, thoughts + "{\"b\": true}");
      EXPECT_TRUE(said.calls.empty());
      EXPECT_EQ(said.text, "{\"b\": true}") << said.error;
      EXPECT_EQ(said.reason, "stop");
      // The model would write something else.
      said = Say(request, thoughts + "{\"b\": x}");
      const Json text = Json::parse(said.text, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(text.is_object()) << said.text << said.error;
      EXPECT_TRUE(text["b"].is_boolean()) << text;
      // Only a call or such a text can start here.
      said = Say(request, thoughts + "Well.");
      EXPECT_EQ(said.calls.size(), 1u) << said.text << said.error;
      if (!strict) continue;
      said = Say(request, thoughts + "[TOOL_CALLS]f[ARGS]{\"a\": x}");
      ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
      EXPECT_THAT(said.calls[0].arguments(), testing::MatchesRegex(R"(\{"a": [1-9]\})"));
    }
    // A required call leaves no text; its constraint must be valid even so.
    request.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
    const Said said = Say(request, R"([{"name": "f", "arguments": {"a": 3}}])");
    ASSERT_EQ(said.calls.size(), 1u) << said.text << said.error;
    EXPECT_EQ(said.calls[0].arguments(), "{\"a\": 3}");
    for (const auto choice : {v1::TOOL_CHOICE_REQUIRED, v1::TOOL_CHOICE_AUTO}) {
      request.mutable_chat()->set_tool_choice(choice);
      request.mutable_structured_output()->set_regex("(");
      const Said wrong = Say(request, "");
      EXPECT_THAT(wrong.error.ToString(), HasSubstr("regex"));
      EXPECT_EQ(FieldOf(wrong.error), "response_format");
      request.mutable_structured_output()->set_json_object(true);
    }
  }
}

}  // namespace
}  // namespace espalier
