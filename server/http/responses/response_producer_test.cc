// What clients and watchers receive while a response runs and at its end, for stored kinds of
// responses.
#include "server/http/response_producer.h"

#include <limits>
#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/responses/response_store.h"
#include "server/http/responses/responses_formatter.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Not;

class Client : public HttpResponder {
 public:
  void Send(int status, std::string, std::string body, Headers) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(status_, 0) << "answered twice";
    status_ = status;
    body_ = std::move(body);
    ended_ = true;
  }
  void StartStream(int status, std::string, Headers) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(status_, 0) << "answered twice";
    status_ = status;
  }
  void Write(std::string data) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(ended_);
    EXPECT_EQ(status_, 200);
    body_ += data;
    ++writes_;
  }
  void End() override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(ended_) << "ended twice";
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
    if (closed) closed();
  }
  int status() const { return status_; }
  bool ended() const { return ended_; }
  int writes() const { return writes_; }
  const std::string& body() const { return body_; }
  json Body() const { return json::parse(body_); }

 private:
  absl::Mutex mutex_;
  int status_ = 0;
  int writes_ = 0;
  bool ended_ = false;
  std::string body_;
  std::function<void()> closed_;
};

class FakeGeneration : public Generation {
 public:
  void Cancel() override { ++cancelled; }
  void Stop() override { ++cancelled; }
  std::atomic<int> cancelled = 0;
};

v1::GenerateReply Text(const std::string& text) {
  v1::GenerateReply reply;
  reply.set_text(text);
  return reply;
}

v1::GenerateReply Last(const std::string& text) {
  v1::GenerateReply reply = Text(text);
  reply.set_finish_reason("stop");
  reply.mutable_usage()->set_completion_tokens(3);
  return reply;
}

class ResponseProducerTest : public ::testing::Test {
 protected:
  std::shared_ptr<ResponseProducer> Make(bool stream, bool background) {
    openai::ResponseHead head{.id = "resp_1", .model = "lm", .with_logprobs = true};
    head.echo["background"] = background;
    return MakeOf(std::make_unique<openai::ResponsesFormatter>(head, openai::ItemIds("1"), stream),
                  background);
  }

  std::shared_ptr<ResponseProducer> MakeOf(std::unique_ptr<ResponseFormatter> writer,
                                           bool background) {
    ResponseProducerOptions options;
    options.formatter = std::move(writer);
    options.serialization_thread = serialization_thread_;
    options.stored_values = stored_values_;
    options.prompts = prompts_;
    options.background = background;
    options.ended = [this, background](json object, std::vector<std::string> events) {
      StoredResponse ended{"", std::move(object), json::array(), std::move(events)};
      if (background) {
        store_->End("resp_1", std::move(ended));
      } else {
        store_->Put("resp_1", std::move(ended));
      }
    };
    options.clock = &clock_;
    auto run = std::make_shared<ResponseProducer>(std::move(options), client_);
    if (background) store_->Start("resp_1", "", run);
    return run;
  }

  json Stored() const {
    const ResponseStore::Found found = store_->Find("resp_1", Caller::Unrestricted());
    return found.ended == nullptr ? json() : found.ended->object;
  }

  FakeClock clock_;
  std::shared_ptr<ResponseStore> store_ = std::make_shared<ResponseStore>(64 << 20);
  std::shared_ptr<Client> client_ = std::make_shared<Client>();
  std::shared_ptr<FakeGeneration> generation_ = std::make_shared<FakeGeneration>();
  std::shared_ptr<SerializationThread> serialization_thread_;  // null unless a test sets it
  size_t stored_values_ = 0;
  int prompts_ = 1;
};

TEST_F(ResponseProducerTest, AWholeAnswerComesOnceAndIsKept) {
  auto run = Make(false, false);
  const GenerationListener listener = run->Listener();
  run->Accept(generation_);
  listener(Text("In the "), false);
  EXPECT_EQ(client_->status(), 0);
  listener(Last("beginning"), true);
  EXPECT_EQ(client_->status(), 200);
  EXPECT_EQ(client_->Body()["output"][0]["content"][0]["text"], "In the beginning");
  EXPECT_EQ(Stored(), client_->Body());
  EXPECT_EQ(generation_.use_count(), 1) << "what has ended is let go of";
}

TEST_F(ResponseProducerTest, AnAnswerMayEndBeforeItsSubmissionReturns) {
  for (const bool stream : {false, true}) {
    client_ = std::make_shared<Client>();
    auto run = Make(stream, false);
    run->Listener()(Last("all"), true);
    run->Accept(generation_);
    EXPECT_EQ(client_->status(), 200);
    EXPECT_TRUE(client_->ended());
    EXPECT_EQ(generation_.use_count(), 1);
  }
}

