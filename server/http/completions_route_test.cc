// Whole requests on a model whose tokens are letters: numbers of prompts, and off-thread
// serialization.
#include "server/http/completions_route.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/testing/fake_clock.h"
#include "gtest/gtest.h"
#include "server/http/responses/responses_route.h"
#include "server/store/sqlite_store.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using json = nlohmann::json;

constexpr int kVocabulary = 12;

class Loader : public ModelLoader {
 public:
  absl::StatusOr<Loaded> Load(const std::string&, const std::vector<std::string>&,
                              const ServingSize&, const Expansion&, const Formats&,
                              const Placement&) override {
    Loaded loaded;
    loaded.parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
    RunnerLimits limits = FakeModelRunner::LargeLimits(kVocabulary);
    limits.max_positions = 1024;
    loaded.parts.llm = std::make_unique<FakeModelRunner>(limits, HashModel(1, kVocabulary, 4));
    return loaded;
  }
};

class Client : public HttpResponder {
 public:
  void Send(int status, std::string, std::string body, Headers headers) override {
    status_ = status;
    headers_ = std::move(headers);
    body_ = std::move(body);
    done_.Notify();
  }
  void StartStream(int status, std::string, Headers headers) override {
    status_ = status;
    headers_ = std::move(headers);
  }
  void Write(std::string data) override { body_ += data; }
  void End() override { done_.Notify(); }
  void OnClose(std::function<void()>) override {}

  bool done() const { return done_.HasBeenNotified(); }
  int status() {
    done_.WaitForNotification();
    return status_;
  }
  json Body() {
    done_.WaitForNotification();
    return json::parse(body_);
  }
  const std::string& body() const { return body_; }
  // Empty if there is none of this name.
  std::string Header(const std::string& name) {
    done_.WaitForNotification();
    for (const auto& [given, value] : headers_) {
      if (given == name) return value;
    }
    return "";
  }

 private:
  int status_ = 0;
  Headers headers_;
  std::string body_;
  absl::Notification done_;
};

class CompletionsRouteTest : public testing::Test {
 protected:
  CompletionsRouteTest() {
    const std::string path = testing::TempDir() + "/completions_route_test.db";
    std::filesystem::remove(path);
    store_ = *SqliteStore::Open(path);
    models_.emplace(
        ModelServerOptions{.loader = &loader_, .store = store_.get(), .clock = &clock_});
    v1::ServeModelRequest request;
    request.set_artifact("m");
    EXPECT_TRUE(models_->Serve(request).ok());
  }

  std::shared_ptr<Client> Complete(const std::string& fields,
                                   std::shared_ptr<SerializationThread> large = nullptr) {
    HttpRequest http;
    http.body = absl::StrCat(R"({"model": "m", "seed": 1, )", fields, "}");
    const auto client = std::make_shared<Client>();
    Generate(openai::Kind::kCompletion, http,
             {.models = &*models_,
              .clock = &clock_,
              .id = absl::StrCat(++number_),
              .serialization_thread = large},
             client);
    return client;
  }

  Loader loader_;
  FakeClock clock_;
  std::unique_ptr<JobStore> store_;
  std::optional<ModelServer> models_;
  int64_t number_ = 0;
};

std::string ManyPrompts(int count) {
  std::string prompts = "\"a\"";
  for (int i = 1; i < count; ++i) {
    absl::StrAppend(&prompts, ", \"", std::string(1, static_cast<char>('a' + i % 10)), "\"");
  }
  return absl::StrCat("\"prompt\": [", prompts, "]");
}

// Regression: with a queue of 256, an idle server kept answering "retry later".
TEST_F(CompletionsRouteTest, AllPromptsThatARequestMayHaveAreAnswered) {
  for (const char* stream : {"false", "true"}) {
    const auto client = Complete(
        absl::StrCat(ManyPrompts(256), R"(, "n": 2, "max_tokens": 3, "stream": )", stream));
    ASSERT_EQ(client->status(), 200) << client->body().substr(0, 500);
    if (*stream == 't') {
      EXPECT_NE(client->body().find("[DONE]"), std::string::npos);
      EXPECT_EQ(client->body().find("error"), std::string::npos);
      continue;
    }
    const json choices = client->Body()["choices"];
    ASSERT_EQ(choices.size(), 512u);
    for (size_t i = 0; i < choices.size(); ++i) {
      EXPECT_EQ(choices[i]["index"], i);
      EXPECT_FALSE(choices[i]["finish_reason"].get<std::string>().empty()) << i;
    }
  }
}

