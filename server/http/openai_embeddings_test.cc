#include "server/http/openai_embeddings.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace espalier::openai {
namespace {

using nlohmann::json;

EmbeddingsRequest Good(const std::string& fields) {
  EmbeddingsRequest request;
  const auto error = ParseEmbeddings(R"({"model": "m", )" + fields + "}", &request);
  EXPECT_FALSE(error) << error->message;
  return request;
}

TEST(OpenAiEmbeddings, SchedulingFieldsAreRead) {
  const EmbeddingsRequest request =
      Good(R"("input": "a", "priority": -3, "timeout": 1.5, "cache_salt": "ours")");
  EXPECT_EQ(request.embed.priority(), -3);
  EXPECT_EQ(request.embed.timeout_seconds(), 1.5);
  EXPECT_EQ(request.embed.cache_salt(), "ours");
}

TEST(OpenAiEmbeddings, InputsComeInEveryForm) {
  EXPECT_EQ(Good(R"("input": "a b")").embed.inputs(0).text(), "a b");
  const EmbeddingsRequest texts = Good(R"("input": ["a", "b", ""])");
  ASSERT_EQ(texts.embed.inputs_size(), 3);
  EXPECT_EQ(texts.embed.inputs(1).text(), "b");
  const EmbeddingsRequest tokens = Good(R"("input": [1, 2, 3])");
  ASSERT_EQ(tokens.embed.inputs_size(), 1);
  EXPECT_EQ(tokens.embed.inputs(0).tokens().ids(2), 3);
  const EmbeddingsRequest lists = Good(R"("input": [[1, 2], [3]])");
  ASSERT_EQ(lists.embed.inputs_size(), 2);
  EXPECT_EQ(lists.embed.inputs(1).tokens().ids(0), 3);
}

TEST(OpenAiEmbeddings, FieldsArriveWhereTheyBelong) {
  const EmbeddingsRequest plain = Good(R"("input": "a", "user": "u", "encoding_format": null)");
  EXPECT_FALSE(plain.base64);
  EXPECT_EQ(plain.embed.dimensions(), 0);
  EXPECT_FALSE(plain.embed.truncate() || plain.embed.no_normalization() ||
               plain.embed.no_special_tokens());
  const EmbeddingsRequest all =
      Good(R"("input": "a", "encoding_format": "base64", "dimensions": 7, "normalize": false,
              "add_special_tokens": false, "truncate_prompt_tokens": -1)");
  EXPECT_EQ(all.embed.truncate_prompt_tokens(), 0);
  EXPECT_EQ(Good(R"("input": "a", "truncate_prompt_tokens": 5)").embed.truncate_prompt_tokens(), 5);
  EXPECT_TRUE(all.base64);
  EXPECT_EQ(all.embed.dimensions(), 7);
  EXPECT_TRUE(all.embed.truncate() && all.embed.no_normalization() &&
              all.embed.no_special_tokens());
}

TEST(OpenAiEmbeddings, InvalidFieldsAreNamed) {
  std::string many = "[\"x\"";
  for (int i = 0; i < kMaxEmbedInputs; ++i) many += ",\"x\"";
  const std::pair<std::string, const char*> cases[] = {
      {R"("user": "u")", "input"},
      {R"("input": 3)", "input"},
      {R"("input": {"a": 1})", "input"},
      {R"("input": [["a"]])", "input"},
      {R"("input": [1, "a"])", "input"},
      {R"("input": [-1])", "input"},
      {"\"input\": " + many + "]", "input"},
      {R"("input": "a", "encoding_format": "hex")", "encoding_format"},
      {R"("input": "a", "dimensions": 0)", "dimensions"},
      {R"("input": "a", "dimensions": 1.5)", "dimensions"},
      {R"("input": "a", "truncate_prompt_tokens": 0)", "truncate_prompt_tokens"},
      {R"("input": "a", "truncate_prompt_tokens": -2)", "truncate_prompt_tokens"},
      {R"("input": "a", "request_id": "a b")", "request_id"},
      {R"("input": "a", "inptu": "a")", "inptu"}};
  for (const auto& [fields, param] : cases) {
    EmbeddingsRequest request;
    const auto error = ParseEmbeddings(R"({"model": "m", )" + fields + "}", &request);
    ASSERT_TRUE(error) << fields.substr(0, 80);
    EXPECT_EQ(error->param, param) << error->message;
  }
  EmbeddingsRequest request;
  EXPECT_EQ(ParseEmbeddings(R"({"input": "a"})", &request)->param, "model");
}

TEST(OpenAiEmbeddings, NumbersAreTheSameInBothEncodings) {
  v1::EmbedReply reply;
  reply.add_embeddings()->add_values(0.1f);
  reply.mutable_embeddings(0)->add_values(-2.5f);
  reply.add_embeddings()->add_values(1e-30f);
  reply.mutable_usage()->set_prompt_tokens(9);
  EmbeddingsRequest request = Good(R"("input": "a")");
  const json plain = json::parse(EmbeddingsJson(request, reply));
  EXPECT_FALSE(plain.contains("id"));
  request.id = "7";
  EXPECT_EQ(json::parse(EmbeddingsJson(request, reply))["id"], "embd-7");
  EXPECT_EQ(plain["object"], "list");
  EXPECT_EQ(plain["model"], "m");
  EXPECT_EQ(plain["usage"]["total_tokens"], 9);
  EXPECT_EQ(plain["data"][1]["index"], 1);
  EXPECT_EQ(plain["data"][0]["embedding"][0].get<float>(), 0.1f);
  EXPECT_EQ(plain["data"][1]["embedding"][0].get<float>(), 1e-30f);
  request.base64 = true;
  // struct.pack("<2f", 0.1, -2.5) in Python.
  EXPECT_EQ(json::parse(EmbeddingsJson(request, reply))["data"][0]["embedding"], "zczMPQAAIMA=");
}

}  // namespace
}  // namespace espalier::openai
