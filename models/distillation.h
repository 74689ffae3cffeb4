// Knowledge distillation: training on another model's probabilities instead of tokens.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "models/model.h"

namespace espalier {

// Like BuildTraining (model.h), with the further inputs soft_tokens, i32, and soft_weights, f32,
// both [batch, sequence_length, soft_labels]. "loss" is the sum of weight * -log softmax(logits) at
// those tokens, averaged over all positions. With the teacher's probabilities as weights this is
// the distillation of Hinton, Vinyals and Dean (2015, arXiv:1503.02531). REQUIRES: soft_labels > 0.
absl::StatusOr<TrainingModel> BuildDistillation(const OpRegistry& registry,
                                                const LanguageModel& model, int64_t sequence_length,
                                                int64_t soft_labels);

}  // namespace espalier
