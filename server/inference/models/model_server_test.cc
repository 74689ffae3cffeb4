// Serving across restarts, and while models are loaded and unloaded.
#include "server/inference/models/model_server.h"

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/services/open_inference.h"
#include "server/metrics/metrics.h"
#include "server/store/sqlite_store.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr int kVocabulary = 12;
constexpr int kFits = 77;
constexpr absl::Duration kSoon = absl::Seconds(10);

// A loader that blocks on demand.
class Loader : public ModelLoader {
 public:
  absl::StatusOr<Loaded> Load(const std::string& llm, const std::vector<std::string>&,
                              const ServingSize&, const Expansion&, const Formats& formats,
                              const Placement& placement) override {
    absl::MutexLock lock(&mutex_);
    ++loads_;
    gone_before_ = gone_;
    fitted_ = placement.fitted_kv_cache_tokens;
    const auto passes = [&] { return held_ != llm; };
    mutex_.Await(absl::Condition(&passes));
    versions_ = formats.versions;
    if (llm == broken_) return absl::ResourceExhaustedError("no memory for it");
    Loaded loaded;
    loaded.parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
    loaded.parts.llm = std::make_unique<FakeModelRunner>(FakeModelRunner::LargeLimits(kVocabulary),
                                                         HashModel(1, kVocabulary, 4));
    loaded.kv_cache_tokens = kFits;
    loaded.kv_cache_reduced = kv_cache_reduced_;
    loaded.placements = placement.models;
    loaded.parts.keep_alive.push_back(std::shared_ptr<void>(nullptr, [this](void*) { Going(); }));
    return loaded;
  }

  void SetKvCacheReduced(bool kv_cache_reduced) {
    absl::MutexLock lock(&mutex_);
    kv_cache_reduced_ = kv_cache_reduced;
  }
  // Loading `llm` blocks until Hold is called with another one.
  void Hold(const std::string& llm) {
    absl::MutexLock lock(&mutex_);
    held_ = llm;
  }
  void Break(const std::string& llm) {
    absl::MutexLock lock(&mutex_);
    broken_ = llm;
  }
  // Destroying models blocks until this is called with false.
  void HoldGoing(bool hold) {
    absl::MutexLock lock(&mutex_);
    hold_going_ = hold;
  }
  bool AwaitLoads(int loads) {
    return Await([&] { return loads_ >= loads; });
  }
  bool AwaitGoing(int models) {
    return Await([&] { return going_ >= models; });
  }
  int loads() {
    absl::MutexLock lock(&mutex_);
    return loads_;
  }
  // Number of models destroyed before the last load began.
  int gone_before() {
    absl::MutexLock lock(&mutex_);
    return gone_before_;
  }
  // Formats::versions of the last load.
  std::map<std::string, std::string> versions() {
    absl::MutexLock lock(&mutex_);
    return versions_;
  }
  // fitted_kv_cache_tokens of the last load.
  int fitted() {
    absl::MutexLock lock(&mutex_);
    return fitted_;
  }

 private:
  template <typename Done>
  bool Await(Done done) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&done), kSoon);
  }
  void Going() {
    absl::MutexLock lock(&mutex_);
    ++going_;
    const auto passes = [&] { return !hold_going_; };
    mutex_.Await(absl::Condition(&passes));
    ++gone_;
  }

  absl::Mutex mutex_;
  std::string held_, broken_;
  std::map<std::string, std::string> versions_;
  int loads_ = 0, going_ = 0, gone_ = 0, gone_before_ = 0, fitted_ = 0;
  bool kv_cache_reduced_ = false;
  bool hold_going_ = false;
};

v1::ServeModelRequest Request(const std::string& artifact) {
  v1::ServeModelRequest request;
  request.set_artifact(artifact);
  return request;
}

class ModelServerTest : public ::testing::Test {
 protected:
  ModelServerTest() {
    const std::string path = ::testing::TempDir() + "/model_server_test.db";
    std::filesystem::remove(path);
    auto opened = SqliteStore::Open(path);
    EXPECT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    Restart();
  }
  ~ModelServerTest() override {
    loader_.Hold("");
    loader_.HoldGoing(false);
  }