TEST_F(ResponseProducerTest, ErrorsBeforeTheFirstByteAreAStatus) {
  for (const bool stream : {false, true}) {
    client_ = std::make_shared<Client>();
    auto run = Make(stream, false);
    const GenerationListener listener = run->Listener();
    run->Accept(generation_);
    listener(absl::ResourceExhaustedError("the queue is full"), true);
    EXPECT_EQ(client_->status(), 429);
    EXPECT_EQ(client_->Body()["error"]["code"], "queue_full");
    EXPECT_TRUE(Stored().is_null());
  }
}

// Half an answer is an error: a status, or, if too late for that, an event.
TEST_F(ResponseProducerTest, CancellationByTheServerIsAFailure) {
  for (const bool stream : {false, true}) {
    client_ = std::make_shared<Client>();
    auto run = Make(stream, false);
    const GenerationListener listener = run->Listener();
    run->Accept(generation_);
    listener(Text("In"), false);
    v1::GenerateReply last = Last("");
    last.set_finish_reason("cancelled");
    listener(last, true);
    EXPECT_TRUE(client_->ended());
    EXPECT_EQ(client_->status(), stream ? 200 : 503);
    EXPECT_THAT(client_->body(), HasSubstr("unloaded"));
    EXPECT_EQ(absl::StrContains(client_->body(), "response.failed"), stream);
  }
}

TEST_F(ResponseProducerTest, LaterErrorsOfAStreamAreEvents) {
  auto run = Make(true, false);
  const GenerationListener listener = run->Listener();
  run->Accept(generation_);
  listener(Text("In"), false);
  listener(absl::UnavailableError("a worker is lost"), true);
  EXPECT_EQ(client_->status(), 200);
  EXPECT_TRUE(client_->ended());
  EXPECT_THAT(client_->body(), HasSubstr("event: response.failed\n"));
  EXPECT_THAT(client_->body(), HasSubstr("a worker is lost"));
}

TEST_F(ResponseProducerTest, DisconnectCancelsUnlessInTheBackground) {
  for (const bool background : {false, true}) {
    client_ = std::make_shared<Client>();
    generation_ = std::make_shared<FakeGeneration>();
    auto run = Make(true, background);
    const GenerationListener listener = run->Listener();
    run->Accept(generation_);
    listener(Text("In"), false);
    client_->GoAway();
    EXPECT_EQ(generation_->cancelled, background ? 0 : 1);
    const std::string seen = client_->body();
    listener(Last(" the"), true);
    EXPECT_EQ(client_->body(), seen);
    if (background) {
      EXPECT_EQ(Stored()["output"][0]["content"][0]["text"], "In the");
    } else {
      EXPECT_TRUE(Stored().is_null());
    }
  }
}

TEST_F(ResponseProducerTest, BackgroundResponseReturnsAtOnceAndIsFoundLater) {
  auto run = Make(false, true);
  const GenerationListener listener = run->Listener();
  run->Accept(generation_);
  EXPECT_EQ(client_->status(), 200);
  EXPECT_EQ(client_->Body()["status"], "queued");
  listener(Text("In"), false);
  EXPECT_EQ(store_->Find("resp_1", Caller::Unrestricted()).running->Snapshot()["status"],
            "in_progress");
  listener(Last(" the"), true);
  EXPECT_EQ(store_->Find("resp_1", Caller::Unrestricted()).running, nullptr);
  EXPECT_EQ(Stored()["status"], "completed");
}

TEST_F(ResponseProducerTest, ABackgroundResponseThatFailsSaysWhyLater) {
  auto run = Make(false, true);
  const GenerationListener listener = run->Listener();
  listener(absl::ResourceExhaustedError("the queue is full"), true);
  run->Accept(generation_);
  EXPECT_EQ(client_->status(), 200);
  EXPECT_EQ(Stored()["status"], "failed");
  EXPECT_EQ(Stored()["error"]["code"], "rate_limit_exceeded");
}

// Whenever a watcher joins, stored and new events form one complete stream.
TEST_F(ResponseProducerTest, StreamsCanBeResumedAtAnyEvent) {
  auto run = Make(true, true);
  const GenerationListener listener = run->Listener();
  listener(Text("a"), false);  // before Accept
  run->Accept(generation_);
  listener(Text("b"), false);
  const auto early = std::make_shared<Client>(), late = std::make_shared<Client>();
  run->Watch(early, 3);
  listener(Last("c"), true);
  run->Watch(late, -1);
  const std::string whole = client_->body();
  EXPECT_TRUE(client_->ended() && early->ended() && late->ended());
  EXPECT_EQ(late->body(), whole);
  EXPECT_TRUE(absl::EndsWith(whole, early->body()));
  EXPECT_THAT(early->body(), HasSubstr("\"sequence_number\":4,"));
  EXPECT_THAT(early->body(), Not(HasSubstr("\"sequence_number\":3,")));
  const auto stored = store_->Find("resp_1", Caller::Unrestricted()).ended;
  Client again;
  StartEventStream(again);
  WriteEvents(stored->events, -1, again);
  EXPECT_EQ(again.body(), whole);
  // Many events must not look like a client that does not read.
  EXPECT_EQ(again.writes(), 1);
  // Any event number beyond the last is accepted.
  Client none;
  StartEventStream(none);
  WriteEvents(stored->events, std::numeric_limits<int64_t>::max(), none);
  EXPECT_EQ(none.body(), "");
}

