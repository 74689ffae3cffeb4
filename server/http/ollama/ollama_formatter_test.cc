// Lines of a stream add up to the whole answer; calls are whole; counts and durations are told.
#include "server/http/ollama/ollama_formatter.h"

#include <memory>

#include "base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/testing/split_replies.h"

namespace espalier::ollama {
namespace {

using json = nlohmann::ordered_json;
using ::testing::ElementsAre;

AnswerForm ChatForm() { return {.model = "lm:latest", .chat = true}; }

v1::GenerateReply LastReply(const std::string& reason) {
  v1::GenerateReply reply;
  reply.set_finish_reason(reason);
  v1::Usage* usage = reply.mutable_usage();
  usage->set_prompt_tokens(3);
  usage->set_completion_tokens(6);
  usage->set_seconds_queued(0.25);
  usage->set_seconds_to_first_token(1);
  usage->set_seconds(3.5);
  return reply;
}

class OllamaFormatterTest : public ::testing::Test {
 protected:
  std::unique_ptr<OllamaFormatter> Answer(const AnswerForm& form, bool streams,
                                          const std::vector<v1::GenerateReply>& replies,
                                          const std::string& reason) {
    auto answer = std::make_unique<OllamaFormatter>(form, &clock_, streams);
    answer->Begin();
    for (const v1::GenerateReply& reply : replies) answer->Add(0, reply);
    const v1::GenerateReply last = LastReply(reason);
    answer->Add(0, last);
    answer->Finish(last, 0);
    return answer;
  }

  static std::vector<json> Lines(OllamaFormatter& answer) {
    std::vector<json> lines;
    for (const std::string& event : answer.TakeEvents()) {
      EXPECT_EQ(event.find('\n'), event.size() - 1) << event;
      lines.push_back(json::parse(event));
    }
    return lines;
  }

  FakeClock clock_;
};

TEST_F(OllamaFormatterTest, LinesAddUpToTheWholeAnswerHoweverItIsSplit) {
  for (size_t first = 0; first < 80; first += 7) {
    const std::vector<v1::GenerateReply> replies =
        SplitIntoReplies(TextsBetweenCalls(), first, first + 11);
    const json whole = Answer(ChatForm(), false, replies, "tool_calls")->Object();
    const auto streamed = Answer(ChatForm(), true, replies, "tool_calls");
    std::string content;
    json calls = json::array();
    const std::vector<json> lines = Lines(*streamed);
    for (const json& line : lines) {
      EXPECT_EQ(line["done"], &line == &lines.back());
      EXPECT_EQ(line["model"], "lm:latest");
      EXPECT_EQ(line["created_at"], "1970-01-12T13:46:40Z");
      EXPECT_EQ(line["message"]["role"], "assistant");
      content += line["message"]["content"].get<std::string>();
      for (const json& call : line["message"].value("tool_calls", json::array())) {
        calls.push_back(call);
      }
    }
    EXPECT_EQ(content, "Let me see.And there?Now I wait.");
    EXPECT_EQ(content, whole["message"]["content"]);
    EXPECT_EQ(calls, whole["message"]["tool_calls"]);
    ASSERT_EQ(calls.size(), 2);
    EXPECT_EQ(calls[1]["id"], "call_2");
    EXPECT_EQ(calls[1]["function"]["index"], 1);
    EXPECT_EQ(calls[1]["function"]["name"], "rain");
    EXPECT_EQ(calls[1]["function"]["arguments"], (json{{"city", "And there? Uz"}}));
    EXPECT_EQ(lines.back()["message"]["content"], "");
    json last = whole;
    last["message"] = lines.back()["message"];
    EXPECT_EQ(lines.back(), last);
  }
}

TEST_F(OllamaFormatterTest, CallThatIsCutIsNoCall) {
  const std::vector<v1::GenerateReply> replies =
      SplitIntoReplies({{"call_1", R"({"city":"Ur"})"}, {"call_2", R"({"ci)"}}, 5, 15);
  for (const bool streams : {false, true}) {
    const auto answer = Answer(ChatForm(), streams, replies, "length");
    json calls = json::array();
    const std::vector<json> parts = streams ? Lines(*answer) : std::vector<json>{answer->Object()};
    for (const json& part : parts) {
      for (const json& call : part["message"].value("tool_calls", json::array())) {
        calls.push_back(call);
      }
    }
    ASSERT_EQ(calls.size(), 1);
    EXPECT_EQ(calls[0]["id"], "call_1");
    EXPECT_EQ(parts.back()["done_reason"], "length");
  }
}

TEST_F(OllamaFormatterTest, CountsAndDurationsInNanoseconds) {
  v1::GenerateReply reply;
  reply.set_text("Noah.");
  const json answer = Answer({.model = "lm"}, false, {reply}, "stop")->Object();
  EXPECT_EQ(answer["response"], "Noah.");
  EXPECT_EQ(answer["done_reason"], "stop");
  EXPECT_EQ(answer["total_duration"], 3'500'000'000);
  EXPECT_EQ(answer["load_duration"], 250'000'000);
  EXPECT_EQ(answer["prompt_eval_count"], 3);
  EXPECT_EQ(answer["prompt_eval_duration"], 750'000'000);
  EXPECT_EQ(answer["eval_count"], 6);
  EXPECT_EQ(answer["eval_duration"], 2'500'000'000);
  EXPECT_FALSE(answer.contains("context") || answer.contains("thinking") ||
               answer.contains("logprobs"));
}

TEST_F(OllamaFormatterTest, ContextHoldsTheConversation) {
  v1::GenerateReply first, second;
  for (const int token : {5, 6}) first.add_prompt_tokens(token);
  first.add_tokens(7);
  second.add_tokens(8);
  const AnswerForm form{.model = "lm", .context = true};
  for (const bool streams : {false, true}) {
    const auto answer = Answer(form, streams, {first, second}, "stop");
    EXPECT_THAT(answer->Object()["context"], ElementsAre(5, 6, 7, 8));
  }
}

TEST_F(OllamaFormatterTest, ThinkingIsApartAndMayBeLeftOut) {
  v1::GenerateReply reply;
  reply.set_reasoning("hm");
  reply.set_text("Noah.");
  EXPECT_EQ(Answer(ChatForm(), false, {reply}, "stop")->Object()["message"]["thinking"], "hm");
  AnswerForm hidden = ChatForm();
  hidden.include_thinking = false;
  EXPECT_FALSE(Answer(hidden, false, {reply}, "stop")->Object()["message"].contains("thinking"));
}

TEST_F(OllamaFormatterTest, ErrorIsALine) {
  OllamaFormatter answer(ChatForm(), &clock_, true);
  answer.Fail({.message = "no worker"});
  EXPECT_TRUE(answer.over());
  EXPECT_THAT(answer.TakeEvents(), ElementsAre("{\"error\":\"no worker\"}\n"));
}

}  // namespace
}  // namespace espalier::ollama