  void Restart() {
    models_.reset();
    models_.emplace(ModelServerOptions{.loader = &loader_,
                                       .store = store_.get(),
                                       .clock = &clock_,
                                       .metrics = &metrics_,
                                       .initial_backoff = absl::Milliseconds(20),
                                       .max_backoff = absl::Milliseconds(50),
                                       .pin =
                                           [this](const std::string& name) {
                                             return name.find('@') == std::string::npos
                                                        ? absl::StrCat(name, "@", newest_)
                                                        : name;
                                           },
                                       .release_timeout = release_timeout_});
  }
  // Restarts as the daemon does.
  void RestartWithModels() {
    Restart();
    ASSERT_TRUE(models_->LoadServedList().ok());
    models_->StartRestoring();
  }
  void Serve(const std::string& artifact) {
    const auto served = models_->Serve(Request(artifact));
    ASSERT_TRUE(served.ok()) << served.status();
  }
  std::vector<std::string> Stored() const {
    std::vector<std::string> names;
    const auto served = store_->Served();
    for (const v1::ServeModelRequest& request : *served) names.push_back(request.name());
    return names;
  }
  std::string State(const std::string& name) const {
    for (const v1::ServedModel& model : models_->ListWithFailed()) {
      if (model.name() == name) return model.state();
    }
    return "none";
  }
  absl::StatusCode Found(const std::string& name) const {
    return models_->Find(name).status().code();
  }
  template <typename Done>
  static bool Eventually(Done done) {
    for (const absl::Time end = absl::Now() + kSoon; absl::Now() < end;) {
      if (done()) return true;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return done();
  }
  bool AwaitRestored() {
    return Eventually([&] { return models_->restored(); });
  }

  Loader loader_;
  SystemClock clock_;
  absl::Duration release_timeout_ = absl::Minutes(5);
  int newest_ = 1;  // version of every artifact
  std::unique_ptr<SqliteStore> store_;
  Metrics registry_;
  ServingMetrics metrics_{&registry_.registry()};
  std::optional<ModelServer> models_;
};

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

TEST_F(ModelServerTest, UnserveDuringRestoreIsFinal) {
  Serve("a");
  loader_.Hold("a");
  RestartWithModels();
  ASSERT_TRUE(loader_.AwaitLoads(2));
  EXPECT_TRUE(models_->Unserve("a").ok());
  EXPECT_THAT(Stored(), IsEmpty());
  loader_.Hold("");
  ASSERT_TRUE(loader_.AwaitGoing(2));
  EXPECT_EQ(Found("a"), absl::StatusCode::kNotFound);
  EXPECT_THAT(models_->Names(Caller::Unrestricted()), IsEmpty());
}

TEST_F(ModelServerTest, UnserveDuringLoadIsFinal) {
  loader_.Hold("a");
  absl::Status served;
  std::thread serving([&] { served = models_->Serve(Request("a")).status(); });
  ASSERT_TRUE(loader_.AwaitLoads(1));
  EXPECT_TRUE(models_->Unserve("a").ok());
  loader_.Hold("");
  serving.join();
  EXPECT_TRUE(absl::IsAborted(served)) << served;
  EXPECT_EQ(Found("a"), absl::StatusCode::kNotFound);
  EXPECT_THAT(Stored(), IsEmpty());
}

// Regression: a client that lost the first answer got NotFound.
TEST_F(ModelServerTest, RepeatedUnserveIsIdempotent) {
  Serve("a");
  Serve("b");
  EXPECT_EQ(models_->Unserve("").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(models_->Unserve("a", "once").ok());
  EXPECT_TRUE(models_->Unserve("a", "once").ok());
  Serve("a");
  EXPECT_TRUE(models_->Unserve("a", "once").ok());
  EXPECT_EQ(Found("a"), absl::StatusCode::kOk) << "it was served since";
  const absl::Status changed = models_->Unserve("b", "once");
  EXPECT_TRUE(absl::IsInvalidArgument(changed)) << changed;
  EXPECT_THAT(changed.message(), HasSubstr("another request"));
  EXPECT_THAT(Stored(), ElementsAre("a", "b"));
  EXPECT_TRUE(absl::IsNotFound(models_->Unserve("c", "another")));
}

TEST_F(ModelServerTest, ARepeatedServeIsOneModelAndAChangedOneIsRefused) {
  v1::ServeModelRequest request = Request("a");
  request.set_idempotency_key("once");
  ASSERT_TRUE(models_->Serve(request).ok());
  const auto again = models_->Serve(request);
  EXPECT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(loader_.loads(), 1);
  request.set_max_queue(7);
  const absl::Status changed = models_->Serve(request).status();
  EXPECT_TRUE(absl::IsAlreadyExists(changed)) << changed;
}

// Clients see the name that they gave; the version behind it stays until the model is unserved.
TEST_F(ModelServerTest, ModelsKeepTheirVersionUnderTheNameThatWasAskedFor) {
  using Versions = std::map<std::string, std::string>;
  v1::ServeModelRequest request = Request("m");
  request.add_ssm_artifacts("s@1");
  auto served = models_->Serve(request);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->name(), "m");
  EXPECT_EQ(served->artifact(), "m");
  EXPECT_EQ(served->artifact_version(), "m@1");
  EXPECT_EQ(loader_.versions(), (Versions{{"m", "m@1"}, {"s@1", "s@1"}}));
  newest_ = 2;
  RestartWithModels();
  ASSERT_TRUE(Eventually([&] { return Found("m") == absl::StatusCode::kOk; }));
  EXPECT_EQ(loader_.versions(), (Versions{{"m", "m@1"}, {"s@1", "s@1"}}));
  std::vector<std::string> used;
  for (const ArtifactUse& use : models_->ArtifactsInUse()) used.push_back(use.artifact);
  EXPECT_EQ(used, (std::vector<std::string>{"m@1", "s@1"}));

  ASSERT_TRUE(models_->Unserve("m").ok());
  served = models_->Serve(Request("m"));
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->artifact(), "m");
  EXPECT_EQ(loader_.versions(), (Versions{{"m", "m@2"}}));
  ASSERT_TRUE(models_->Unserve("m").ok());
  served = models_->Serve(Request("m@1"));
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->name(), "m");
  EXPECT_EQ(served->artifact(), "m@1");
}