// Regression: the end of a stream repeats its content four times, which looked like a client that
// does not read.
TEST_F(ResponseProducerTest, EventsOfOneReplyAreOneWrite) {
  auto run = Make(true, true);
  const GenerationListener listener = run->Listener();
  run->Accept(generation_);
  const auto watcher = std::make_shared<Client>();
  run->Watch(watcher, -1);
  listener(Text("In"), false);
  const int writes = client_->writes(), watched = watcher->writes();
  listener(Last(" the"), true);
  EXPECT_EQ(client_->writes(), writes + 1);
  EXPECT_EQ(watcher->writes(), watched + 1);
  EXPECT_THAT(client_->body(), HasSubstr("event: response.output_item.done\n"));
  EXPECT_THAT(client_->body(), HasSubstr("event: response.completed\n"));
  EXPECT_EQ(watcher->body(), client_->body());
}

v1::GenerateReply Listed(const std::string& text) {
  v1::GenerateReply reply = Text(text);
  for (const char c : text) reply.add_logprobs()->set_text(std::string(1, c));
  return reply;
}

// All streams wait for the engine's thread: slow work is done elsewhere, in order.
TEST_F(ResponseProducerTest, LargeRepliesAreWrittenOffTheEngineThread) {
  std::vector<std::string> bodies;
  for (const bool aside : {false, true}) {
    client_ = std::make_shared<Client>();
    absl::Notification go;
    serialization_thread_ = aside ? std::make_shared<SerializationThread>() : nullptr;
    if (aside) serialization_thread_->Run([&] { go.WaitForNotification(); });
    auto run = Make(true, false);
    const GenerationListener listener = run->Listener();
    run->Accept(generation_);
    listener(Listed("small"), false);
    EXPECT_THAT(client_->body(), HasSubstr("small"));
    const int writes = client_->writes();
    listener(Listed(std::string(1000, 'x')), false);
    listener(Listed("behind"), false);
    listener(Last("."), true);
    if (aside) {
      EXPECT_EQ(client_->writes(), writes);
      EXPECT_FALSE(client_->ended());
    }
    go.Notify();
    serialization_thread_.reset();  // drains the queue
    EXPECT_TRUE(client_->ended());
    EXPECT_EQ(generation_.use_count(), 1);
    bodies.push_back(client_->body());
  }
  EXPECT_EQ(bodies[0], bodies[1]);
}