TEST_F(CompletionsRouteTest, WhatASchemaSaysInVainIsToldInAHeader) {
  for (const char* stream : {"false", "true"}) {
    for (const bool vain : {false, true}) {
      const auto client = Complete(
          absl::StrCat(R"("prompt": "a", "max_tokens": 1, "stream": )", stream,
                       R"(, "structured_outputs": {"json": {"type": "string", "format": ")",
                       vain ? "phone" : "date", "\"}}"));
      client->status();
      EXPECT_EQ(client->Header("espalier-warning"),
                vain ? "json_schema: #/format: \"phone\" is not enforced" : "");
      EXPECT_EQ(client->Header("X-Request-Id"), absl::StrCat(number_));
    }
  }
}

TEST_F(CompletionsRouteTest, OnePromptThatIsTooLongIsTheAnswer) {
  const auto client = Complete(absl::StrCat(R"("prompt": ["a", ")", std::string(5000, 'b'), "\"]"));
  EXPECT_EQ(client->status(), 400);
  EXPECT_EQ(client->Body()["error"]["param"], "prompt");
}

// Regression: cached_tokens counted what sibling answers had computed.
TEST_F(CompletionsRouteTest, OnlyWhatEarlierRequestsLeftIsCounted) {
  const std::string fields =
      absl::StrCat(R"("prompt": ")", std::string(100, 'b'), R"(", "n": 3, "max_tokens": 2)");
  const auto cached = [&] {
    return Complete(fields)->Body()["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_GT(cached(), 90);
}

TEST_F(CompletionsRouteTest, AnEchoHasAsManyAlternativesAsTheAnswer) {
  for (const int top : {0, 1, 4}) {
    const json choice =
        Complete(absl::StrCat(R"("prompt": "bcd", "echo": true, "max_tokens": 2, "logprobs": 1, )",
                              R"("ignore_eos": true, "prompt_logprobs": )", top))
            ->Body()["choices"][0];
    const json& echoed = choice["logprobs"]["top_logprobs"];
    ASSERT_EQ(echoed.size(), 5u);
    // The most likely token and the actual one.
    EXPECT_LE(echoed[1].size(), 2u);
    EXPECT_GE(echoed[1].size(), 1u);
    EXPECT_GE(static_cast<int>(choice["prompt_logprobs"][1].size()), std::max(1, top));
    EXPECT_LE(static_cast<int>(choice["prompt_logprobs"][1].size()), top + 1);
  }
}

// All streams wait for the engine's thread.
TEST_F(CompletionsRouteTest, LargeAnswerIsWrittenOffTheEngineThread) {
  absl::Notification go;
  {
    const auto large = std::make_shared<SerializationThread>();
    large->Run([&] { go.WaitForNotification(); });
    const std::string fields = ManyPrompts(20) + R"(, "max_tokens": 20, "ignore_eos": true)";
    const auto listed = Complete(fields + R"(, "logprobs": 5)", large);
    EXPECT_EQ(Complete(fields, large)->status(), 200);
    const auto model = models_->Find("m");
    ASSERT_TRUE(model.ok());
    while ((*model)->engine->open() > 0) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_FALSE(listed->done());
    go.Notify();
    EXPECT_EQ(listed->status(), 200);
    EXPECT_EQ(listed->Body()["choices"][19]["logprobs"]["tokens"].size(), 20u);
  }
}

// Returns the streamed text and the number of tokens listed with it.
std::pair<std::string, size_t> Streamed(const std::string& body) {
  std::pair<std::string, size_t> out;
  for (const absl::string_view line : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    const absl::string_view data = absl::StripPrefix(line, "data: ");
    if (data == "[DONE]") continue;
    const json chunk = json::parse(data);
    for (const json& choice : chunk["choices"]) {
      out.first += choice["text"];
      if (choice["logprobs"].is_object()) out.second += choice["logprobs"]["tokens"].size();
    }
  }
  return out;
}

// With prompt logprobs, a single stream event may be large.
TEST_F(CompletionsRouteTest, LargeStreamEventIsWrittenOffTheEngineThread) {
  const std::string fields = absl::StrCat(
      R"("prompt": ")", std::string(400, 'b'),
      R"(", "echo": true, "logprobs": 5, "max_tokens": 20, "ignore_eos": true, "stream": true)");
  const auto at_once = Complete(fields);
  EXPECT_EQ(at_once->status(), 200);
  absl::Notification go;
  const auto large = std::make_shared<SerializationThread>();
  large->Run([&] { go.WaitForNotification(); });
  const auto aside = Complete(fields, large);
  const auto model = models_->Find("m");
  ASSERT_TRUE(model.ok());
  while ((*model)->engine->open() > 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(aside->done());
  EXPECT_EQ(aside->body(), "");
  go.Notify();
  EXPECT_EQ(aside->status(), 200);
  EXPECT_TRUE(absl::EndsWith(aside->body(), "data: [DONE]\n\n"));
  EXPECT_EQ(Streamed(aside->body()).second, 420u);
  EXPECT_EQ(Streamed(aside->body()), Streamed(at_once->body()));
}

// Prompt tokens that a request with this key finds in the prefix cache.
int CachedTokens(ModelServer& models, const Clock& clock, const std::string& key,
                 const std::string& prompt) {
  HttpRequest http;
  http.body = absl::StrCat(R"({"model": "m", "max_tokens": 1, "prompt": ")", prompt, "\"}");
  const auto client = std::make_shared<Client>();
  Generate(openai::Kind::kCompletion, http,
           {.models = &models,
            .clock = &clock,
            .id = "1",
            .authorization = key.empty() ? "" : absl::StrCat("Bearer ", key)},
           client);
  EXPECT_EQ(client->status(), 200) << client->body();
  return client->Body()["usage"]["prompt_tokens_details"]["cached_tokens"];
}

// A caller could guess the prompts of others byte by byte.
TEST_F(CompletionsRouteTest, PrefixesAreSharedWithinAKeyOnly) {
  const std::string prompt = "abcdefghijabcdefghij";
  const auto cached = [&](const std::string& key) {
    return CachedTokens(*models_, clock_, key, prompt);
  };
  EXPECT_EQ(cached("the-key-of-one"), 0);
  EXPECT_GT(cached("the-key-of-one"), 10);
  EXPECT_EQ(cached("the-key-of-another"), 0);
  EXPECT_GT(cached("the-key-of-another"), 10);
  EXPECT_EQ(cached(""), 0);
}

TEST_F(CompletionsRouteTest, PrefixesAreSharedByAllIfTheOperatorSaysSo) {
  models_.emplace(ModelServerOptions{
      .loader = &loader_, .store = store_.get(), .clock = &clock_, .share_prefixes = true});
  v1::ServeModelRequest request;
  request.set_artifact("n");
  request.set_name("m");
  ASSERT_TRUE(models_->Serve(request).ok());
  EXPECT_EQ(CachedTokens(*models_, clock_, "the-key-of-one", "abcdefghijabcdefghij"), 0);
  EXPECT_GT(CachedTokens(*models_, clock_, "the-key-of-another", "abcdefghijabcdefghij"), 10);
}

class Ended : public InProgressResponse {
 public:
  nlohmann::ordered_json Snapshot() override { return {}; }
  bool streams() const override { return true; }
  void Watch(std::shared_ptr<HttpResponder>, int64_t) override {}
  void Cancel() override {}
};

// Regression: it was answered as if the conversation had just begun.
TEST_F(CompletionsRouteTest, ResponseWithDroppedConversationCannotBeContinued) {
  const auto store = std::make_shared<ResponseStore>(10'000);
  store->Start("resp_1", "", std::make_shared<Ended>());
  StoredResponse response{.object = {{"id", "resp_1"}, {"status", "completed"}},
                          .input = {{{"id", "msg_1"}, {"content", std::string(20'000, 'x')}}},
                          .events = {"event"}};
  response.object["output"] = nlohmann::ordered_json::array();
  store->End("resp_1", std::move(response));
  HttpRequest http;
  http.body = R"({"model": "m", "input": "a", "previous_response_id": "resp_1"})";
  const auto next = std::make_shared<Client>(), items = std::make_shared<Client>(),
             again = std::make_shared<Client>();
  const ResponsesContext context{
      {.models = &*models_, .clock = &clock_, .caller = Caller::Unrestricted()}, store};
  CreateResponse(http, context, next);
  EXPECT_EQ(next->status(), 404) << next->body();
  EXPECT_EQ(next->Body()["error"]["code"], "previous_response_not_found");
  EXPECT_TRUE(absl::StrContains(next->body(), "--response-store-bytes")) << next->body();
  ListResponseInputItems({}, "resp_1", context, items);
  EXPECT_EQ(items->status(), 404) << items->body();
  http.query = "stream=true";
  GetResponse(http, "resp_1", context, again);
  EXPECT_EQ(again->status(), 400);
  EXPECT_TRUE(absl::StrContains(again->body(), "too many to be kept")) << again->body();
}

}  // namespace
}  // namespace espalier
