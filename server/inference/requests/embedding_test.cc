// Embeddings of many inputs on a real engine: order of results, and how requests end.
#include "server/inference/requests/embedding.h"

#include <cmath>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 20;
constexpr int kHidden = 6;
constexpr int kContext = 40;

FakeModel Model(int adapter) { return HashModel(10 + adapter, kVocabulary); }

// Steps wait for the gate, if any; the first one reports that it waits.
ModelServer::Target Target(int max_requests, int max_queue, const std::string& adapter = "",
                           std::shared_ptr<absl::Notification> gate = nullptr,
                           std::shared_ptr<absl::Notification> began = nullptr) {
  EngineParts parts;
  parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
  RunnerLimits limits = FakeModelRunner::LargeLimits(kVocabulary);
  limits.hidden = kHidden;
  limits.max_positions = kContext;
  const auto model_behind_gate = [gate, began, model = Model(-1)](absl::Span<const int> path) {
    if (began != nullptr && !began->HasBeenNotified()) began->Notify();
    if (gate != nullptr) gate->WaitForNotification();
    return model(path);
  };
  auto llm = std::make_unique<FakeModelRunner>(limits, model_behind_gate);
  llm->SetAdapters({Model(0), Model(1)});
  parts.llm = std::move(llm);
  EngineOptions options;
  options.max_requests = max_requests;
  options.max_queue = max_queue;
  options.seconds = [] { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); };
  auto model = std::make_shared<LoadedModel>();
  auto engine = AsyncEngine::Create(std::move(parts), options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  model->engine = *std::move(engine);
  for (const char* name : {"first", "second"}) model->description.add_adapters()->set_name(name);
  return {std::move(model), adapter};
}

std::vector<int> Tokens(int i) {
  std::vector<int> tokens(1 + i % 7);
  for (size_t t = 0; t < tokens.size(); ++t)
    tokens[t] = (i + 3 * static_cast<int>(t)) % kVocabulary;
  return tokens;
}

v1::EmbedRequest Request(int inputs) {
  v1::EmbedRequest request;
  for (int i = 0; i < inputs; ++i) {
    auto* const tokens = request.add_inputs()->mutable_tokens();
    for (const int token : Tokens(i)) tokens->add_ids(token);
  }
  return request;
}

absl::StatusOr<v1::EmbedReply> Ask(const v1::EmbedRequest& request,
                                   const ModelServer::Target& target,
                                   absl::Notification* cancelled = nullptr) {
  struct Shared {
    absl::StatusOr<v1::EmbedReply> reply;
    absl::Notification done;
  };
  auto shared = std::make_shared<Shared>();
  auto embedding =
      StartEmbedding(request, target, nullptr, [shared](absl::StatusOr<v1::EmbedReply> reply) {
        shared->reply = std::move(reply);
        shared->done.Notify();  // crashes if called twice
      });
  if (!embedding.ok()) return embedding.status();
  if (cancelled != nullptr) {
    (*embedding)->Cancel();
    cancelled->Notify();
  }
  shared->done.WaitForNotification();
  return shared->reply;
}

std::vector<float> Expected(int adapter, int input, size_t size, bool normalize) {
  std::vector<float> values = Model(adapter)(Tokens(input));
  values.resize(size);
  double squares = 0;
  for (const float value : values) squares += value * value;
  for (float& value : values) {
    if (normalize) value = static_cast<float>(value / std::sqrt(squares));
  }
  return values;
}

void ExpectVectors(const v1::EmbedReply& reply, int inputs, int adapter, size_t size,
                   bool normalize) {
  ASSERT_EQ(reply.embeddings_size(), inputs);
  for (int i = 0; i < inputs; ++i) {
    const auto& values = reply.embeddings(i).values();
    ASSERT_EQ(values.size(), static_cast<int>(size));
    const std::vector<float> expected = Expected(adapter, i, size, normalize);
    for (size_t j = 0; j < size; ++j) {
      ASSERT_NEAR(values[static_cast<int>(j)], expected[j], 1e-6) << "input " << i;
    }
  }
}

TEST(Embedding, MoreInputsThanTheQueueHoldsComeBackInOrder) {
  for (const auto& [requests, queue] : {std::pair{1, 1}, {4, 2}, {4, 256}}) {
    const auto reply = Ask(Request(90), Target(requests, queue));
    ASSERT_TRUE(reply.ok()) << reply.status();
    ExpectVectors(*reply, 90, -1, kHidden, true);
    int tokens = 0;
    for (int i = 0; i < 90; ++i) tokens += static_cast<int>(Tokens(i).size());
    EXPECT_EQ(reply->usage().prompt_tokens(), tokens);
    EXPECT_EQ(reply->usage().completion_tokens(), 0);
  }
}

