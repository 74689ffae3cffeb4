// Only models that compare texts by the last token's embedding are taken for embedding models.
#include "server/inference/models/sentence_embeddings.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// As Qwen3-Embedding has them.
constexpr char kModules[] = R"([
  {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
  {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
  {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])";
constexpr char kPooling[] = R"({"word_embedding_dimension": 1024, "pooling_mode_cls_token": false,
  "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true})";

TEST(SentenceEmbeddingsTest, LastTokenPoolingIsWhatTheEngineComputes) {
  EXPECT_TRUE(CheckSentenceEmbeddings({kModules, kPooling}).ok());
}

TEST(SentenceEmbeddingsTest, OthersAreRefusedWithTheReason) {
  EXPECT_THAT(CheckSentenceEmbeddings({}).message(), HasSubstr("no modules.json"));
  EXPECT_THAT(
      CheckSentenceEmbeddings({kModules, R"({"pooling_mode_mean_tokens": true})"}).message(),
      HasSubstr("pooling_mode_lasttoken"));
  EXPECT_THAT(CheckSentenceEmbeddings({kModules, ""}).message(), HasSubstr("1_Pooling"));
  EXPECT_THAT(
      CheckSentenceEmbeddings({R"([{"type": "sentence_transformers.models.Dense"}])", kPooling})
          .message(),
      HasSubstr("Dense"));
  for (const char* broken : {"{", "{}", "[1]"}) {
    EXPECT_FALSE(CheckSentenceEmbeddings({broken, kPooling}).ok()) << broken;
  }
}

}  // namespace
}  // namespace espalier
