// A model server with a loader that tests hold up, for its tests.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/inference/models/model_server.h"
#include "server/metrics/metrics.h"
#include "server/store/sqlite_store.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier::model_server_fixture {

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

inline v1::ServeModelRequest Request(const std::string& artifact) {
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
                                       .graphs = graphs_,
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
  const GraphLoader* graphs_ = nullptr;
  SystemClock clock_;
  absl::Duration release_timeout_ = absl::Minutes(5);
  int newest_ = 1;  // version of every artifact
  std::unique_ptr<SqliteStore> store_;
  Metrics registry_;
  ServingMetrics metrics_{&registry_.registry()};
  std::optional<ModelServer> models_;
};

}  // namespace espalier::model_server_fixture
