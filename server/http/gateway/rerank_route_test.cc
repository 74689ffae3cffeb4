// Documents are ranked by the cosine similarity of embeddings.
#include "server/http/gateway/rerank_route.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;
using ::testing::HasSubstr;

RerankRequest Parsed(const std::string& fields) {
  RerankRequest request;
  const auto error =
      ParseRerank(absl::StrCat(R"({"model": "m", "query": "q", )", fields, "}"), &request);
  EXPECT_FALSE(error.has_value()) << fields << ": " << error->message;
  return request;
}

// The query is (1, 0).
json Ranked(const RerankRequest& request, const std::vector<std::pair<float, float>>& documents) {
  v1::EmbedReply reply;
  const auto add = [&](float x, float y) {
    v1::Embedding* embedding = reply.add_embeddings();
    embedding->add_values(x);
    embedding->add_values(y);
  };
  add(1, 0);
  for (const auto& [x, y] : documents) add(x, y);
  reply.mutable_usage()->set_prompt_tokens(9);
  return json::parse(RerankJson(request, "7", reply));
}

TEST(RerankRouteTest, BestFirstAndEqualOnesInTheirOrder) {
  const json answer = Ranked(Parsed(R"("documents": ["a", {"text": "b"}, "c", "d"])"),
                             {{0, 1}, {0.6F, 0.8F}, {-1, 0}, {0.6F, -0.8F}});
  EXPECT_EQ(answer["id"], "rerank-7");
  EXPECT_EQ(answer["model"], "m");
  EXPECT_EQ(answer["usage"]["total_tokens"], 9);
  std::string order;
  for (const json& result : answer["results"]) {
    order += result["document"]["text"].get<std::string>();
    EXPECT_EQ(order.back(), 'a' + result["index"].get<int>());
  }
  EXPECT_EQ(order, "bdac");
  EXPECT_FLOAT_EQ(answer["results"][0]["relevance_score"].get<float>(), 0.6F);
  EXPECT_FLOAT_EQ(answer["results"][3]["relevance_score"].get<float>(), -1);
}

TEST(RerankRouteTest, OnlyTheBestWithoutDocuments) {
  const json answer =
      Ranked(Parsed(R"("documents": ["a", "b"], "top_n": 1, "return_documents": false)"),
             {{0, 1}, {1, 0}});
  ASSERT_EQ(answer["results"].size(), 1);
  EXPECT_EQ(answer["results"][0]["index"], 1);
  EXPECT_FALSE(answer["results"][0].contains("document"));
}

TEST(RerankRouteTest, MalformedRequestsAreRefusedByName) {
  for (const auto& [body, name] :
       {std::pair{R"("documents": ["a"])", "query"},
        {R"("query": "q")", "documents"},
        {R"("query": "q", "documents": [])", "documents"},
        {R"("query": "q", "documents": [1])", "documents[0]"},
        {R"("query": "q", "documents": [{"text": "a", "title": "b"}])", "documents[0]"},
        {R"("query": "q", "documents": ["a"], "top_n": -1)", "top_n"},
        {R"("query": "q", "documents": ["a"], "rank_fields": ["text"])", "rank_fields"}}) {
    RerankRequest request;
    const auto error = ParseRerank(absl::StrCat(R"({"model": "m", )", body, "}"), &request);
    ASSERT_TRUE(error.has_value()) << body;
    EXPECT_THAT(error->message, HasSubstr(name)) << body;
  }
}

}  // namespace
}  // namespace espalier
