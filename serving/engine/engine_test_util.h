// A harness that runs requests through an engine to completion, checking its invariants after every
// step.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serving/engine/engine.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"
#include "serving/testing/pipelined_model_runner.h"

namespace espalier {

struct Answer {
  std::vector<int> tokens;
  std::string text;
  FinishReason reason = FinishReason::kNone;
  absl::Status error;
  Usage usage;
  std::vector<float> embedding;
};

class EngineHarness {
 public:
  EngineHarness(int vocabulary, std::vector<int> eos = {})
      : tokenizer_(vocabulary, std::move(eos)), limits_(FakeModelRunner::LargeLimits(vocabulary)) {}

  RunnerLimits& limits() { return limits_; }
  void SetLlm(FakeModel model) {
    llm_ = std::make_unique<FakeModelRunner>(limits_, std::move(model));
  }
  void AddSsm(FakeModel model) { AddSsm(std::move(model), limits_); }
  void AddSsm(FakeModel model, const RunnerLimits& limits) {
    ssms_.push_back(std::make_unique<FakeModelRunner>(limits, std::move(model)));
  }
  FakeModelRunner& llm() { return *llm_; }
  // From the next Start on, the LLM supports this many concurrent steps.
  void SetConcurrentSteps(int steps) {
    pipelined_ = std::make_unique<PipelinedModelRunner>(*llm_, steps);
  }
  PipelinedModelRunner& pipelined() { return *pipelined_; }
  FakeModelRunner& ssm(int i) { return *ssms_[i]; }

  absl::Status Start(EngineOptions options, const char* expansion = "") {
    options.expansion = *Expansion::Parse(expansion);
    std::vector<ModelRunner*> ssms;
    for (const auto& ssm : ssms_) ssms.push_back(ssm.get());
    ModelRunner* llm = llm_.get();
    if (pipelined_ != nullptr) llm = pipelined_.get();
    absl::StatusOr<std::unique_ptr<Engine>> engine =
        Engine::Create(llm, ssms, &tokenizer_, std::move(options));
    if (engine.ok()) engine_ = *std::move(engine);
    return engine.status();
  }
  Engine& engine() { return *engine_; }

  absl::Status Step() {
    const absl::Status status = engine_->Step();
    EXPECT_TRUE(engine_->CheckInvariants().ok()) << engine_->CheckInvariants();
    Collect();
    return status;
  }

  void Collect() {
    for (const RequestEvent& event : engine_->TakeEvents()) {
      Answer& answer = answers_[event.id];
      EXPECT_EQ(answer.reason, FinishReason::kNone) << "an event after the last one";
      answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
      answer.text += event.text;
      if (event.finished) {
        answer.reason = event.reason;
        answer.usage = event.usage;
        answer.error = event.error;
        answer.embedding = event.embedding;
        ++finished_;
      }
    }
  }

  void RunToEnd() {
    for (int steps = 0; !engine_->idle(); ++steps) {
      ASSERT_LT(steps, 1000000) << "requests do not end";
      const absl::Status status = Step();
      ASSERT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ(engine_->statistics().kv.used, 0);
    for (const auto& kv : engine_->statistics().ssm_kv) EXPECT_EQ(kv.used, 0);
  }

  const Answer& answer(RequestId id) { return answers_[id]; }
  const std::map<RequestId, Answer>& answers() const { return answers_; }
  int finished() const { return finished_; }

 private:
  LetterTokenizer tokenizer_;
  RunnerLimits limits_;
  std::unique_ptr<FakeModelRunner> llm_;
  std::unique_ptr<PipelinedModelRunner> pipelined_;  // wraps llm_; null: one step at a time
  std::vector<std::unique_ptr<FakeModelRunner>> ssms_;
  std::unique_ptr<Engine> engine_;
  std::map<RequestId, Answer> answers_;
  int finished_ = 0;
};

// Prompts of 1 to `longest` tokens.
inline std::vector<std::vector<int>> RandomPrompts(int count, int longest, int vocabulary,
                                                   uint64_t seed) {
  std::vector<std::vector<int>> prompts(count);
  uint64_t state = seed * 2862933555777941757ull + 3037000493ull;
  const auto next = [&](int bound) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int>((state >> 33) % bound);
  };
  for (std::vector<int>& prompt : prompts) {
    for (int i = 1 + next(longest); i > 0; --i) prompt.push_back(next(vocabulary));
  }
  return prompts;
}

}  // namespace espalier
