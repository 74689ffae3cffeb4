// Chats on a real engine with a scripted model: reasoning, tool calls and constraints in the
// replies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/testing/fake_clock.h"
#include "server/inference/field_error.h"
#include "server/inference/requests/generation.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/tokenizer/tokenizer_files.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr char kThinking[] =
    "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}{{ m.content }}\n{% endfor %}"
    "{{ tools | length if tools else '' }}[TOOL_CALLS]a:{{ '[ARGS]'[:0] }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}";
constexpr char kBegunThinking[] =
    "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ '</think>'[:0] }}<think>\n";

// A tokenizer of single ASCII characters, plus what a test adds. `pattern`: an optional
// pre-tokenizer regex.
std::string TokenizerText(const std::string& pattern) {
  Json vocabulary = Json::object();
  for (char c = '!'; c <= '~'; ++c) vocabulary[std::string(1, c)] = vocabulary.size();
  vocabulary["\u0120"] = vocabulary.size();  // space
  vocabulary["\u010a"] = vocabulary.size();  // newline
  Json added = Json::array();
  for (const auto& [content, special] : {std::pair{"<think>", false},
                                         {"</think>", false},
                                         {"[TOOL_CALLS]", true},
                                         {"[ARGS]", true},
                                         {"[THINK]", true},
                                         {"[/THINK]", true},
                                         {"<eos>", true}}) {
    added.push_back({{"id", vocabulary.size() + added.size()},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  const Json level = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", false},
                      {"use_regex", false}};
  Json cut = level;
  if (!pattern.empty()) {
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    cut = {{"type", "Sequence"}, {"pretokenizers", {split, level}}};
  }
  return Json{{"added_tokens", added},
              {"pre_tokenizer", cut},
              {"decoder", level},
              {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}}
      .dump();
}

struct Said {
  std::string text, reasoning, reason;
  std::string order;  // text and calls in their order
  int replies = 0;    // with content
  std::vector<v1::ToolCall> calls;
  v1::Usage usage;
  absl::Status error;
};

class ChatAnswerTest : public testing::Test {
 protected:
  void Serve(const std::string& chat_template, const std::string& pattern = "") {
    TokenizerFiles files;
    files.tokenizer_json = TokenizerText(pattern);
    files.tokenizer_config_json =
        Json{{"eos_token", "<eos>"}, {"chat_template", chat_template}}.dump();
    auto tokenizer = LoadTokenizer(files);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *tokenizer;
    EngineParts parts;
    parts.tokenizer = tokenizer_;
    parts.chat = *ChatTemplate::Create(*ReadTokenizerConfig(files));
    const int vocabulary = tokenizer_->vocabulary();
    parts.llm = std::make_unique<FakeModelRunner>(
        FakeModelRunner::LargeLimits(vocabulary), [this, vocabulary](absl::Span<const int> path) {
          std::vector<float> logits(static_cast<size_t>(vocabulary), 0);
          // If a grammar forbids the scripted token, the last allowed one is taken.
          for (int i = 0; i < vocabulary; ++i) logits[static_cast<size_t>(i)] = 0.001f * i;
          const size_t at = path.size() - prompt_;
          const int next = path.size() < prompt_ ? 0
                           : at < script_.size() ? script_[at]
                                                 : tokenizer_->eos()[0];
          logits[static_cast<size_t>(next)] = 5;
          return logits;
        });
    model_ = std::make_shared<LoadedModel>();
    EngineOptions options;
    options.max_requests = 4;
    auto engine = AsyncEngine::Create(std::move(parts), options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    model_->engine = *std::move(engine);
    model_->grammars = std::make_unique<GrammarCache>(tokenizer_);
    model_->clock = &clock_;
  }

  static v1::GenerateRequest Ask(const std::string& content = "hi") {
    v1::GenerateRequest request;
    v1::ChatTurn* turn = request.mutable_chat()->add_turns();
    turn->set_role("user");
    turn->set_content(content);
    return request;
  }
  static void AddTool(v1::GenerateRequest* request) {
    request->mutable_chat()->add_tools(
        R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "properties": {"a": {"type": "integer"}}, "required": ["a"]}}})");
  }

  Said Say(const v1::GenerateRequest& request, const std::string& answer) {
    Said said;
    auto prompt = PromptOf(request, *model_);
    if (prompt.ok()) prompt_ = prompt->tokens.size();
    script_ = *tokenizer_->TryEncode(answer, {.parse_special = true});
    absl::Notification done;
    auto generation = StartGeneration(
        request, model_, &models_, nullptr,
        [&](const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
          if (!reply.ok()) {
            said.error = reply.status();
          } else {
            said.text += reply->text();
            said.reasoning += reply->reasoning();
            if (!reply->text().empty() || !reply->tool_calls().empty()) ++said.replies;
            size_t at = 0;
            for (const v1::ToolCall& call : reply->tool_calls()) {
              const size_t before = static_cast<size_t>(call.text_before());
              said.order += reply->text().substr(at, before - at) + call.name() + call.arguments();
              at = before;
              if (call.index() == static_cast<int>(said.calls.size())) {
                said.calls.push_back(call);
              } else {
                said.calls.back().mutable_arguments()->append(call.arguments());
              }
            }
            said.order += reply->text().substr(at);
            if (!reply->finish_reason().empty()) said.reason = reply->finish_reason();
            if (last) said.usage = reply->usage();
          }
          if (last) done.Notify();
        });
    if (!generation.ok()) {
      said.error = generation.status();
      return said;
    }
    done.WaitForNotification();
    return said;
  }

  FakeClock clock_;
  ModelServer models_{{}};
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<LoadedModel> model_;
  size_t prompt_ = 0;
  std::vector<int> script_;
};

