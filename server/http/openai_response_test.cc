#include "server/http/openai_response.h"

#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/field_error.h"

namespace espalier::openai {
namespace {

using nlohmann::json;

ChoicePart Text(const std::string& text, const std::string& finish_reason = "") {
  ChoicePart part;
  part.text = text;
  part.finish_reason = finish_reason;
  return part;
}

v1::Usage UsageOf(int prompt, int completion) {
  v1::Usage usage;
  usage.set_prompt_tokens(prompt);
  usage.set_completion_tokens(completion);
  return usage;
}

TEST(OpenAiResponse, StreamChunksAreValidJsonEvents) {
  const Head head{Kind::kChat, "id", 5, "m"};
  for (const std::string& chunk :
       {RoleChunk(head, 0), Chunk(head, Text("caf\xc3\xa9")), Chunk(head, Text("", "stop")),
        UsageChunk(head, UsageOf(1, 2)), Chunk(head, Text("\xff\xfe"))}) {
    ASSERT_EQ(chunk.substr(0, 6), "data: ");
    ASSERT_EQ(chunk.substr(chunk.size() - 2), "\n\n");
    const json parsed = json::parse(chunk.substr(6));
    EXPECT_EQ(parsed["object"], "chat.completion.chunk");
    EXPECT_EQ(parsed["id"], "id");
  }
  const json last = json::parse(Chunk(head, Text("", "length")).substr(6));
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  const json usage = json::parse(UsageChunk(head, UsageOf(3, 4)).substr(6));
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 7);
}

TEST(OpenAiResponse, UsageSaysWhatWasCachedAndWhatOfTheDraftsCame) {
  v1::Usage usage = UsageOf(30, 10);
  usage.set_cached_tokens(16);
  usage.set_drafted_tokens(12);
  usage.set_accepted_tokens(7);
  const json out = json(WholeAnswer({Kind::kChat, "id", 5, "m"}, {Text("x")}, usage))["usage"];
  EXPECT_EQ(out["total_tokens"], 40);
  EXPECT_EQ(out["prompt_tokens_details"]["cached_tokens"], 16);
  EXPECT_EQ(out["completion_tokens_details"]["accepted_prediction_tokens"], 7);
  EXPECT_EQ(out["completion_tokens_details"]["rejected_prediction_tokens"], 5);
}

TEST(OpenAiResponse, ThoughtsAndCallsStandBesideTheText) {
  ChoicePart part;
  part.reasoning = "hm";
  v1::ToolCall& call = part.tool_calls.emplace_back();
  call.set_id("i");
  call.set_name("f");
  call.set_arguments("{}");
  v1::Usage usage = UsageOf(1, 2);
  const Head head{Kind::kChat, "id", 5, "m"};
  json whole = json(WholeAnswer(head, {part}, usage));
  const json message = whole["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "hm");
  EXPECT_EQ(message["reasoning"], "hm");
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "f");
  EXPECT_FALSE(whole["usage"]["completion_tokens_details"].contains("reasoning_tokens"));
  usage.set_reasoning_tokens(2);
  whole = json(WholeAnswer(head, {Text("x")}, usage));
  EXPECT_EQ(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
  EXPECT_FALSE(whole["choices"][0]["message"].contains("reasoning_content"));
  const json delta = json::parse(Chunk(head, part).substr(6))["choices"][0]["delta"];
  EXPECT_EQ(delta["reasoning_content"], "hm");
  EXPECT_EQ(delta["reasoning"], "hm");
  EXPECT_FALSE(delta.contains("content"));
}

TEST(OpenAiResponse, LogprobsHaveTheShapeOfTheirEndpoint) {
  ChoicePart part = Text("\xc3\xa9x");
  part.with_logprobs = true;
  part.text_offset = 10;
  for (const char* text : {"\xc3\xa9", "x"}) {
    v1::TokenLogprobs& token = part.logprobs.emplace_back();
    token.set_text(text);
    token.set_logprob(-0.5);
    token.set_rank(2);
    v1::TopLogprob* top = token.add_top();
    top->set_text("y");
    top->set_logprob(-0.25);
  }
  const json completion =
      json(WholeAnswer({Kind::kCompletion, "id", 5, "m"}, {part}, {}))["choices"][0];
  EXPECT_EQ(completion["logprobs"]["tokens"], json({"\xc3\xa9", "x"}));
  EXPECT_EQ(completion["logprobs"]["text_offset"], json({10, 11}));
  EXPECT_EQ(completion["logprobs"]["top_logprobs"][1], json({{"x", -0.5}, {"y", -0.25}}));
  const json chat = json(WholeAnswer({Kind::kChat, "id", 5, "m"}, {part}, {}))["choices"][0];
  const json first = chat["logprobs"]["content"][0];
  EXPECT_EQ(first["bytes"], json({0xC3, 0xA9}));
  EXPECT_EQ(first["top_logprobs"][0]["token"], "y");
}

TEST(OpenAiResponse, OffsetsCountCharactersOfTheText) {
  ChoicePart part = Text("a\xe6\xbc\xa2z");
  part.with_logprobs = true;
  // Hidden text precedes the echoed prompt; one character has two tokens.
  for (const char* text : {"<s>", "a", "\xe6\xbc", "\xa2", "z"}) {
    part.logprobs.emplace_back().set_text(text);
    part.logprobs.back().set_rank(part.logprobs.size() == 1 ? 0 : 1);
  }
  const json completion = json(WholeAnswer({Kind::kCompletion, "id", 5, "m"}, {part}, {}));
  EXPECT_EQ(completion["choices"][0]["logprobs"]["text_offset"], json({0, 0, 1, 2, 2}));
  EXPECT_EQ(CharactersOf(part), 3);
  // A tokenizer that drops a leading space.
  ChoicePart first = Text("Hi you");
  for (const char* text : {" Hi", " you"}) {
    first.logprobs.emplace_back().set_text(text);
    first.logprobs.back().set_rank(first.logprobs.size() == 1 ? 0 : 1);
  }
  EXPECT_EQ(CharactersOf(first), 6);
}

TEST(OpenAiResponse, TokensMayBeNamedByTheirIds) {
  ChoicePart part = Text("x");
  part.with_logprobs = part.tokens_as_ids = true;
  part.text_offset = 10;
  for (const int id : {7, 8}) {
    v1::TokenLogprobs& token = part.logprobs.emplace_back();
    token.set_token(id);
    token.set_text("x");
    token.set_logprob(-0.5);
    token.set_rank(2);
    v1::TopLogprob* top = token.add_top();
    top->set_token(9);
    top->set_text("x");  // the same text, but another token
    top->set_logprob(-0.25);
  }
  const json completion =
      json(WholeAnswer({Kind::kCompletion, "id", 5, "m"}, {part}, {}))["choices"][0]["logprobs"];
  EXPECT_EQ(completion["tokens"], json({"token_id:7", "token_id:8"}));
  EXPECT_EQ(completion["top_logprobs"][1], json({{"token_id:8", -0.5}, {"token_id:9", -0.25}}));
  EXPECT_EQ(completion["text_offset"], json({10, 11}));
  const json chat = json(
      WholeAnswer({Kind::kChat, "id", 5, "m"}, {part}, {}))["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(chat["token"], "token_id:7");
  EXPECT_EQ(chat["top_logprobs"][0]["token"], "token_id:9");
  EXPECT_EQ(chat["bytes"], json({'x'}));
}

// A chat has one prompt for all choices; a completion's choices may have several.
TEST(OpenAiResponse, AChatsPromptLogprobsStandAboveItsChoices) {
  ChoicePart part = Text("x");
  part.with_prompt_logprobs = true;
  part.prompt_logprobs.emplace_back();
  v1::TokenLogprobs& token = part.prompt_logprobs.emplace_back();
  token.set_token(7);
  token.set_rank(1);
  const json chat = json(WholeAnswer({Kind::kChat, "id", 5, "m"}, {part, part}, {}));
  ASSERT_EQ(chat["prompt_logprobs"].size(), 2);
  EXPECT_TRUE(chat["prompt_logprobs"][0].is_null());
  EXPECT_EQ(chat["prompt_logprobs"][1]["7"]["rank"], 1);
  EXPECT_FALSE(chat["choices"][1].contains("prompt_logprobs"));
  const json completion = json(WholeAnswer({Kind::kCompletion, "id", 5, "m"}, {part}, {}));
  EXPECT_FALSE(completion.contains("prompt_logprobs"));
  EXPECT_EQ(completion["choices"][0]["prompt_logprobs"].size(), 2);
}

TEST(OpenAiResponse, EveryChunkMaySayWhatWasUsedUntilThen) {
  const Head head{.kind = Kind::kChat,
                  .id = "id",
                  .created_unix_seconds = 5,
                  .model = "m",
                  .usage_in_chunks = true,
                  .service_tier = "default"};
  const v1::Usage so_far = UsageOf(3, 4);
  for (const std::string& chunk : {RoleChunk(head, 0, &so_far), Chunk(head, Text("x"), &so_far)}) {
    const json parsed = json::parse(chunk.substr(6));
    EXPECT_EQ(parsed["usage"]["total_tokens"], 7);
    EXPECT_EQ(parsed["service_tier"], "default");
  }
  EXPECT_TRUE(json::parse(Chunk(head, Text("x")).substr(6))["usage"].is_null());
}

TEST(OpenAiResponse, StatusesBecomeTheCodesThatClientsExpect) {
  const std::pair<absl::Status, int> cases[] = {
      {absl::NotFoundError("x"), 404},         {absl::ResourceExhaustedError("x"), 429},
      {absl::UnavailableError("x"), 503},      {absl::UnauthenticatedError("x"), 401},
      {absl::DeadlineExceededError("x"), 504}, {absl::UnimplementedError("x"), 501},
      {absl::InternalError("x"), 500}};
  for (const auto& [status, code] : cases) EXPECT_EQ(FromStatus(status).http_status, code);
  const json error = json::parse(ToJson(FromStatus(absl::InvalidArgumentError("what"))));
  EXPECT_EQ(error["error"]["message"], "what");
  EXPECT_TRUE(error["error"]["param"].is_null());
  EXPECT_EQ(FromStatus(FieldError("tools", "what")).param, "tools");
}

}  // namespace
}  // namespace espalier::openai
