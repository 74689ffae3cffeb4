#include "serving/lossless/uncached_logits.h"

#include <cstdint>
#include <numeric>

#include "serving/runner/batch_builder.h"

namespace espalier {

absl::StatusOr<std::vector<float>> UncachedLogits(ModelRunner& runner,
                                                  const std::vector<int>& tokens) {
  std::vector<int32_t> slots(tokens.size());
  std::iota(slots.begin(), slots.end(), 0);
  SequenceRows sequence{.slots = slots};
  for (size_t i = 0; i < tokens.size(); ++i) {
    sequence.rows.push_back({.token = tokens[i],
                             .position = static_cast<int32_t>(i),
                             .slot = slots[i],
                             .prefix = static_cast<int32_t>(i + 1),
                             .wants_logits = i + 1 == tokens.size()});
  }
  const absl::StatusOr<StepOutput> logits = RunRows(runner, absl::MakeConstSpan(&sequence, 1));
  if (!logits.ok()) return logits.status();
  const float* row = logits->at(0, 0);
  return std::vector<float>(row, row + runner.limits().vocabulary);
}

}  // namespace espalier
