// All generating APIs treat disconnects and errors alike: whole requests through the gateway to a
// model whose tokens are letters.
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/gateway/gateway.h"
#include "server/store/sqlite_store.h"
#include "serving/chat_template/chat_template.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kVocabulary = 12;
constexpr int kMaxTokens = 200;
constexpr absl::Duration kTimeout = absl::Seconds(30);

// Sends the content of a conversation as the prompt.
class Loader : public ModelLoader {
 public:
  explicit Loader(FakeModel model) : model_(std::move(model)) {}

  absl::StatusOr<Loaded> Load(const std::string&, const std::vector<std::string>&,
                              const ServingSize&, const Expansion&, const Formats&,
                              const Placement&) override {
    Loaded loaded;
    loaded.parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
    TokenizerConfig config;
    config.chat_templates["default"] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    loaded.parts.chat = *ChatTemplate::Create(config);
    auto llm = std::make_unique<FakeModelRunner>(FakeModelRunner::LargeLimits(kVocabulary), model_);
    runner = llm.get();
    loaded.parts.llm = std::move(llm);
    return loaded;
  }

  FakeModelRunner* runner = nullptr;

 private:
  const FakeModel model_;
};

class Client : public HttpResponder {
 public:
  void Send(int status, std::string, std::string body, Headers) override {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    body_ = std::move(body);
    ended_ = true;
  }
  void StartStream(int status, std::string, Headers) override {
    absl::MutexLock lock(&mutex_);
    status_ = status;
  }
  void Write(std::string data) override {
    absl::MutexLock lock(&mutex_);
    body_ += data;
  }
  void End() override {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  void OnClose(std::function<void()> closed) override {
    absl::MutexLock lock(&mutex_);
    closed_ = std::move(closed);
  }

  void GoAway() {
    std::function<void()> closed;
    {
      absl::MutexLock lock(&mutex_);
      closed = closed_;
    }
    ASSERT_TRUE(closed);
    closed();
  }
  bool WaitForEnd() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&ended_), kTimeout);
  }
  bool ended() {
    absl::MutexLock lock(&mutex_);
    return ended_;
  }
  int status() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  std::string body() {
    absl::MutexLock lock(&mutex_);
    return body_;
  }

 private:
  absl::Mutex mutex_;
  int status_ = 0;
  bool ended_ = false;
  std::string body_;
  std::function<void()> closed_;
};

struct Api {
  const char* path;
  std::string fields;       // of the request
  const char* error_event;  // how an error begins within a stream
  const char* error = "\"error\":{";
  const char* separator = "\n\n";  // ends an event of a stream
};

std::vector<Api> Apis() {
  const std::string most = absl::StrCat(R"("max_tokens": )", kMaxTokens);
  const std::string options = absl::StrCat(R"("options": {"num_predict": )", kMaxTokens, "}");
  const std::string messages = R"(, "messages": [{"role": "user", "content": "abc"}])";
  return {
      {"/v1/completions", most + R"(, "prompt": "abc")", "data: {\"error\":{"},
      {"/v1/completions", most + R"(, "prompt": ["abc", "bcd"], "n": 2)", "data: {\"error\":{"},
      {"/v1/chat/completions", most + messages, "data: {\"error\":{"},
      {"/v1/chat/completions", most + messages + R"(, "n": 3)", "data: {\"error\":{"},
      {"/v1/responses", absl::StrCat(R"("input": "abc", "max_output_tokens": )", kMaxTokens),
       "event: response.failed\ndata: {"},
      {"/v1/messages", most + messages, "event: error\ndata: {\"type\":\"error\","},
      {"/api/chat", options + messages, "{\"error\":\"", "\"error\":\"", "\n"},
      {"/api/generate", options + R"(, "prompt": "abc")", "{\"error\":\"", "\"error\":\"", "\n"}};
}

class AnswerPipelineTest : public ::testing::TestWithParam<bool> {
 protected:
  AnswerPipelineTest() {
    const std::string path = testing::TempDir() + "/answer_pipeline_test.db";
    std::filesystem::remove(path);
    store_ = *SqliteStore::Open(path);
    models_.emplace(
        ModelServerOptions{.loader = &loader_, .store = store_.get(), .clock = &clock_});
    v1::ServeModelRequest request;
    request.set_artifact("m");
    EXPECT_TRUE(models_->Serve(request).ok());
    GatewayOptions options;
    options.models = &*models_;
    options.clock = &clock_;
    gateway_.emplace(std::move(options));
  }

  static bool stream() { return GetParam(); }

