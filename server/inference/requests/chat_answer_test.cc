// Tests reasoning and constraints in the replies of chats.
#include "server/inference/field_error.h"
#include "server/inference/requests/chat_answer_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

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
