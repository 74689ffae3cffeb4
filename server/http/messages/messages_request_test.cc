#include "server/http/messages/messages_request.h"

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier::anthropic {
namespace {

using json = nlohmann::json;
using ::testing::HasSubstr;

std::optional<openai::Error> Parse(const std::string& body, MessagesRequest* request) {
  return ParseMessages(Purpose::kAnswer, body, request);
}

TEST(MessagesRequestTest, BlocksBecomeTurns) {
  MessagesRequest request;
  const auto error = Parse(R"({
    "model": "lm", "max_tokens": 9, "system": [{"type": "text", "text": "Be brief.",
                                              "cache_control": {"type": "ephemeral"}}],
    "messages": [
      {"role": "user", "content": "Rain"},
      {"role": "user", "content": [{"type": "text", "text": "in "}, {"type": "text", "text": "Ur?"}]},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "ask", "signature": "x"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "a", "name": "rain", "input": {"city": "Ur"}},
        {"type": "tool_use", "id": "b", "name": "wind", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "calm"}]},
        {"type": "tool_result", "tool_use_id": "a", "is_error": true},
        {"type": "text", "text": "Well?"}]}]})",
                           &request);
  ASSERT_FALSE(error) << error->message;
  const v1::ChatPrompt& chat = request.generate.chat();
  ASSERT_EQ(chat.turns_size(), 6);
  EXPECT_EQ(chat.turns(0).role(), "system");
  EXPECT_EQ(chat.turns(1).content(), "Rain\nin Ur?");
  EXPECT_EQ(chat.turns(2).reasoning(), "ask");
  EXPECT_EQ(chat.turns(2).content(), "Let me see.");
  const json calls = json::parse(chat.turns(2).tool_calls());
  ASSERT_EQ(calls.size(), 2);
  EXPECT_EQ(calls[0]["function"]["arguments"], R"({"city":"Ur"})");
  EXPECT_EQ(chat.turns(3).role(), "tool");
  EXPECT_EQ(chat.turns(3).tool_call_id(), "b");
  EXPECT_EQ(chat.turns(3).content(), "calm");
  EXPECT_EQ(chat.turns(4).content(), "error");
  EXPECT_EQ(chat.turns(5).content(), "Well?");
  EXPECT_FALSE(chat.continue_final_message());
}

// Consecutive messages of one role are one turn; its calls were once reparsed for each message.
TEST(MessagesRequestTest, CallsOfManyMessagesInARowAreThoseOfOneTurn) {
  std::string messages = R"({"role": "user", "content": "x"})", results;
  constexpr int kCalls = 3000;
  for (int i = 0; i < kCalls; ++i) {
    absl::StrAppend(&messages,
                    R"(, {"role": "assistant", "content": [{"type": "tool_use", "id": "c)", i,
                    R"(", "name": "f", "input": {"text": ")", std::string(2000, 'x'), "\"}}]}");
    absl::StrAppend(&results, i > 0 ? "," : "", R"({"type": "tool_result", "tool_use_id": "c)", i,
                    "\"}");
  }
  MessagesRequest request;
  const absl::Time start = absl::Now();
  const auto error =
      Parse(absl::StrCat(R"({"model": "lm", "max_tokens": 9, "messages": [)", messages,
                         R"(, {"role": "user", "content": [)", results, "]}]}"),
            &request);
  ASSERT_FALSE(error) << error->message;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  const v1::ChatPrompt& chat = request.generate.chat();
  ASSERT_EQ(chat.turns_size(), 2 + kCalls);
  EXPECT_EQ(json::parse(chat.turns(1).tool_calls()).size(), kCalls);
  EXPECT_EQ(chat.turns(1 + kCalls).tool_call_id(), absl::StrCat("c", kCalls - 1));
}

TEST(MessagesRequestTest, FieldsBecomeOptions) {
  MessagesRequest request;
  const auto error = Parse(R"({
    "model": "lm", "max_tokens": 9, "stream": true, "temperature": 0.5, "top_p": 0.9, "top_k": 7,
    "stop_sequences": ["x", "y"], "metadata": {"user_id": "u"}, "seed": 3,
    "messages": [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "It is"}],
    "tools": [{"name": "rain", "description": "of a city", "strict": true,
               "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
              {"type": "custom", "name": "wind", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "wind", "disable_parallel_tool_use": true},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}})",
                           &request);
  ASSERT_FALSE(error) << error->message;
  const v1::GenerateRequest& generate = request.generate;
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(generate.max_tokens(), 9);
  EXPECT_EQ(generate.sampling().top_k(), 7);
  EXPECT_EQ(generate.stop_size(), 2);
  EXPECT_TRUE(generate.chat().continue_final_message());
  EXPECT_EQ(generate.chat().named_tool(), "wind");
  EXPECT_TRUE(generate.chat().single_tool_call());
  const json tool = json::parse(generate.chat().tools(0));
  EXPECT_EQ(tool["function"]["name"], "rain");
  EXPECT_EQ(tool["function"]["parameters"]["type"], "object");
  EXPECT_EQ(tool["function"]["strict"], true);
  EXPECT_EQ(generate.chat().reasoning_effort(), "low");
  EXPECT_EQ(generate.chat().thinking_token_budget(), 2000);
  EXPECT_TRUE(generate.structured_output().has_json_schema());
  EXPECT_TRUE(request.include_thinking);
  for (const auto& [thinking, none, included] :
       {std::tuple{R"({"type": "disabled"})", true, false},
        {R"({"type": "adaptive", "display": "omitted"})", false, false},
        {R"({"type": "adaptive"})", false, true}}) {
    MessagesRequest other;
    ASSERT_FALSE(Parse(absl::StrCat(R"({"model": "lm", "max_tokens": 1, "thinking": )", thinking,
                                    R"(, "messages": [{"role": "user", "content": "x"}]})"),
                       &other));
    EXPECT_EQ(other.no_thinking, none) << thinking;
    EXPECT_EQ(other.include_thinking, included) << thinking;
    EXPECT_FALSE(other.generate.chat().has_thinking_token_budget()) << thinking;
  }
}

