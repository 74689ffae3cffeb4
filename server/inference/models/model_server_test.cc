// Serving across restarts, and while models are loaded.
#include "server/inference/models/model_server.h"

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/models/model_server_fixture.h"
#include "server/inference/services/open_inference.h"

namespace espalier::model_server_fixture {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

TEST_F(ModelServerTest, RestoringModelIsListedAndUnavailable) {
  Serve("a");
  Serve("b");
  loader_.Hold("b");
  RestartWithModels();
  ASSERT_TRUE(loader_.AwaitLoads(4));
  EXPECT_FALSE(models_->restored());
  EXPECT_EQ(Found("a"), absl::StatusCode::kOk);
  const absl::Status unavailable = models_->Find("b").status();
  EXPECT_TRUE(absl::IsUnavailable(unavailable));
  EXPECT_THAT(unavailable.message(), HasSubstr("is being loaded"));
  EXPECT_TRUE(absl::IsNotFound(models_->Find("c").status()));
  EXPECT_EQ(State("a"), "");
  EXPECT_EQ(State("b"), "loading");
  EXPECT_THAT(models_->Names(Caller::Unrestricted()), ElementsAre("a", "b"));
  ASSERT_EQ(models_->List().size(), 2);
  EXPECT_FALSE(AnswersRequests(models_->List()[1]));
  EXPECT_EQ(models_->List()[1].artifact(), "b");
  EXPECT_FALSE(AllModelsReady(*models_));
  EXPECT_EQ(models_->OpenRequests(), 0);
  metrics_.Collect();
  EXPECT_THAT(models_->CountByState(), ElementsAre(Pair("loading", 1), Pair("ready", 1)));
  loader_.Hold("");
  ASSERT_TRUE(AwaitRestored());
  EXPECT_EQ(Found("b"), absl::StatusCode::kOk);
  EXPECT_THAT(models_->CountByState(), ElementsAre(Pair("ready", 2)));
  EXPECT_TRUE(AllModelsReady(*models_));
  EXPECT_THAT(Stored(), ElementsAre("a", "b"));
}

TEST_F(ModelServerTest, FailedModelIsListedAndCanBeUnserved) {
  Serve("a");
  Serve("b");
  loader_.Break("a");
  RestartWithModels();
  ASSERT_TRUE(AwaitRestored());
  EXPECT_EQ(Found("b"), absl::StatusCode::kOk) << "one that fails holds up no other";
  EXPECT_EQ(State("a"), "failed: no memory for it");
  EXPECT_THAT(models_->CountByState(), ElementsAre(Pair("failed", 1), Pair("ready", 1)));
  EXPECT_THAT(models_->Find("a").status().message(),
              AllOf(HasSubstr("no memory for it"), HasSubstr("espalier unserve a")));
  EXPECT_EQ(Found("a"), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(AllModelsReady(*models_));
  // Failed models are not among the names that requests may use.
  EXPECT_THAT(models_->Names(Caller::Unrestricted()), ElementsAre("b"));
  EXPECT_EQ(models_->List().size(), 1);
  EXPECT_TRUE(models_->ResolveOrOnly("", Caller::Unrestricted()).ok());
  EXPECT_TRUE(models_->Unserve("a").ok());
  EXPECT_EQ(Found("a"), absl::StatusCode::kNotFound);
  EXPECT_TRUE(AllModelsReady(*models_));
  EXPECT_THAT(Stored(), ElementsAre("b"));
}

TEST_F(ModelServerTest, FailedModelIsRetriedUntilItLoads) {
  Serve("a");
  loader_.Break("a");
  RestartWithModels();
  ASSERT_TRUE(loader_.AwaitLoads(4));
  EXPECT_EQ(Found("a"), absl::StatusCode::kUnavailable);
  loader_.Break("");
  EXPECT_TRUE(Eventually([&] { return Found("a") == absl::StatusCode::kOk; }));
}

TEST_F(ModelServerTest, ServeRetriesAFailedModelAtOnce) {
  Serve("a");
  loader_.Break("a");
  Restart();
  ASSERT_TRUE(models_->LoadServedList().ok());  // but not restored
  EXPECT_TRUE(absl::IsResourceExhausted(models_->Serve(Request("a")).status()));
  EXPECT_EQ(State("a"), "failed: no memory for it");
  EXPECT_THAT(Stored(), ElementsAre("a"));
  v1::ServeModelRequest other = Request("a");
  other.set_max_queue(3);
  EXPECT_TRUE(absl::IsAlreadyExists(models_->Serve(other).status()));
  loader_.Break("");
  Serve("a");
  EXPECT_EQ(Found("a"), absl::StatusCode::kOk);
  EXPECT_EQ(loader_.loads(), 3);
  Serve("a");
  EXPECT_EQ(loader_.loads(), 3);
}

TEST_F(ModelServerTest, ReducedKvCacheKeepsItsSizeAfterARestart) {
  v1::ServeModelRequest request = Request("a");
  request.set_tensor_parallel(2);
  ASSERT_TRUE(models_->Serve(request).ok());
  EXPECT_EQ(loader_.fitted(), 0);
  EXPECT_TRUE(models_->Serve(request).ok()) << "it is the same still";
  RestartWithModels();
  ASSERT_TRUE(AwaitRestored());
  EXPECT_EQ(loader_.fitted(), kFits);
  // Also in this process, where models that are not loaded yet need their share.
  for (const bool kv_cache_reduced : {true, false}) {
    EXPECT_TRUE(models_->Unserve("a").ok());
    loader_.SetKvCacheReduced(kv_cache_reduced);
    Serve("a");
    EXPECT_EQ(loader_.fitted(), 0);
    RestartWithModels();
    ASSERT_TRUE(AwaitRestored());
    EXPECT_EQ(loader_.fitted(), kv_cache_reduced ? kFits : 0);
  }
}

TEST_F(ModelServerTest, StopDoesNotWaitForALoad) {
  Serve("a");
  Serve("b");
  loader_.Hold("a");
  RestartWithModels();
  ASSERT_TRUE(loader_.AwaitLoads(3));
  absl::Status served;
  std::thread serving([&] { served = models_->Serve(Request("c")).status(); });
  absl::SleepFor(absl::Milliseconds(20));
  models_->Drain();
  serving.join();
  EXPECT_TRUE(absl::IsUnavailable(served)) << served;
  EXPECT_FALSE(models_->WaitForLoading()) << "it is being loaded";
  loader_.Hold("");
  EXPECT_TRUE(Eventually([&] { return models_->WaitForLoading(); }));
  EXPECT_EQ(loader_.loads(), 3) << "the next one is not begun";
  EXPECT_THAT(Stored(), ElementsAre("a", "b"));
}

TEST_F(ModelServerTest, WaitForLoadingReportsARunningLoad) {
  loader_.Hold("a");
  const std::function<absl::Status()> loads[] = {
      [&] { return models_->Serve(Request("a")).status(); },
      [&] { return models_->Prepare(Request("a")).status(); }};
  for (const auto& load : loads) {
    Restart();
    const int before = loader_.loads();
    std::thread loading([&] { EXPECT_TRUE(load().ok()) << "it was over in time"; });
    EXPECT_TRUE(loader_.AwaitLoads(before + 1));
    // Prepared models are not served.
    const bool serves = &load == &loads[0];
    EXPECT_EQ(models_->CountByState()["loading"], serves ? 1 : 0);
    EXPECT_FALSE(models_->WaitForLoading());
    loader_.Hold("");
    loading.join();
    EXPECT_TRUE(models_->WaitForLoading());
    loader_.Hold("a");
  }
  EXPECT_THAT(Stored(), ElementsAre("a")) << "prepared ones are nobody's to restore";
}

TEST_F(ModelServerTest, ExpansionAndTuneSpeculationAreExclusive) {
  v1::ServeModelRequest request = Request("a");
  request.add_ssm_artifacts("b");
  request.add_expansion(2);
  request.set_tune_speculation(true);
  const absl::Status refused = models_->Serve(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("tune_speculation"), HasSubstr("expansion")));
}

TEST_F(ModelServerTest, WithoutDraftsNothingIsTuned) {
  v1::ServeModelRequest request = Request("a");
  request.set_tune_speculation(false);
  const auto plain = models_->Serve(request);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->tune_speculation());
  EXPECT_EQ(plain->ngram_depth(), 0);
  // What tunes needs something to tune.
  request.set_name("tuned");
  request.set_tune_speculation(true);
  request.set_ngram_depth(0);
  const absl::Status refused = models_->Serve(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("tune_speculation"));
}