  std::shared_ptr<Client> Ask(const Api& api) {
    const auto client = std::make_shared<Client>();
    gateway_->Handle({.method = "POST",
                      .path = api.path,
                      .body = absl::StrCat(R"({"model": "m", "stream": )",
                                           stream() ? "true, " : "false, ", api.fields, "}")},
                     client);
    return client;
  }

  // The rest is for a model that answers no request.

  // Stops the model at its next `row`, until `go_` is notified.
  void PauseAt(int row) {
    paused_ = std::make_unique<absl::Notification>();
    go_ = std::make_unique<absl::Notification>();
    pause_at_ = rows_ + row;
  }
  void FailAt(int64_t step) { loader_.runner->FailFrom(loader_.runner->steps() + step); }
  bool WaitUntilIdle() {
    const auto model = models_->Find("m");
    const absl::Time end = absl::Now() + kTimeout;
    while ((*model)->engine->open() > 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    return (*model)->engine->open() == 0;
  }

  std::atomic<int> rows_ = 0;
  std::atomic<int> pause_at_ = 0;
  std::unique_ptr<absl::Notification> paused_, go_;
  Loader loader_{[this](absl::Span<const int> path) {
    if (++rows_ == pause_at_) {
      paused_->Notify();
      go_->WaitForNotification();
    }
    return HashModel(1, kVocabulary)(path);
  }};
  FakeClock clock_;
  std::unique_ptr<JobStore> store_;
  std::optional<ModelServer> models_;
  std::optional<Gateway> gateway_;
};

TEST_P(AnswerPipelineTest, ClientThatLeavesCancelsItsRequests) {
  for (const Api& api : Apis()) {
    SCOPED_TRACE(absl::StrCat(api.path, " ", api.fields));
    PauseAt(40);
    const auto client = Ask(api);
    ASSERT_TRUE(paused_->WaitForNotificationWithTimeout(kTimeout));
    const std::string seen = client->body();
    EXPECT_EQ(seen.empty(), !stream());
    client->GoAway();
    go_->Notify();
    ASSERT_TRUE(WaitUntilIdle());
    EXPECT_LT(rows_, pause_at_ + kMaxTokens / 2);
    EXPECT_EQ(client->body(), seen);
    EXPECT_FALSE(client->ended());
  }
}

TEST_P(AnswerPipelineTest, ErrorBeforeTheFirstPieceIsAnHttpError) {
  for (const Api& api : Apis()) {
    SCOPED_TRACE(absl::StrCat(api.path, " ", api.fields));
    FailAt(1);
    const auto client = Ask(api);
    ASSERT_TRUE(client->WaitForEnd());
    EXPECT_EQ(client->status(), 503);
    EXPECT_THAT(client->body(), HasSubstr(api.error));
    EXPECT_THAT(client->body(), Not(HasSubstr("data:")));
    ASSERT_TRUE(WaitUntilIdle());
  }
}

TEST_P(AnswerPipelineTest, LaterErrorIsAnEventOfAStreamAndTheStatusOfAWholeAnswer) {
  for (const Api& api : Apis()) {
    SCOPED_TRACE(absl::StrCat(api.path, " ", api.fields));
    FailAt(20);
    const auto client = Ask(api);
    ASSERT_TRUE(client->WaitForEnd());
    EXPECT_EQ(client->status(), stream() ? 200 : 503);
    const std::string body = client->body();
    if (stream()) {
      const std::string separator = api.separator;
      const size_t last = body.rfind(separator, body.size() - separator.size() - 1);
      ASSERT_NE(last, std::string::npos) << body;
      const std::string event = body.substr(last + separator.size());
      EXPECT_EQ(event.find(api.error_event), 0u) << event;
      EXPECT_THAT(body, EndsWith("}" + separator));
    } else {
      EXPECT_THAT(body, HasSubstr(api.error));
    }
    ASSERT_TRUE(WaitUntilIdle());
  }
}

TEST_P(AnswerPipelineTest, RequestThatCannotStartIsAnHttpError) {
  for (Api api : Apis()) {
    SCOPED_TRACE(absl::StrCat(api.path, " ", api.fields));
    const size_t prompt = api.fields.find("abc");
    api.fields.replace(prompt, 3, std::string(5000, 'b'));  // longer than the context
    const auto client = Ask(api);
    EXPECT_TRUE(client->ended());
    EXPECT_EQ(client->status(), 400) << client->body();
    EXPECT_THAT(client->body(), HasSubstr("tokens, the context"));
  }
}

INSTANTIATE_TEST_SUITE_P(StreamedAndWhole, AnswerPipelineTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Streamed" : "Whole"; });

}  // namespace
}  // namespace espalier
