// Readiness matches what requests would get.
#include "server/inference/services/open_inference.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/requests/tokenization.h"
#include "server/store/sqlite_store.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kVocabulary = 12;

// Loads models, one of which may be unavailable.
class Loader : public ModelLoader {
 public:
  absl::StatusOr<Loaded> Load(const std::string& llm, const std::vector<std::string>&,
                              const ServingSize&, const Expansion&, const Formats&,
                              const Placement&) override {
    Loaded loaded;
    loaded.parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
    loaded.parts.llm = std::make_unique<FakeModelRunner>(FakeModelRunner::LargeLimits(kVocabulary),
                                                         HashModel(1, kVocabulary, 4));
    if (llm == "far") {
      loaded.describe = [this](v1::ServedModel* model) { model->set_state(state); };
    }
    return loaded;
  }

  std::string state = "ready";
};

class OpenInferenceTest : public ::testing::Test {
 protected:
  OpenInferenceTest() {
    const std::string path = ::testing::TempDir() + "/open_inference_test.db";
    std::filesystem::remove(path);
    auto opened = SqliteStore::Open(path);
    EXPECT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    models_.emplace(
        ModelServerOptions{.loader = &loader_, .store = store_.get(), .clock = &clock_});
  }

  void Serve(const std::string& artifact, const std::string& adapter = "") {
    v1::ServeModelRequest request;
    request.set_artifact(artifact);
    if (!adapter.empty()) {
      request.add_adapters()->set_name(adapter);
      request.mutable_adapters(0)->set_artifact("low-rank");
    }
    const auto served = models_->Serve(request);
    ASSERT_TRUE(served.ok()) << served.status();
  }

  absl::StatusOr<bool> Ready(const std::string& name, const std::string& version = "") {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    return ModelReady(request, Caller::Unrestricted(), *models_);
  }

  Loader loader_;
  SystemClock clock_;
  std::unique_ptr<SqliteStore> store_;
  std::optional<ModelServer> models_;
};

TEST_F(OpenInferenceTest, AServerWithoutModelsIsReady) { EXPECT_TRUE(AllModelsReady(*models_)); }

TEST_F(OpenInferenceTest, AModelIsReadyWhileItsWorkersHoldIt) {
  Serve("near");
  Serve("far", "fitted");
  for (const std::string state : {"ready", "waits for 2 workers", "loading again: lost", "ready"}) {
    loader_.state = state;
    EXPECT_EQ(*Ready("far"), state == "ready") << state;
    EXPECT_EQ(*Ready("fitted"), state == "ready") << state;
    EXPECT_EQ(AllModelsReady(*models_), state == "ready") << state;
    EXPECT_TRUE(*Ready("near"));
  }
}

TEST_F(OpenInferenceTest, NotReadyWhenUnknownOrDraining) {
  Serve("near");
  EXPECT_TRUE(absl::IsNotFound(Ready("nobody").status()));
  models_->Drain();
  EXPECT_FALSE(*Ready("near"));
  inference::ModelMetadataRequest request;
  request.set_name("near");
  EXPECT_TRUE(
      absl::IsUnavailable(DescribeModel(request, Caller::Unrestricted(), *models_).status()));
}

TEST_F(OpenInferenceTest, AModelHasOneVersion) {
  Serve("near");
  EXPECT_TRUE(*Ready("near", "1"));
  EXPECT_TRUE(absl::IsNotFound(Ready("near", "2").status()));
  inference::ModelMetadataRequest request;
  request.set_name("near");
  request.set_version("1");
  const auto described = DescribeModel(request, Caller::Unrestricted(), *models_);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_THAT(described->versions(), ElementsAre("1"));
  EXPECT_EQ(described->inputs(0).datatype(), "BYTES");
  request.set_version("01");
  EXPECT_THAT(DescribeModel(request, Caller::Unrestricted(), *models_).status().message(),
              HasSubstr("version '01'"));
}

TEST_F(OpenInferenceTest, TokensHaveStringsOnlyWhereTheyAreAskedFor) {
  Serve("near");
  v1::TokenizeRequest request;
  request.set_text("cab");
  auto reply = Tokenize(request, Caller::Unrestricted(), *models_);  // the only model
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->tokens(), ElementsAre(2, 0, 1));
  EXPECT_EQ(reply->count(), 3);
  EXPECT_GT(reply->max_model_len(), 0);
  EXPECT_THAT(reply->token_strings(), IsEmpty());
  request.set_return_token_strings(true);
  EXPECT_THAT(Tokenize(request, Caller::Unrestricted(), *models_)->token_strings(),
              ElementsAre("c", "a", "b"));
  Serve("far");
  EXPECT_THAT(Tokenize(request, Caller::Unrestricted(), *models_).status().message(),
              HasSubstr("2 models are served"));
}

TEST_F(OpenInferenceTest, OnlyTokensOfTheVocabularyHaveText) {
  Serve("near");
  v1::DetokenizeRequest request;
  for (const int token : {2, 0, 1}) request.add_tokens(token);
  EXPECT_EQ(Detokenize(request, Caller::Unrestricted(), *models_)->text(), "cab");
  for (const int token : {-1, kVocabulary}) {
    request.set_tokens(1, token);
    const auto refused = Detokenize(request, Caller::Unrestricted(), *models_);
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
    EXPECT_THAT(refused.status().message(), HasSubstr("outside the vocabulary of 12"));
  }
}

}  // namespace
}  // namespace espalier