TEST_F(ModelServerTest, UnsafeNamesAreRejectedBeforeLoading) {
  for (const std::string name : {"x\"} 1\nforged{a=\"b", "../x", "x/../y", "/x", "x//y", "a\n"}) {
    v1::ServeModelRequest model = Request("a"), adapted = Request("a");
    model.set_name(name);
    v1::LoraAdapter* const adapter = adapted.add_adapters();
    adapter->set_name(name);
    adapter->set_artifact("b");
    for (const v1::ServeModelRequest& request : {model, adapted, Request(name)}) {
      const absl::Status refused = models_->Serve(request).status();
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_THAT(refused.message(), HasSubstr("A-Z a-z 0-9 . _ - / are accepted"));
    }
  }
  EXPECT_EQ(loader_.loads(), 0);
  Serve("a");
  metrics_.Collect();
  EXPECT_THAT(registry_.Expose(), AllOf(HasSubstr("model_name=\"a\""), Not(HasSubstr("forged"))));
}

TEST_F(ModelServerTest, SsmFlagsWithoutSsmsAreRejected) {
  v1::ServeModelRequest request = Request("a");
  request.set_short_ssms(true);
  const absl::Status refused = models_->Serve(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("'short_ssms'"));
}

}  // namespace
}  // namespace espalier::model_server_fixture
