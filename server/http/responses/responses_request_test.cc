#include "server/http/responses/responses_request.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;
using ::testing::HasSubstr;

std::optional<Error> Parse(const std::string& body, ResponsesRequest* request) {
  ItemIds ids("test");
  return ParseResponses(body, &ids, request);
}

TEST(ResponsesRequestTest, FieldsBecomeAChat) {
  ResponsesRequest request;
  const auto error = Parse(R"({
    "model": "lm", "input": "Rain?", "instructions": "Be brief.", "max_output_tokens": 50,
    "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "stop": ["x"], "stream": true,
    "previous_response_id": "resp_0", "store": false, "truncation": "auto",
    "tools": [{"type": "function", "name": "rain", "description": "of a city", "strict": true,
               "parameters": {"type": "object", "properties": {}}},
              {"type": "function", "name": "wind", "parameters": null}],
    "tool_choice": {"type": "function", "name": "wind"}, "parallel_tool_calls": false,
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2,
    "metadata": {"a": "b"}, "user": "me", "chat_template_kwargs": {"k": 1}})",
                           &request);
  ASSERT_FALSE(error) << error->message;
  ASSERT_FALSE(FillChat(json::array(), &request));
  const v1::GenerateRequest& generate = request.generate;
  EXPECT_EQ(generate.max_tokens(), 50);
  EXPECT_EQ(generate.sampling().temperature(), 0.5);
  EXPECT_EQ(generate.sampling().top_k(), 7);
  EXPECT_EQ(generate.logprobs(), 2);
  EXPECT_EQ(generate.stop(0), "x");
  EXPECT_EQ(json::parse(generate.structured_output().json_schema()),
            json::parse(R"({"type": "object"})"));
  const v1::ChatPrompt& chat = generate.chat();
  ASSERT_EQ(chat.turns_size(), 2);
  EXPECT_EQ(chat.turns(0).role(), "system");
  EXPECT_EQ(chat.turns(0).content(), "Be brief.");
  EXPECT_EQ(chat.turns(1).content(), "Rain?");
  EXPECT_EQ(chat.named_tool(), "wind");
  EXPECT_TRUE(chat.single_tool_call());
  EXPECT_EQ(chat.reasoning_effort(), "low");
  // In the format that templates expect.
  const json tool = json::parse(chat.tools(0));
  EXPECT_EQ(tool["type"], "function");
  EXPECT_EQ(tool["function"]["name"], "rain");
  EXPECT_EQ(tool["function"]["strict"], true);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.truncate);
  EXPECT_EQ(request.store, false);
  EXPECT_EQ(request.previous, "resp_0");
  EXPECT_EQ(request.echo["tools"][1]["strict"], false);
  EXPECT_EQ(request.echo["tool_choice"]["name"], "wind");
  EXPECT_EQ(request.echo["text"]["format"]["name"], "a");
  EXPECT_EQ(request.echo["metadata"]["a"], "b");
  EXPECT_EQ(request.echo["user"], "me");
  EXPECT_EQ(request.echo["reasoning"]["effort"], "low");
}

TEST(ResponsesRequestTest, PreviousItemsPrecedeWithoutOldInstructions) {
  ResponsesRequest request;
  ASSERT_FALSE(Parse(R"({"model": "lm", "input": "And?", "instructions": "New."})", &request));
  const json before = json::parse(R"([
    {"id": "m", "type": "message", "role": "user", "content": [{"text": "Rain?"}]},
    {"id": "o", "type": "message", "role": "assistant", "content": [{"text": "No."}]}])");
  ASSERT_FALSE(FillChat(before, &request));
  const v1::ChatPrompt& chat = request.generate.chat();
  ASSERT_EQ(chat.turns_size(), 4);
  EXPECT_EQ(chat.turns(0).content(), "New.");
  EXPECT_EQ(chat.turns(1).content(), "Rain?");
  EXPECT_EQ(chat.turns(3).content(), "And?");
  EXPECT_EQ(request.items.size(), 3);
}

