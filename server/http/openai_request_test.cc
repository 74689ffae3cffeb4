#include "server/http/openai.h"

#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier::openai {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

Error ErrorOf(Kind kind, const std::string& body) {
  Request request;
  const auto error = Parse(kind, body, &request);
  EXPECT_TRUE(error.has_value()) << body;
  return error.value_or(Error{});
}

TEST(OpenAi, ReadsAWholeCompletionRequest) {
  Request request;
  const auto error =
      Parse(Kind::kCompletion,
            R"({"model": "m", "prompt": "In the", "max_tokens": 7, "stop": ["a", "b"],
                               "temperature": 0, "top_p": 0.5, "top_k": -1, "seed": -3, "stream": true,
                               "stream_options": {"include_usage": true}, "n": 1, "logprobs": null,
                               "speculation": false, "user": "x"})",
            &request);
  ASSERT_FALSE(error.has_value()) << error->message;
  EXPECT_EQ(request.prompt, "In the");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.temperature, 0);
  EXPECT_EQ(request.top_k, 0);
  EXPECT_EQ(request.seed, static_cast<uint64_t>(-3));
  EXPECT_TRUE(request.stream && request.include_usage);
  EXPECT_EQ(request.speculation, false);
}

TEST(OpenAi, ErrorsNameTheField) {
  const struct {
    const char* body;
    const char* param;
  } cases[] = {
      {R"({"prompt": "x"})", "model"},
      {R"({"model": 3, "prompt": "x"})", "model"},
      {R"({"model": "m"})", "prompt"},
      {R"({"model": "m", "prompt": ["a", "b"]})", "prompt"},
      {R"({"model": "m", "prompt": [1, -2]})", "prompt"},
      {R"({"model": "m", "prompt": [1, 99999999999]})", "prompt"},
      {R"({"model": "m", "prompt": "x", "max_tokens": 0})", "max_tokens"},
      {R"({"model": "m", "prompt": "x", "max_tokens": "5"})", "max_tokens"},
      {R"({"model": "m", "prompt": "x", "max_tokens": 18446744073709551615})", "max_tokens"},
      {R"({"model": "m", "prompt": "x", "temperature": -0.1})", "temperature"},
      {R"({"model": "m", "prompt": "x", "top_p": 0})", "top_p"},
      {R"({"model": "m", "prompt": "x", "seed": 1.5})", "seed"},
      {R"({"model": "m", "prompt": "x", "stop": [1]})", "stop"},
      {R"({"model": "m", "prompt": "x", "n": 2})", "n"},
      {R"({"model": "m", "prompt": "x", "logprobs": 1})", "logprobs"},
      {R"({"model": "m", "prompt": "x", "stream": "yes"})", "stream"},
      {R"({"model": "m", "prompt": "x", "max_token": 5})", "max_token"},
  };
  for (const auto& test : cases) {
    const Error error = ErrorOf(Kind::kCompletion, test.body);
    EXPECT_EQ(error.param, test.param) << test.body;
    EXPECT_EQ(error.http_status, 400);
  }
}

TEST(OpenAi, MalformedJsonIsAnErrorNotACrash) {
  const std::string deep = R"({"model": "m", "prompt": )" + std::string(100000, '[');
  for (const std::string& body :
       {std::string("{"), std::string(""), std::string("[]"), std::string("NaN"),
        std::string(R"({"model": "\ud800", "prompt": "x"})"),
        std::string(R"({"model": "m", "prompt": "x", "temperature": 1e400})"), deep,
        deep + std::string(100000, ']') + "}"}) {
    ErrorOf(Kind::kCompletion, body);
    ErrorOf(Kind::kChat, body);
  }
}

TEST(OpenAi, ChatTakesTextPartsAndNamesBadMessages) {
  Request request;
  ASSERT_FALSE(Parse(Kind::kChat,
                     R"({"model": "m", "messages": [{"role": "user", "content":
                         [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})",
                     &request));
  EXPECT_EQ(request.messages[0].content, "ab");
  EXPECT_THAT(ErrorOf(Kind::kChat, R"({"model": "m", "messages": [{"role": "robot"}]})").message,
              HasSubstr("messages[0].role"));
  EXPECT_EQ(ErrorOf(Kind::kChat, R"({"model": "m", "messages": []})").param, "messages");
  EXPECT_EQ(
      ErrorOf(Kind::kChat,
              R"({"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{}]})")
          .param,
      "tools");
}

TEST(OpenAi, StreamChunksAreValidJsonEvents) {
  const Head head{Kind::kChat, "id", 5, "m"};
  for (const std::string& chunk :
       {FirstChunk(head), Chunk(head, "caf\xc3\xa9", ""), Chunk(head, "", "stop"),
        UsageChunk(head, {1, 2, 3, 4, 5}), Chunk(head, "\xff\xfe", "")}) {
    ASSERT_EQ(chunk.substr(0, 6), "data: ");
    ASSERT_EQ(chunk.substr(chunk.size() - 2), "\n\n");
    const json parsed = json::parse(chunk.substr(6));
    EXPECT_EQ(parsed["object"], "chat.completion.chunk");
    EXPECT_EQ(parsed["id"], "id");
  }
  const json last = json::parse(Chunk(head, "", "length").substr(6));
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  const json usage = json::parse(UsageChunk(head, {3, 4, 0, 0, 0}).substr(6));
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 7);
}

TEST(OpenAi, StatusesBecomeTheCodesThatClientsExpect) {
  EXPECT_EQ(FromStatus(absl::NotFoundError("x")).http_status, 404);
  EXPECT_EQ(FromStatus(absl::ResourceExhaustedError("x")).http_status, 429);
  EXPECT_EQ(FromStatus(absl::UnavailableError("x")).http_status, 503);
  EXPECT_EQ(FromStatus(absl::UnauthenticatedError("x")).http_status, 401);
  EXPECT_EQ(FromStatus(absl::InternalError("x")).http_status, 500);
  const json error = json::parse(ToJson(FromStatus(absl::InvalidArgumentError("what"))));
  EXPECT_EQ(error["error"]["message"], "what");
  EXPECT_TRUE(error["error"]["param"].is_null());
}

}  // namespace
}  // namespace espalier::openai
