// Stream events add up to the whole answer, in an order from which clients can build it.
#include "server/http/responses/responses_formatter.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/testing/parse_sse.h"
#include "server/http/testing/split_replies.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;
using ::testing::ElementsAre;

ResponseHead Head() {
  return {
      .id = "resp_1", .model = "lm", .created_unix_seconds = 7, .echo = {{"tools", json::array()}}};
}

v1::GenerateReply Reply(const std::string& reasoning, const std::string& text) {
  v1::GenerateReply reply;
  reply.set_reasoning(reasoning);
  reply.set_text(text);
  return reply;
}

void AddCall(v1::GenerateReply* reply, int index, const std::string& id, const std::string& name,
             const std::string& arguments) {
  v1::ToolCall* call = reply->add_tool_calls();
  call->set_index(index);
  call->set_id(id);
  call->set_name(name);
  call->set_arguments(arguments);
}

// Reasoning, text and two calls, split at arbitrary places.
std::vector<v1::GenerateReply> Replies() {
  std::vector<v1::GenerateReply> replies = {Reply("hm", ""), Reply(", so", "Let"),
                                            Reply("", " me see"), Reply("", "")};
  AddCall(&replies[3], 0, "a", "rain", "");
  AddCall(&replies[3], 0, "", "", "{\"city\":");
  replies.push_back(Reply("", ""));
  AddCall(&replies[4], 0, "", "", "\"Ur\"}");
  AddCall(&replies[4], 1, "b", "wind", "{}");
  return replies;
}

v1::GenerateReply Last(const std::string& finish_reason) {
  v1::GenerateReply reply;
  reply.set_finish_reason(finish_reason);
  v1::Usage& usage = *reply.mutable_usage();
  usage.set_prompt_tokens(10);
  usage.set_cached_tokens(4);
  usage.set_completion_tokens(6);
  usage.set_reasoning_tokens(2);
  return reply;
}

std::vector<json> Parse(const std::vector<std::string>& events) {
  std::vector<json> out = ParseSse(events);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i]["sequence_number"], i);
  return out;
}

// A client that rebuilds the response from its events alone.
class Client {
 public:
  void See(const json& event) {
    const std::string type = event["type"];
    if (type == "response.output_item.added") {
      ASSERT_EQ(event["output_index"], items.size());
      items.push_back(event["item"]);
      return;
    }
    if (event.contains("response")) return;
    ASSERT_EQ(event["output_index"], items.size() - 1) << type;
    json& item = items.back();
    if (type == "response.output_item.done") {
      json status = event["item"];
      status["status"] = item["status"];
      EXPECT_EQ(status, item);
      item = event["item"];
      return;
    }
    EXPECT_EQ(event["item_id"], item["id"]);
    if (type == "response.content_part.added") {
      item["content"].push_back(event["part"]);
    } else if (type == "response.content_part.done") {
      EXPECT_EQ(event["part"], item["content"][event["content_index"].get<int>()]);
    } else if (type == "response.function_call_arguments.delta") {
      item["arguments"].get_ref<std::string&>() += event["delta"].get<std::string>();
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], item["arguments"]);
    } else {
      json& part = item["content"][event["content_index"].get<int>()];
      if (event.contains("delta")) {
        part["text"].get_ref<std::string&>() += event["delta"].get<std::string>();
      } else {
        EXPECT_EQ(event["text"], part["text"]) << type;
      }
    }
  }

  json items = json::array();
};

