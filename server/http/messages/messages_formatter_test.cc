// Stream events add up to the whole message; stop reasons use the API's names.
#include "server/http/messages/messages_formatter.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/testing/parse_sse.h"
#include "server/http/testing/split_replies.h"

namespace espalier::anthropic {
namespace {

using json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

MessageHead Head() { return {.id = "msg_1", .model = "lm", .max_tokens = 6}; }

std::vector<v1::GenerateReply> Replies() {
  std::vector<v1::GenerateReply> replies(4);
  for (const int token : {5, 6, 7}) replies[0].add_prompt_tokens(token);
  replies[0].set_reasoning("hm");
  replies[1].set_reasoning(", so");
  replies[1].set_text("Let");
  replies[2].set_text(" me");
  v1::ToolCall* call = replies[2].add_tool_calls();
  call->set_id("call_1");
  call->set_name("rain");
  call->set_text_before(3);
  call = replies[2].add_tool_calls();
  call->set_arguments("{\"city\":");
  call->set_text_before(3);
  call = replies[3].add_tool_calls();
  call->set_arguments("\"Ur\"}");
  return replies;
}

v1::GenerateReply Last(const std::string& reason) {
  v1::GenerateReply reply;
  reply.set_finish_reason(reason);
  reply.mutable_usage()->set_prompt_tokens(3);
  reply.mutable_usage()->set_cached_tokens(2);
  reply.mutable_usage()->set_completion_tokens(6);
  reply.mutable_usage()->set_reasoning_tokens(2);
  return reply;
}

TEST(MessagesFormatterTest, EventsBuildTheWholeMessage) {
  MessagesFormatter streamed(Head(), true), whole(Head(), false);
  for (MessagesFormatter* answer : {&streamed, &whole}) {
    answer->Begin();
    for (const v1::GenerateReply& reply : Replies()) answer->Add(0, reply);
    answer->Finish(Last("tool_calls"), 0);
    EXPECT_TRUE(answer->over());
  }
  EXPECT_EQ(streamed.Object(), whole.Object());
  EXPECT_TRUE(whole.TakeEvents().empty());
  // Rebuilds the message as clients do: blocks start empty, deltas are appended, tool input is
  // parsed at the end.
  json message;
  std::string input;
  std::vector<std::string> types;
  for (const json& event : ParseSse(streamed.TakeEvents())) {
    types.push_back(event["type"]);
    if (types.back() == "message_start") {
      message = event["message"];
      EXPECT_EQ(message["usage"]["input_tokens"], 3);
      EXPECT_EQ(message["content"], json::array());
      EXPECT_TRUE(message["stop_reason"].is_null());
    } else if (types.back() == "content_block_start") {
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
    } else if (types.back() == "content_block_delta") {
      json& block = message["content"][event["index"].get<int>()];
      const json& delta = event["delta"];
      if (delta["type"] == "text_delta") {
        block["text"].get_ref<std::string&>() += delta["text"].get<std::string>();
      } else if (delta["type"] == "thinking_delta") {
        block["thinking"].get_ref<std::string&>() += delta["thinking"].get<std::string>();
      } else {
        input += delta["partial_json"].get<std::string>();
      }
    } else if (types.back() == "content_block_stop" && !input.empty()) {
      message["content"].back()["input"] = json::parse(input);
    } else if (types.back() == "message_delta") {
      message["stop_reason"] = event["delta"]["stop_reason"];
      message["usage"] = event["usage"];
    }
  }
  EXPECT_EQ(message, whole.Object());
  EXPECT_THAT(types,
              ElementsAre("message_start",  //
                          "content_block_start", "content_block_delta", "content_block_delta",
                          "content_block_stop",  //
                          "content_block_start", "content_block_delta", "content_block_delta",
                          "content_block_stop",  //
                          "content_block_start", "content_block_delta", "content_block_delta",
                          "content_block_stop",  //
                          "message_delta", "message_stop"));
  EXPECT_EQ(message["content"][0]["thinking"], "hm, so");
  EXPECT_EQ(message["content"][2]["input"]["city"], "Ur");
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(message["usage"]["input_tokens"], 1);
  EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 2);
  EXPECT_EQ(message["usage"]["output_tokens_details"]["thinking_tokens"], 2);
}

// Regression: text after a call closed the call with half of its arguments.
TEST(MessagesFormatterTest, MessageDoesNotDependOnReplySplits) {
  const std::vector<AnswerPart> parts = TextsBetweenCalls();
  const size_t end = 60;  // more than there are
  for (size_t first = 0; first < end; ++first) {
    for (size_t second = first; second < end; second += 5) {
      MessagesFormatter answer(Head(), false);
      for (const auto& reply : SplitIntoReplies(parts, first, second)) answer.Add(0, reply);
      answer.Finish(Last("tool_calls"), 0);
      const json content = answer.Object()["content"];
      ASSERT_EQ(content.size(), parts.size()) << first << ", " << second << ": " << content;
      for (size_t i = 0; i < parts.size(); ++i) {
        const json& block = content[i];
        const std::string& what = parts[i].what;
        if (parts[i].call_id.empty()) {
          ASSERT_EQ(block["text"], what) << first << ", " << second;
        } else {
          ASSERT_EQ(block["input"], json::parse(what)) << first << ", " << second;
        }
      }
    }
  }
}

TEST(MessagesFormatterTest, StopReasons) {
  const auto ended = [](v1::GenerateReply last, int max_tokens = 6) {
    MessageHead head = Head();
    head.max_tokens = max_tokens;
    MessagesFormatter answer(head, false);
    answer.Add(0, last);
    answer.Finish(last, 0);
    return std::pair{answer.Object()["stop_reason"], answer.Object()["stop_sequence"]};
  };
  EXPECT_EQ(ended(Last("stop")), std::pair(json("end_turn"), json()));
  EXPECT_EQ(ended(Last("length")), std::pair(json("max_tokens"), json()));
  EXPECT_EQ(ended(Last("length"), 7), std::pair(json("model_context_window_exceeded"), json()));
  v1::GenerateReply stopped = Last("stop");
  stopped.set_stop_string("END");
  EXPECT_EQ(ended(stopped), std::pair(json("stop_sequence"), json("END")));
}

TEST(MessagesFormatterTest, HiddenThinkingAndTruncatedCalls) {
  MessageHead head = Head();
  head.include_thinking = false;
  MessagesFormatter answer(head, false);
  for (size_t i = 0; i < 3; ++i) answer.Add(0, Replies()[i]);
  answer.Finish(Last("length"), 0);
  const json content = answer.Object()["content"];
  ASSERT_EQ(content.size(), 2);
  EXPECT_EQ(content[0]["text"], "Let me");
  EXPECT_EQ(content[1]["input"], json::object());
}

// Models may write anything; copying a value recurses per level.
TEST(MessagesFormatterTest, ArgumentsThatNestWithoutEndAreNoInput) {
  MessagesFormatter answer(Head(), false);
  v1::GenerateReply reply;
  v1::ToolCall* call = reply.add_tool_calls();
  call->set_id("call_1");
  call->set_name("rain");
  call->set_arguments("{\"a\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}");
  answer.Add(0, reply);
  answer.Finish(Last("tool_calls"), 0);
  EXPECT_EQ(answer.Object()["content"][0]["input"], json::object());
}

TEST(MessagesFormatterTest, AnErrorInTheMidstIsAnEvent) {
  MessagesFormatter answer(Head(), true);
  answer.Add(0, Replies()[0]);
  answer.Fail({.http_status = 503, .message = "a worker is lost"});
  const std::vector<json> events = ParseSse(answer.TakeEvents());
  EXPECT_EQ(events.back()["error"]["type"], "overloaded_error");
  EXPECT_THAT(events.back()["error"]["message"].get<std::string>(), HasSubstr("worker"));
}

}  // namespace
}  // namespace espalier::anthropic