TEST_F(ChatAnswerTest, ReasoningIsSeparatedAndCounted) {
  Serve(kThinking);
  const Said said = Say(Ask(), "<think>\nhm\n</think>\n\nYes.");
  EXPECT_EQ(said.reasoning, "hm");
  EXPECT_EQ(said.text, "Yes.");
  EXPECT_EQ(said.reason, "stop");
  EXPECT_EQ(said.usage.reasoning_tokens(), 6);  // including both tags and both newlines
  EXPECT_EQ(said.usage.completion_tokens(), 13);
  const Said none = Say(Ask(), "Yes.");
  EXPECT_EQ(none.text, "Yes.");
  EXPECT_TRUE(none.usage.has_reasoning_tokens());
  EXPECT_EQ(none.usage.reasoning_tokens(), 0);
  // Within an answer the tag is text.
  const Said late = Say(Ask(), "Yes <think>hm</think>.");
  EXPECT_EQ(late.text, "Yes <think>hm</think>.");
  EXPECT_EQ(late.usage.reasoning_tokens(), 0);
  v1::GenerateRequest raw = Ask();
  raw.mutable_chat()->set_reasoning_in_text(true);
  EXPECT_EQ(Say(raw, "<think>hm</think>Yes.").text, "<think>hm</think>Yes.");
  // Completions are not parsed.
  v1::GenerateRequest completion;
  completion.set_text("hi");
  completion.set_max_tokens(50);
  EXPECT_EQ(Say(completion, "<think>hm</think>Yes.").text, "<think>hm</think>Yes.");
}

TEST_F(ChatAnswerTest, PromptMayOpenReasoning) {
  Serve(kBegunThinking);
  const Said said = Say(Ask(), "hm\n</think>\nYes.");
  EXPECT_EQ(said.reasoning, "hm");
  EXPECT_EQ(said.text, "Yes.");
  EXPECT_EQ(said.usage.reasoning_tokens(), 4);
  // Truncated within the reasoning, there is no answer.
  v1::GenerateRequest shorter = Ask();
  shorter.set_max_tokens(1);
  const Said cut = Say(shorter, "hm\n</think>\nYes.");
  EXPECT_EQ(cut.reasoning, "h");
  EXPECT_EQ(cut.text, "");
  EXPECT_EQ(cut.reason, "length");
}

TEST_F(ChatAnswerTest, ContinuationResumesOpenReasoning) {
  Serve(kThinking);
  v1::GenerateRequest request = Ask();
  v1::ChatTurn* turn = request.mutable_chat()->add_turns();
  turn->set_role("assistant");
  turn->set_content("<think>first");
  request.mutable_chat()->set_continue_final_message(true);
  EXPECT_EQ(Say(request, " then</think>Yes.").reasoning, "then");
  turn->set_content("<think>first</think>Y");
  EXPECT_EQ(Say(request, "es.").text, "es.");
}

