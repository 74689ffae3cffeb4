// Test helper: a model whose tokens are letters, on a real engine.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/inference/requests/generation.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {

inline constexpr int kVocabulary = 20;

inline std::shared_ptr<LoadedModel> Model(
    int max_queue = 256, GenerationConfig generation = {},
    SampledDrafting sampled = SampledDrafting::kWithoutReplacement, int64_t ssm_fails = 0,
    int ssm_positions = 0) {
  EngineParts parts;
  parts.generation = std::move(generation);
  parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
  const RunnerLimits limits = FakeModelRunner::LargeLimits(kVocabulary);
  parts.llm = std::make_unique<FakeModelRunner>(limits, HashModel(1, kVocabulary));
  RunnerLimits small = limits;
  if (ssm_positions > 0) small.max_positions = ssm_positions;
  auto ssm = std::make_unique<FakeModelRunner>(small, HashModel(1, kVocabulary));
  ssm->FailFrom(ssm_fails);
  parts.ssms.push_back(std::move(ssm));
  EngineOptions options;
  options.expansion = *Expansion::Create({1, 2});
  options.max_requests = 4;
  options.max_queue = max_queue;
  options.seconds = [] { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); };
  options.speculation.sampled = sampled;
  auto model = std::make_shared<LoadedModel>();
  auto engine = AsyncEngine::Create(std::move(parts), options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  model->engine = *std::move(engine);
  model->grammars = std::make_unique<GrammarCache>(model->engine->shared_tokenizer());
  return model;
}

struct Answers {
  std::map<int, std::string> texts, reasons, stop_strings;
  std::map<int, double> logprobs;  // sums
  v1::Usage usage;
  absl::Status error;
  int calls_after_last = 0;
  absl::Notification done;

  GenerationListener Listener() {
    return [this](const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
      if (done.HasBeenNotified()) ++calls_after_last;
      if (reply.ok()) {
        texts[reply->index()] += reply->text();
        for (const auto& token : reply->logprobs()) logprobs[reply->index()] += token.logprob();
        if (!reply->finish_reason().empty()) reasons[reply->index()] = reply->finish_reason();
        if (reply->has_stop_string()) stop_strings[reply->index()] = reply->stop_string();
        if (last) usage = reply->usage();
      } else {
        error = reply.status();
      }
      if (last) done.Notify();
    };
  }
};

inline v1::GenerateRequest Request(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_has_seed(true);
  return request;
}

inline void Finish(const v1::GenerateRequest& request, std::shared_ptr<LoadedModel> model,
                   Answers* answers) {
  ModelServer models({});
  auto generation =
      StartGeneration(request, std::move(model), &models, nullptr, answers->Listener());
  ASSERT_TRUE(generation.ok()) << generation.status();
  answers->done.WaitForNotification();
}

inline std::string TextOf(const v1::GenerateRequest& request, std::shared_ptr<LoadedModel> model) {
  Answers answers;
  Finish(request, std::move(model), &answers);
  EXPECT_TRUE(answers.error.ok()) << answers.error;
  return answers.texts[0];
}

}  // namespace espalier