TEST(MessagesRequestTest, CountingNeedsNoWayToAnswer) {
  const char* body = R"({"model": "lm", "messages": [{"role": "user", "content": "x"}]})";
  MessagesRequest request;
  EXPECT_FALSE(ParseMessages(Purpose::kCount, body, &request));
  const auto error = Parse(body, &request);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("max_tokens"));
}

TEST(MessagesRequestTest, ABlockOfNoTypeIsRefusedWhereTokensAreCounted) {
  MessagesRequest request;
  const auto error = ParseMessages(
      Purpose::kCount,
      R"({"model": "lm", "messages": [{"role": "user", "content": [{"type": ""}]}]})", &request);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->http_status, 400);
  EXPECT_THAT(error->message, HasSubstr("content[0] is of type ''"));
}

TEST(MessagesRequestTest, UnsupportedFieldsAreRejectedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("messages": [])", "'messages'"},
      {R"("messages": [7])", "messages[0]"},
      {R"("messages": [{"role": "king", "content": "x"}])", "messages[0].role"},
      {R"("messages": [{"role": "user"}])", "messages[0].content"},
      {R"("messages": [{"role": "user", "content": []}])", "messages[0].content"},
      {R"("messages": [{"role": "user", "content": "x", "name": "y"}])", "messages[0].name"},
      {R"("messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}])",
       "'image'"},
      {R"("messages": [{"role": "user", "content": [{"type": "tool_use"}]}])", "'tool_use'"},
      {R"("messages": [{"role": "user", "content": [{"type": ""}]}])",
       "messages[0].content[0] is of type ''"},
      {R"("messages": [{"role": "user", "content": [{"type": null}]}])", "content[0].type"},
      {R"("messages": [{"role": "assistant", "content": [{"type": ""}]}])", "is of type ''"},
      {R"("messages": [{"role": "system", "content": [{"type": ""}]}])", "is of type ''"},
      {R"("messages": [{"role": "user", "content": [{"type": "text"}]}])", "content[0].text"},
      {R"("messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "z"}]}])",
       "'z'"},
      {R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f",
          "input": "x"}]}])",
       "content[0].input"},
      {R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f",
          "input": {}}]}])",
       "tool_result"},
      {R"("system": 7)", "'system'"},
      {R"("temperature": 3)", "temperature"},
      {R"("n": 2)", "'n'"},
      {R"("stop": ["x"])", "'stop'"},
      {R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])",
       "web_search_20250305"},
      {R"("tools": [{"name": "a"}])", "input_schema"},
      {R"("tools": [{"name": "a", "input_schema": {}, "parameters": {}}])", "parameters"},
      {R"("tool_choice": {"type": "any"})", "tool_choice"},
      {R"("tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "b"})",
       "'b'"},
      {R"("tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "most"})",
       "tool_choice.type"},
      {R"("thinking": {"type": "between_tools"})", "thinking.type"},
      {R"("output_config": {"format": {"type": "xml"}})", "output_config.format"},
      {R"("context_management": {"edits": [{"type": "x"}]})", "context_management"},
      {R"("mcp_servers": [{}])", "mcp_servers"},
      {R"("max_token": 7)", "max_token"}};
  for (const auto& [field, part] : cases) {
    MessagesRequest request;
    const std::string other = absl::StartsWith(field, "\"messages\"")
                                  ? ""
                                  : R"("messages": [{"role": "user", "content": "x"}], )";
    const auto error =
        Parse(absl::StrCat(R"({"model": "lm", "max_tokens": 5, )", other, field, "}"), &request);
    ASSERT_TRUE(error) << field;
    EXPECT_THAT(error->message, HasSubstr(part)) << field;
    EXPECT_EQ(error->http_status, 400);
  }
}

}  // namespace
}  // namespace espalier::anthropic