TEST_F(ResponseProducerTest, LargeConversationIsStoredOffTheEngineThread) {
  for (const size_t kept : {size_t{10}, size_t{100'000}}) {
    absl::Notification go;
    client_ = std::make_shared<Client>();
    store_ = std::make_shared<ResponseStore>(64 << 20);
    serialization_thread_ = std::make_shared<SerializationThread>();
    serialization_thread_->Run([&] { go.WaitForNotification(); });
    stored_values_ = kept;
    auto run = Make(false, false);
    const GenerationListener listener = run->Listener();
    run->Accept(generation_);
    listener(Last("."), true);
    EXPECT_EQ(Stored().is_null(), kept > 1000);
    go.Notify();
    serialization_thread_.reset();  // drains the queue
    EXPECT_EQ(Stored()["status"], "completed");
    EXPECT_EQ(client_->Body()["status"], "completed");
  }
}

// A formatter whose Object() blocks as long as the test wants.
class SlowFormatter : public openai::ResponsesFormatter {
 public:
  SlowFormatter(absl::Notification* looked, absl::Notification* go)
      : ResponsesFormatter({.id = "resp_1", .echo = json::object()}, openai::ItemIds("1"), false),
        looked_(looked),
        go_(go) {}

  json Object() const override {
    if (!looked_->HasBeenNotified()) {
      looked_->Notify();
      go_->WaitForNotification();
    }
    return ResponsesFormatter::Object();
  }

 private:
  absl::Notification* const looked_;
  absl::Notification* const go_;
};

TEST_F(ResponseProducerTest, EngineDoesNotWaitForSnapshots) {
  absl::Notification looked, go, said;
  serialization_thread_ = std::make_shared<SerializationThread>();
  auto run = MakeOf(std::make_unique<SlowFormatter>(&looked, &go), false);
  const GenerationListener listener = run->Listener();
  run->Accept(generation_);
  std::thread client([&] { run->Snapshot(); });
  looked.WaitForNotification();
  std::thread engine([&] {
    listener(Text("In "), false);
    listener(Last("order"), true);
    said.Notify();
  });
  EXPECT_TRUE(said.WaitForNotificationWithTimeout(absl::Seconds(10)));
  go.Notify();
  engine.join();
  client.join();
  serialization_thread_.reset();
  EXPECT_EQ(client_->Body()["output"][0]["content"][0]["text"], "In order");
}

// It runs on a thread of the server, on which other connections wait.
TEST_F(ResponseProducerTest, DisconnectDoesNotWaitForAnAnswerThatIsBeingSerialized) {
  absl::Notification looked, go;
  auto run = MakeOf(std::make_unique<SlowFormatter>(&looked, &go), false);
  const GenerationListener listener = run->Listener();
  run->Accept(generation_);
  std::thread engine([&] { listener(Last("all"), true); });
  looked.WaitForNotification();
  client_->GoAway();
  go.Notify();
  engine.join();
  EXPECT_EQ(generation_->cancelled, 0) << "it had ended";
}

TEST_F(ResponseProducerTest, NothingIsSentToAClientThatHasLeft) {
  for (const bool stream : {false, true}) {
    client_ = std::make_shared<Client>();
    generation_ = std::make_shared<FakeGeneration>();
    auto run = Make(stream, false);
    run->Accept(generation_);
    client_->GoAway();
    EXPECT_EQ(generation_->cancelled, 1);
    EXPECT_EQ(client_->status(), 0);
    EXPECT_FALSE(client_->ended());
  }
}

TEST_F(ResponseProducerTest, FailedSubmissionIsAStatusAlsoInTheBackground) {
  for (const bool background : {false, true}) {
    client_ = std::make_shared<Client>();
    auto run = Make(true, background);
    run->Accept(absl::InvalidArgumentError("the prompt is too long"));
    EXPECT_EQ(client_->status(), 400);
    EXPECT_THAT(client_->body(), HasSubstr("too long"));
    EXPECT_TRUE(Stored().is_null());
  }
}

// The last replies of all prompts end the answer.
TEST_F(ResponseProducerTest, RepliesOfSeveralPromptsAreOneAnswer) {
  prompts_ = 2;
  auto run = Make(false, false);
  const BatchListener listener = run->ListenerForPrompts();
  run->Accept(generation_);
  listener(1, Last("In "), true);
  EXPECT_FALSE(client_->ended());
  listener(0, Text("the "), false);
  listener(0, Last("end"), true);
  EXPECT_EQ(client_->Body()["output"][0]["content"][0]["text"], "In the end");
}

TEST_F(ResponseProducerTest, ACancelledResponseIsKeptAsItWas) {
  auto run = Make(false, true);
  const GenerationListener listener = run->Listener();
  run->Accept(generation_);
  listener(Text("In"), false);
  run->Cancel();
  run->Cancel();
  EXPECT_EQ(generation_->cancelled, 1);
  listener(Last(" the"), true);
  EXPECT_EQ(Stored()["status"], "cancelled");
  EXPECT_EQ(Stored()["output"][0]["content"][0]["text"], "In");
}

// For ThreadSanitizer: the engine writes while clients watch, poll, cancel and disconnect.
TEST_F(ResponseProducerTest, ConcurrentUseIsSafe) {
  for (int round = 0; round < 30; ++round) {
    client_ = std::make_shared<Client>();
    serialization_thread_ = round % 5 == 0 ? nullptr : std::make_shared<SerializationThread>();
    auto run = Make(true, true);
    const GenerationListener listener = run->Listener();
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        listener(i % 10 == 3 ? Listed(std::string(300, 'x')) : Text("x"), false);
      }
      listener(Last("y"), true);
    });
    threads.emplace_back([&] {
      run->Accept(generation_);
      if (round % 3 == 0) run->Cancel();
    });
    const auto watcher = std::make_shared<Client>();
    threads.emplace_back([&] {
      run->Watch(watcher, 2);
      if (round % 2 == 0) watcher->GoAway();
    });
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        if (const auto found = store_->Find("resp_1", Caller::Unrestricted()); found.running)
          found.running->Snapshot();
      }
    });
    for (std::thread& thread : threads) thread.join();
    serialization_thread_.reset();
    EXPECT_TRUE(client_->ended());
    EXPECT_EQ(Stored()["status"], round % 3 == 0 ? Stored()["status"] : json("completed"));
    EXPECT_TRUE(round % 2 == 0 || watcher->ended());
  }
}

}  // namespace
}  // namespace espalier