TEST_F(ModelServerTest, UnserveDoesNotWaitForALoad) {
  Serve("a");
  loader_.Hold("b");
  std::thread serving([&] { EXPECT_TRUE(models_->Serve(Request("b")).ok()); });
  EXPECT_TRUE(loader_.AwaitLoads(2));
  absl::Notification unserved;
  std::thread unserving([&] {
    EXPECT_TRUE(models_->Unserve("a").ok());
    unserved.Notify();
  });
  EXPECT_TRUE(unserved.WaitForNotificationWithTimeout(kSoon));
  EXPECT_EQ(Found("a"), absl::StatusCode::kNotFound);
  loader_.Hold("");
  serving.join();
  unserving.join();
  EXPECT_THAT(Stored(), ElementsAre("b"));
}

TEST_F(ModelServerTest, ReserveWaitsForTheOldModelsDestruction) {
  Serve("a");
  loader_.HoldGoing(true);
  std::thread unserving([&] { EXPECT_TRUE(models_->Unserve("a").ok()); });
  EXPECT_TRUE(loader_.AwaitGoing(1));
  std::thread serving([&] { EXPECT_TRUE(models_->Serve(Request("a")).ok()); });
  Serve("b");  // blocks no other model
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(loader_.loads(), 2);
  loader_.HoldGoing(false);
  unserving.join();
  serving.join();
  EXPECT_EQ(Found("a"), absl::StatusCode::kOk);
  EXPECT_THAT(Stored(), ElementsAre("a", "b"));
}

// A request that is still being read holds its model.
TEST_F(ModelServerTest, ReserveWaitsForRequestsOnTheOldModel) {
  release_timeout_ = absl::Milliseconds(10);
  Restart();
  Serve("a");
  auto held = models_->Find("a");
  ASSERT_TRUE(held.ok());
  EXPECT_TRUE(models_->Unserve("a").ok()) << "which does not wait for ever";
  EXPECT_EQ(Found("a"), absl::StatusCode::kNotFound);
  const absl::Status taken = models_->Serve(Request("a")).status();
  EXPECT_TRUE(absl::IsUnavailable(taken)) << "nor does Serve: " << taken;
  EXPECT_THAT(taken.message(), HasSubstr("requests that are still being read"));
  Serve("b");  // blocks no other model
  held = absl::NotFoundError("");
  Serve("a");
  EXPECT_EQ(loader_.loads(), 3);
  EXPECT_EQ(loader_.gone_before(), 1) << "its session would end that of the new one";
  EXPECT_EQ(Found("a"), absl::StatusCode::kOk);
}

TEST_F(ModelServerTest, UnserveReturnsOnceResourcesAreFree) {
  Serve("a");
  absl::Notification holds;
  std::thread request([&] {
    const auto held = models_->Find("a");
    holds.Notify();
    EXPECT_TRUE(Eventually([&] { return Found("a") == absl::StatusCode::kNotFound; }));
    absl::SleepFor(absl::Milliseconds(50));  // time for Unserve to return if it did not wait
  });
  holds.WaitForNotification();
  EXPECT_TRUE(models_->Unserve("a").ok());
  Serve("b");
  EXPECT_EQ(loader_.gone_before(), 1);
  request.join();
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
}  // namespace espalier