TEST(ResponsesRequestTest, OnlyAllowedToolsAreOffered) {
  const std::string tools = R"("tools": [{"type": "function", "name": "a"},
      {"type": "function", "name": "b"}, {"type": "function", "name": "c"}])";
  ResponsesRequest request;
  ASSERT_FALSE(Parse(absl::StrCat(R"({"model": "lm", "input": "x", )", tools,
                                  R"(, "tool_choice": {"type": "allowed_tools", "mode": "required",
                      "tools": [{"type": "function", "name": "c"},
                                {"type": "function", "name": "a"}]}})"),
                     &request));
  const v1::ChatPrompt& chat = request.generate.chat();
  ASSERT_EQ(chat.tools_size(), 2);
  EXPECT_EQ(json::parse(chat.tools(0))["function"]["name"], "a");
  EXPECT_EQ(json::parse(chat.tools(1))["function"]["name"], "c");
  EXPECT_EQ(chat.tool_choice(), v1::TOOL_CHOICE_REQUIRED);
  EXPECT_EQ(request.echo["tools"].size(), 3);
}

// It is stored with the request.
TEST(ResponsesRequestTest, EchoedFieldsAreBounded) {
  ResponsesRequest request;
  const auto asking = [&](size_t bytes) {
    return Parse(absl::StrCat(R"({"model": "m", "input": "hi", "instructions": ")",
                              std::string(2'000'000, 'x'), R"(", "user": ")",
                              std::string(bytes, 'x'), "\"}"),
                 &request);
  };
  EXPECT_FALSE(asking(1'000'000)) << "instructions are the context's to take or refuse";
  const std::optional<Error> error = asking(2'000'000);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("expected at most 1048576"));
  const std::optional<Error> many =
      Parse(absl::StrCat(R"({"model": "m", "input": "hi", "tools": [{"type": "function",
                             "name": "f", "parameters": {"x": [1)",
                         [] {
                           std::string more;
                           for (int i = 0; i < 300'000; ++i) more += ",\"\"";
                           return more;
                         }(),
                         "]}}]}"),
            &request);
  ASSERT_TRUE(many);
  EXPECT_THAT(many->message, HasSubstr("values that are no numbers"));
}

TEST(ResponsesRequestTest, UnsupportedFieldsAreRejectedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("input": 7)", "input"},
      {R"("max_output_tokens": 0)", "max_output_tokens"},
      {R"("max_tokens": 5)", "max_tokens"},
      {R"("temperature": 3)", "temperature"},
      {R"("n": 2)", "n"},
      {R"("tools": [{"type": "web_search"}])", "tools"},
      {R"("tools": [{"type": "function"}])", "tools"},
      {R"("tools": [{"type": "function", "name": "a", "paramters": {}}])", "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tools": [{"type": "function", "name": "a"}], "tool_choice": {"type": "function", "name": "b"})",
       "tool_choice"},
      {R"("tools": [{"type": "function", "name": "a"}], "tool_choice": {"type": "allowed_tools",
          "mode": "auto", "tools": [{"type": "function", "name": "b"}]})",
       "tool_choice"},
      {R"("tools": [{"type": "function", "name": "a"}], "tool_choice": {"type": "mcp"})",
       "tool_choice"},
      {R"("text": {"format": {"type": "json_schema", "name": "a"}})", "text"},
      {R"("text": {"format": {"type": "xml"}})", "text"},
      {R"("text": {"verbosity": "low"})", "text"},
      {R"("guided_regex": "a", "text": {"format": {"type": "json_object"}})", "text"},
      {R"("response_format": {"type": "json_object"})", "response_format"},
      {R"("reasoning": {"effort": "huge"})", "reasoning"},
      {R"("reasoning": {"summary": "detailed"})", "reasoning"},
      {R"("include": ["everything"])", "include"},
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("metadata": {"a": 1})", "metadata"},
      {R"("metadata": 7)", "metadata"},
      {R"("background": true, "store": false)", "background"},
      {R"("truncation": "middle")", "truncation"},
      {R"("stream_options": {"include_obfuscation": false})", "stream_options"},
      {R"("conversation": "conv_1")", "conversation"},
      {R"("prompt": {"id": "p"})", "prompt"},
      {R"("prompt_logprobs": 1)", "prompt_logprobs"},
      {R"("inputs": "x")", "inputs"}};
  for (const auto& [field, param] : cases) {
    ResponsesRequest request;
    const std::string other = absl::StartsWith(field, "\"input\"") ? "" : R"("input": "x", )";
    const auto error = Parse(absl::StrCat(R"({"model": "lm", )", other, field, "}"), &request);
    ASSERT_TRUE(error) << field;
    EXPECT_EQ(error->param, param) << field << ": " << error->message;
    EXPECT_EQ(error->http_status, 400);
  }
  ResponsesRequest request;
  ASSERT_FALSE(Parse(R"({"model": "lm", "input": []})", &request));
  const auto empty = FillChat(json::array(), &request);
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->param, "input");
}

}  // namespace
}  // namespace espalier::openai
