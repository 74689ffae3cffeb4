// A model that speaks of another number of tokens than it has: those beyond its own it finds
// impossible, those beyond the others' it never says. Models of one tokenizer often differ so,
// because the sizes of their matrices are rounded up (Qwen2.5: 151,936 and 152,064).
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
  // As the model's; a token that it does not have is read as its first one. One step at a time.
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override;
  uint64_t cache_generation() override { return model_->cache_generation(); }
  void Abandon() override { model_->Abandon(); }

 private:
  const std::unique_ptr<ModelRunner> model_;
  const int vocabulary_;
  RunnerOutput own_;  // the model's, of the last step: its memory
};

}  // namespace espalier