TEST_F(ChatAnswerTest, ConstraintStartsAfterReasoning) {
  for (const bool begun : {false, true}) {
    Serve(begun ? kBegunThinking : kThinking);
    v1::GenerateRequest request = Ask();
    request.mutable_structured_output()->set_regex("[0-9]{3}");
    const std::string thoughts = begun ? "h<1>m</think>\n" : "<think>h<1>m</think>\n";
    Said said = Say(request, thoughts + "123");
    EXPECT_EQ(said.reasoning, "h<1>m") << said.error;
    EXPECT_EQ(said.text, "123");
    EXPECT_EQ(said.reason, "stop");
    // The constraint applies there: letters are not allowed.
    said = Say(request, thoughts + "abc");
    EXPECT_THAT(said.text, testing::MatchesRegex("[0-9]{3}"));
    if (!begun) {
      EXPECT_EQ(Say(request, "456").text, "456");
      // With reasoning_in_text, the reasoning is outside the constraint.
      request.mutable_chat()->set_reasoning_in_text(true);
      EXPECT_THAT(Say(request, thoughts + "123").text, testing::MatchesRegex("[0-9]{3}"));
    }
  }
}

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

TEST_F(ChatAnswerTest, ConstraintStartsAfterSpecialTokenReasoning) {
  Serve("{% for m in messages %}{{ m.content }}\n{% endfor %}{{ '[THINK]'[:0] }}");
  v1::GenerateRequest request = Ask();
  request.mutable_structured_output()->set_regex("[0-9]{3}");
  Said said = Say(request, "[THINK]h1m[/THINK]123");
  EXPECT_EQ(said.reasoning, "h1m") << said.error;
  EXPECT_EQ(said.text, "123");
  said = Say(request, "[THINK]h1m[/THINK]abc");
  EXPECT_EQ(said.reasoning, "h1m") << said.error;
  EXPECT_THAT(said.text, testing::MatchesRegex("[0-9]{3}"));
  EXPECT_EQ(Say(request, "456").text, "456");
  // Outside chats, special tokens have no text and match no constraint.
  v1::GenerateRequest completion;
  completion.set_text("hi");
  completion.set_max_tokens(8);
  completion.mutable_structured_output()->set_regex(".{1,3}");
  EXPECT_THAT(Say(completion, "[THINK][THINK]").text, testing::MatchesRegex(".{1,3}"));
}

TEST_F(ChatAnswerTest, StructuralTagAppliesAfterItsTrigger) {
  Serve(kThinking);
  v1::GenerateRequest request = Ask();
  v1::StructuralTag* tag = request.mutable_structured_output()->mutable_structural_tag();
  v1::StructuralTag::Structure* structure = tag->add_structures();
  structure->set_begin("<n>");
  structure->set_json_schema(R"({"type": "integer", "minimum": 10, "maximum": 99})");
  structure->set_end("</n>");
  tag->add_triggers("<n");
  EXPECT_EQ(Say(request, "So: <n>42</n> or <n>17</n>.").text, "So: <n>42</n> or <n>17</n>.");
  EXPECT_THAT(Say(request, "<n>x").text, testing::MatchesRegex("<n>[1-9][0-9]</n>.*"));
  tag->set_triggers(0, "<m");
  EXPECT_THAT(Say(request, "").error.ToString(), HasSubstr("which no trigger does"));
  tag->set_triggers(0, "<n");
  structure->set_json_schema(R"({"unevaluatedItems": {}})");
  EXPECT_THAT(Say(request, "").error.ToString(), HasSubstr("section 0, '<n>': json_schema"));
}

