// Gives a model another vocabulary size: extra tokens have probability zero, missing ones are cut
// off. Models with one tokenizer often differ in size because their embedding matrices are padded
// (Qwen2.5: 151,936 and 152,064).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"

namespace espalier {

class VocabularyResizingRunner : public ModelRunner {
 public:
  VocabularyResizingRunner(std::unique_ptr<ModelRunner> model, int vocabulary)
      : model_(std::move(model)), vocabulary_(vocabulary) {}

  RunnerLimits limits() const override;
  // As the model's Step. Tokens beyond the model's vocabulary are replaced by token 0. One step at
  // a time.
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;
  uint64_t cache_generation() override { return model_->cache_generation(); }
  bool is_to_move() override { return model_->is_to_move(); }
  void Abandon() override { model_->Abandon(); }

 private:
  const std::unique_ptr<ModelRunner> model_;
  const int vocabulary_;
  RunnerOutput own_;  // of the model's last step; its memory is reused
};

}  // namespace espalier