TEST(ResponsesFormatterTest, EventsBuildTheWholeAnswer) {
  ResponsesFormatter streamed(Head(), ItemIds("1"), true);
  ResponsesFormatter whole(Head(), ItemIds("1"), false);
  for (ResponsesFormatter* answer : {&streamed, &whole}) {
    answer->Begin();
    for (const v1::GenerateReply& reply : Replies()) answer->Add(0, reply);
    answer->Finish(Last("tool_calls"), 9);
    EXPECT_TRUE(answer->over());
  }
  EXPECT_EQ(streamed.Object(), whole.Object());
  Client client;
  std::vector<std::string> types;
  for (const json& event : Parse(streamed.TakeEvents())) {
    client.See(event);
    types.push_back(event["type"].get<std::string>().substr(9));
    if (types.back() == "completed") {
      EXPECT_EQ(event["response"], whole.Object());
    }
  }
  EXPECT_EQ(client.items, whole.Object()["output"]);
  EXPECT_THAT(types,
              ElementsAre("created", "in_progress",  //
                          "output_item.added", "content_part.added", "reasoning_text.delta",
                          "reasoning_text.delta", "reasoning_text.done", "content_part.done",
                          "output_item.done",  //
                          "output_item.added", "content_part.added", "output_text.delta",
                          "output_text.delta", "output_text.done", "content_part.done",
                          "output_item.done", "output_item.added", "function_call_arguments.delta",
                          "function_call_arguments.delta", "function_call_arguments.done",
                          "output_item.done",  //
                          "output_item.added", "function_call_arguments.delta",
                          "function_call_arguments.done", "output_item.done", "completed"));
  const json object = whole.Object();
  EXPECT_EQ(object["status"], "completed");
  EXPECT_EQ(object["completed_at"], 9);
  EXPECT_EQ(object["output"][0]["content"][0]["text"], "hm, so");
  EXPECT_EQ(object["output"][1]["content"][0]["text"], "Let me see");
  EXPECT_EQ(object["output"][2]["arguments"], R"({"city":"Ur"})");
  EXPECT_EQ(object["output"][3]["call_id"], "b");
  EXPECT_EQ(object["usage"]["total_tokens"], 16);
  EXPECT_EQ(object["usage"]["input_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(object["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
}

// Regression: text after a call closed the call with half of its arguments.
TEST(ResponsesFormatterTest, ResponseDoesNotDependOnReplySplits) {
  const std::vector<AnswerPart> parts = TextsBetweenCalls();
  const size_t end = 80;  // more than there are
  ResponseHead head = Head();
  head.with_logprobs = true;
  for (size_t first = 0; first < end; ++first) {
    for (size_t second = first; second < end; second += 5) {
      ResponsesFormatter answer(head, ItemIds("1"), false);
      answer.Begin();
      for (const auto& reply : SplitIntoReplies(parts, first, second)) answer.Add(0, reply);
      answer.Finish(Last("tool_calls"), 9);
      const json output = answer.Object()["output"];
      ASSERT_EQ(output.size(), parts.size()) << first << ", " << second << ": " << output;
      double begin = 0;
      for (size_t i = 0; i < parts.size(); begin += static_cast<double>(parts[i++].what.size())) {
        if (!parts[i].call_id.empty()) {
          ASSERT_EQ(output[i]["arguments"], parts[i].what) << first << ", " << second;
          continue;
        }
        const json& part = output[i]["content"][0];
        ASSERT_EQ(part["text"], parts[i].what) << first << ", " << second;
        std::string tokens;
        for (const json& token : part["logprobs"]) tokens += token["token"];
        ASSERT_EQ(tokens, parts[i].what) << first << ", " << second;
        ASSERT_EQ(part["logprobs"][0]["logprob"], -begin) << first << ", " << second;
      }
    }
  }
}

// The last token of a step with reasoning or a call may already be the first of a text.
TEST(ResponsesFormatterTest, HeldBackTextKeepsItsLogprobs) {
  ResponseHead head = Head();
  head.with_logprobs = true;
  const auto with_tokens = [](v1::GenerateReply reply, const std::vector<std::string>& tokens) {
    for (const std::string& token : tokens) reply.add_logprobs()->set_text(token);
    return reply;
  };
  v1::GenerateReply call;
  call.add_tool_calls()->set_id("call_1");
  call.mutable_tool_calls(0)->set_arguments("{}");
  for (const v1::GenerateReply& hidden : {Reply(" so", ""), call}) {
    ResponsesFormatter answer(head, ItemIds("1"), false);
    answer.Begin();
    answer.Add(0, with_tokens(hidden, {"I", " so", "<end>", "\n\n", "I"}));
    answer.Add(0, with_tokens(Reply("", "I am"), {" am"}));
    answer.Finish(Last("stop"), 9);
    const json output = answer.Object()["output"];
    const json& logprobs = output.back()["content"][0]["logprobs"];
    ASSERT_EQ(logprobs.size(), 2u) << output;
    EXPECT_EQ(logprobs[0]["token"], "I");
    EXPECT_EQ(logprobs[1]["token"], " am");
  }
}

TEST(ResponsesFormatterTest, AnAnswerThatIsCutOffSaysSo) {
  ResponsesFormatter answer(Head(), ItemIds("1"), true);
  answer.Begin();
  answer.Add(0, Reply("", "In the"));
  // In the middle of it.
  EXPECT_EQ(answer.Object()["status"], "in_progress");
  EXPECT_EQ(answer.Object()["output"][0]["status"], "in_progress");
  EXPECT_EQ(answer.Object()["output"][0]["content"][0]["text"], "In the");
  answer.Finish(Last("length"), 9);
  const json object = answer.Object();
  EXPECT_EQ(object["status"], "incomplete");
  EXPECT_EQ(object["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(object["output"][0]["status"], "incomplete");
  EXPECT_EQ(Parse(answer.TakeEvents()).back()["type"], "response.incomplete");
}

// A client executes what a completed response calls.
TEST(ResponsesFormatterTest, ACallThatAStopStringCutOffIsIncomplete) {
  struct {
    const char *reason, *rest, *status, *item_status;
  } cases[] = {{"stop", "\"U", "incomplete", "incomplete"},
               {"length", "\"U", "incomplete", "incomplete"},
               {"length", "\"Ur\"}", "incomplete", "completed"},
               {"stop", "\"Ur\"}", "incomplete", "completed"},  // the next call was cut off
               {"tool_calls", "\"Ur\"}", "completed", "completed"}};
  for (const auto& test : cases) {
    SCOPED_TRACE(absl::StrCat(test.reason, " ", test.rest));
    ResponsesFormatter answer(Head(), ItemIds("1"), true);
    answer.Begin();
    v1::GenerateReply reply;
    AddCall(&reply, 0, "a", "rain", absl::StrCat("{\"city\":", test.rest));
    answer.Add(0, reply);
    answer.Finish(Last(test.reason), 9);
    const json object = answer.Object();
    EXPECT_EQ(object["status"], test.status);
    EXPECT_EQ(object["output"][0]["status"], test.item_status);
    EXPECT_EQ(object["completed_at"].is_null(), object["status"] == "incomplete");
    EXPECT_EQ(Parse(answer.TakeEvents()).back()["type"], absl::StrCat("response.", test.status));
  }
}

TEST(ResponsesFormatterTest, FailuresAndCancelsKeepWhatThereIs) {
  ResponsesFormatter failed(Head(), ItemIds("1"), true);
  failed.Begin();
  failed.Add(0, Reply("", "In"));
  failed.Fail({.http_status = 503, .message = "a worker is lost"});
  EXPECT_EQ(failed.Object()["status"], "failed");
  EXPECT_EQ(failed.Object()["error"]["code"], "server_error");
  EXPECT_EQ(failed.Object()["error"]["message"], "a worker is lost");
  EXPECT_EQ(failed.Object()["output"][0]["content"][0]["text"], "In");
  EXPECT_EQ(Parse(failed.TakeEvents()).back()["type"], "response.failed");

  ResponsesFormatter cancelled(Head(), ItemIds("1"), true);
  cancelled.Queue();
  EXPECT_EQ(cancelled.Object()["status"], "queued");
  cancelled.Begin();
  cancelled.Cancel();
  EXPECT_EQ(cancelled.Object()["status"], "cancelled");
  EXPECT_EQ(Parse(cancelled.TakeEvents()).size(), 3);  // created once: queued, in_progress
}

TEST(ResponsesFormatterTest, LogprobsAreThoseOfTheText) {
  ResponseHead head = Head();
  head.with_logprobs = true;
  head.include_reasoning = false;
  ResponsesFormatter answer(head, ItemIds("1"), true);
  const auto add = [&](v1::GenerateReply reply, const std::vector<std::string>& tokens) {
    for (const std::string& token : tokens) reply.add_logprobs()->set_text(token);
    answer.Add(0, reply);
  };
  answer.Begin();
  add(Reply("hm", ""), {"<think>", "hm"});
  add(Reply(", so", "Le"), {", so", "</think>\n", "L", "e", "\n"});  // the last token is held back
  add(Reply("", ""), {"\xC3"});                         // half a character: its text comes later
  add(Reply("", "\n\xC3\xA9."), {"\xA9", ".", "END"});  // a stop string has no text
  v1::GenerateReply call = Reply("", "");
  AddCall(&call, 0, "a", "rain", "{}");
  add(call, {"<call>", "{}"});
  answer.Finish(Last("tool_calls"), 9);
  const json object = answer.Object();
  ASSERT_EQ(object["output"].size(), 2);  // reasoning was not requested
  const json& part = object["output"][0]["content"][0];
  EXPECT_EQ(part["text"], "Le\n\xC3\xA9.");
  ASSERT_EQ(part["logprobs"].size(), 6);
  EXPECT_EQ(part["logprobs"][0]["token"], "L");
  EXPECT_EQ(part["logprobs"][3]["bytes"], json::array({0xC3}));
  EXPECT_EQ(part["logprobs"][5]["token"], ".");
  json streamed = json::array();
  for (const json& event : Parse(answer.TakeEvents())) {
    if (event["type"] != "response.output_text.delta") continue;
    streamed.insert(streamed.end(), event["logprobs"].begin(), event["logprobs"].end());
  }
  EXPECT_EQ(streamed, part["logprobs"]);
}

TEST(ResponsesFormatterTest, ASpaceThatIsNotShownMovesNoLogprob) {
  ResponseHead head = Head();
  head.with_logprobs = true;
  ResponsesFormatter answer(head, ItemIds("1"), false);
  v1::GenerateReply reply = Reply("", "In the.");
  for (const char* token : {" In", " the", ".", "\n"}) reply.add_logprobs()->set_text(token);
  answer.Begin();
  answer.Add(0, reply);
  answer.Finish(Last("stop"), 9);
  const json logprobs = answer.Object()["output"][0]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 3);
  EXPECT_EQ(logprobs[2]["token"], ".");
}

}  // namespace
}  // namespace espalier::openai
