// Gives every loss and metric of a graph the form of the prediction that it takes: logits instead
// of what a softmax or sigmoid makes of them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// Attributes that every loss or metric of classes accepts here, whether or not its operator has
// them. `from_logits` (bool): whether the prediction is logits or probabilities; without it, the
// operators before the loss say so (prediction_form.h).
constexpr char kFromLogits[] = "from_logits";

struct MatchOptions {
  // Losses and metrics among the nodes before this one stay as they are.
  NodeId first = 0;
  // Also describe losses that take the prediction as logits, as is.
  bool describe_all = false;
};

// Before a loss that applies a softmax or sigmoid of its own, a softmax, log-softmax or sigmoid of
// the model is skipped: the loss reads its input, which is exact where the logarithm of a
// probability is not. It stays in the graph for the model's outputs. Probabilities computed
// otherwise are converted. Metrics read what the loss on the same tensor reads; binary_accuracy
// without a `threshold` gets the one that suits it. An explicit `from_logits` or `threshold` holds.
//
// Returns one sentence for each loss that was changed. Returns InvalidArgument, with the remedy,
// where the graph does not say what the user means, such as a sigmoid before a softmax loss.
// `batch` serves to infer shapes.
absl::StatusOr<std::vector<std::string>> MatchPredictions(const OpRegistry& registry, int64_t batch,
                                                          const MatchOptions& options,
                                                          Graph* graph);

}  // namespace espalier