TEST_F(ChatAnswerTest, InvalidChoicesAreNamed) {
  Serve(kThinking);
  v1::GenerateRequest request = Ask();
  request.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  EXPECT_THAT(Say(request, "").error.ToString(), HasSubstr("there are no tools"));
  AddTool(&request);
  request.mutable_structured_output()->mutable_structural_tag()->add_triggers("<n");
  EXPECT_THAT(Say(request, "").error.ToString(), HasSubstr("exclude a structural tag"));
  request.clear_structured_output();
  request.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_NAMED);
  request.mutable_chat()->set_named_tool("nobody");
  EXPECT_THAT(Say(request, "").error.ToString(), HasSubstr("'nobody'"));
  EXPECT_EQ(FieldOf(Say(request, "").error), "tool_choice");
  request.mutable_chat()->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  request.mutable_chat()->add_tools(
      R"({"function": {"name": "g", "parameters": {"unevaluatedItems": {}}}})");
  EXPECT_THAT(Say(request, "").error.ToString(), HasSubstr("\"g\", \"arguments\": ': json_schema"));
  request.mutable_chat()->set_tools(1, "[1]");
  EXPECT_THAT(Say(request, "").error.ToString(), HasSubstr("tools[1]"));
}

// As in vLLM, prompts and rendered chats are tokenized with special tokens, so untrusted text may
// contain them. Bad words are plain text.
TEST_F(ChatAnswerTest, SpecialTokensInPromptTextAreParsed) {
  Serve("{{ messages[0].content }}");
  const int eos = tokenizer_->TokenId("<eos>");
  ASSERT_GE(eos, 0);
  v1::GenerateRequest text;
  text.set_text("a<eos>b");
  for (const auto& request : {text, Ask("a<eos>b")}) {
    const auto prompt = PromptOf(request, *model_);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    ASSERT_EQ(prompt->tokens.size(), 3u);
    EXPECT_EQ(prompt->tokens[1], eos);
  }
  text.mutable_sampling()->add_bad_words("<eos>");
  EXPECT_EQ(Say(text, "hi").reason, "stop") << "the token is not what the words forbid";
}

// Retrying cannot help: ResourceExhausted is for a full queue.
TEST_F(ChatAnswerTest, PromptBeyondTokenizerLimitsIsAClientError) {
  const auto refused = [&](const v1::GenerateRequest& request, const char* field,
                           const char* remedy) {
    const absl::Status status = Say(request, "").error;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(FieldOf(status), field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(remedy));
  };
  Serve("{% for a in messages %}{% for b in messages %}{{ b.role[:0] }}{% endfor %}{% endfor %}hi");
  v1::GenerateRequest chat = Ask();
  EXPECT_EQ(Say(chat, "ok").text, "ok");
  for (int i = 0; i < 3000; ++i) *chat.mutable_chat()->add_turns() = chat.chat().turns(0);
  refused(chat, "messages", "steps; shorten the conversation");

  Serve("{{ messages[0].content }}", "(a+)+[bc]");
  const std::string costly(4000, 'a');
  v1::GenerateRequest text;
  text.set_text(costly);
  refused(text, "prompt", "; shorten the text");
  refused(Ask(costly), "messages", "; shorten the conversation");
  text.set_text("hi");
  text.mutable_sampling()->add_bad_words(costly.substr(0, kMaxBadWordBytes));
  refused(text, "bad_words", "; shorten the word");
}

TEST_F(ChatAnswerTest, ReasoningEffortNeedsTemplateSupport) {
  Serve(kThinking);
  v1::GenerateRequest request = Ask();
  request.mutable_chat()->set_reasoning_effort("none");
  const auto prompt = PromptOf(request, *model_);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  std::string text;
  for (const int token : prompt->tokens) text += tokenizer_->TokenBytes(token);
  EXPECT_THAT(text, testing::EndsWith("</think>\n\n"));
  EXPECT_FALSE(prompt->begins_in_reasoning);
  request.mutable_chat()->set_reasoning_effort("low");
  EXPECT_THAT(Say(request, "").error.ToString(), HasSubstr("can only think or not"));
  Serve("{{ messages[0].content }}");
  EXPECT_THAT(Say(request, "").error.ToString(), HasSubstr("does not ask for it"));
  Serve("{{ messages[0].content }}{{ reasoning_effort }}");
  EXPECT_EQ(PromptOf(request, *model_)->tokens.size(), 5u);  // "hilow"
}

}  // namespace
}  // namespace espalier
