#include "server/distillation/teacher_continuations.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/models/model_server.h"
#include "server/store/sqlite_store.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 12;

// A model with slow steps.
class Loader : public ModelLoader {
 public:
  absl::StatusOr<Loaded> Load(const std::string&, const std::vector<std::string>&,
                              const ServingSize&, const Expansion&, const Formats&,
                              const Placement&) override {
    Loaded loaded;
    loaded.parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
    const FakeModel slow = [this, model = HashModel(1, kVocabulary)](absl::Span<const int> path) {
      absl::SleepFor(step);
      return model(path);
    };
    loaded.parts.llm =
        std::make_unique<FakeModelRunner>(FakeModelRunner::LargeLimits(kVocabulary), slow);
    loaded.parts.keep_alive.push_back(std::shared_ptr<void>(nullptr, [this](void*) { ++gone; }));
    return loaded;
  }

  absl::Duration step;
  std::atomic<int> gone = 0;
};

class ContinuationsTest : public ::testing::Test {
 protected:
  ContinuationsTest() {
    const std::string path = ::testing::TempDir() + "/continuations_test.db";
    std::filesystem::remove(path);
    auto opened = SqliteStore::Open(path);
    EXPECT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    models_.emplace(
        ModelServerOptions{.loader = &loader_, .store = store_.get(), .clock = &clock_});
    tools_.models = &*models_;
    spec_.set_llm("large");
    spec_.set_weights("f32");
    spec_.set_prompt_tokens(2);
    spec_.set_continuation_tokens(20);
    for (int i = 0; i < 5; ++i) {
      v1::DistillationPrompt* prompt = prompts_.add_prompts();
      prompt->add_prompt(i);
      prompt->add_prompt(i + 1);
    }
    v1::ServeModelRequest request;
    request.set_artifact("large");
    request.set_name("served");
    const auto served = models_->Serve(request);
    EXPECT_TRUE(served.ok()) << served.status();
  }

  Loader loader_;
  SystemClock clock_;
  std::unique_ptr<SqliteStore> store_;
  std::optional<ModelServer> models_;
  DistillationDependencies tools_;
  v1::DistillationSpec spec_;
  v1::DistillationPrompts prompts_;
};

TEST_F(ContinuationsTest, AServedModelGeneratesThem) {
  const absl::Status status =
      Continue(tools_, spec_, &prompts_, [](int64_t) { return absl::OkStatus(); });
  ASSERT_TRUE(status.ok()) << status;
  for (const v1::DistillationPrompt& prompt : prompts_.prompts()) {
    EXPECT_TRUE(prompt.continued());
    EXPECT_EQ(prompt.continuation_size(), 20);
  }
}

// Regression: the model was kept loaded until all continuations were generated.
TEST_F(ContinuationsTest, AModelThatIsUnservedIsFreedAndNamed) {
  loader_.step = absl::Milliseconds(20);
  bool unserved = false;
  const absl::Status status = Continue(tools_, spec_, &prompts_, [&](int64_t) {
    if (!std::exchange(unserved, true)) {
      EXPECT_TRUE(models_->Unserve("served").ok());
      EXPECT_EQ(loader_.gone, 1);
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("model 'served'"));
  EXPECT_FALSE(prompts_.prompts(4).continued());
}

}  // namespace
}  // namespace espalier