TEST(Embedding, MomentarilyFullQueueFailsNothingSubmitted) {
  const auto gate = std::make_shared<absl::Notification>();
  const auto began = std::make_shared<absl::Notification>();
  const auto target = Target(1, 1, "", gate, began);
  absl::Notification other;
  std::thread meanwhile([&] {
    began->WaitForNotification();
    const auto ticket = target.model->engine->Submit(std::vector<int>{1}, {.max_tokens = 1},
                                                     [&](const RequestEvent& event) {
                                                       EXPECT_TRUE(event.error.ok()) << event.error;
                                                       if (event.finished) other.Notify();
                                                     });
    EXPECT_TRUE(ticket.ok());
    gate->Notify();
  });
  const auto reply = Ask(Request(9), target);
  meanwhile.join();
  other.WaitForNotification();
  ASSERT_TRUE(reply.ok()) << reply.status();
  ExpectVectors(*reply, 9, -1, kHidden, true);
}

TEST(Embedding, DimensionsLengthAndAdapter) {
  v1::EmbedRequest request = Request(5);
  request.set_dimensions(3);
  auto reply = Ask(request, Target(4, 16));
  ASSERT_TRUE(reply.ok()) << reply.status();
  ExpectVectors(*reply, 5, -1, 3, true);
  request.set_no_normalization(true);
  reply = Ask(request, Target(4, 16, "second"));
  ASSERT_TRUE(reply.ok()) << reply.status();
  ExpectVectors(*reply, 5, 1, 3, false);
}

TEST(Embedding, InvalidInputsAreNamed) {
  const auto target = Target(2, 16);
  const auto refused = [&](const v1::EmbedRequest& request, const char* what) {
    const auto reply = Ask(request, target);
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(reply.status().message()), HasSubstr(what));
  };
  refused(v1::EmbedRequest(), "'inputs' has 0");
  refused(Request(kMaxEmbedInputs + 1), "'inputs' has 2049");
  v1::EmbedRequest request = Request(2);
  request.set_dimensions(kHidden + 1);
  refused(request, "'dimensions' is 7");
  request = Request(2);
  request.mutable_inputs(1)->mutable_tokens()->clear_ids();
  refused(request, "input 1: it has no tokens");
  request.mutable_inputs(1)->mutable_tokens()->add_ids(kVocabulary);
  refused(request, "is 20, the vocabulary has 20");
  request.mutable_inputs(1)->mutable_tokens()->mutable_ids()->Resize(kContext + 1, 3);
  request.mutable_inputs(1)->mutable_tokens()->set_ids(0, 3);
  refused(request, "input 1: it has 41 tokens, the context 40");
  request.set_truncate(true);
  EXPECT_TRUE(Ask(request, target).ok());
  const auto unknown = Ask(Request(1), {target.model, "third"});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("it has: first, second"));
}

TEST(Embedding, TimeoutCoversAllInputs) {
  const auto gate = std::make_shared<absl::Notification>();
  const auto target = Target(1, 1, "", gate);
  v1::EmbedRequest request = Request(300);
  request.set_timeout_seconds(0.2);
  std::thread opens([&] {
    absl::SleepFor(absl::Milliseconds(400));
    gate->Notify();
  });
  const auto late = Ask(request, target);
  opens.join();
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded) << late.status();
  request.set_timeout_seconds(60);
  EXPECT_TRUE(Ask(request, target).ok());
  request.set_timeout_seconds(-1);
  EXPECT_EQ(Ask(request, target).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Embedding, CancelledItEndsOnceAndFreesTheEngine) {
  const auto gate = std::make_shared<absl::Notification>();
  const auto target = Target(2, 2, "", gate);
  // Some inputs run, the others were not submitted.
  const auto reply = Ask(Request(300), target, gate.get());
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kCancelled) << reply.status();
  const auto after = Ask(Request(3), target);
  ASSERT_TRUE(after.ok()) << after.status();
  ExpectVectors(*after, 3, -1, kHidden, true);
  // The engine updates its count after the listener's call.
  while (target.model->engine->open() > 0) absl::SleepFor(absl::Milliseconds(1));
}

}  // namespace
}  // namespace espalier
