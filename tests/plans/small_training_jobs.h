// Small training jobs on real data.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "storage/dataset.h"

namespace espalier {

struct SmallTrainingJob {
  Graph graph;  // bound to `batch`, including the loss
  std::shared_ptr<const Dataset> dataset;
  int64_t batch = 0;
  std::map<std::string, std::string> columns;  // graph input -> dataset column
};

// A CNN imported from ONNX, on handwritten digits, with weights of examples.
absl::StatusOr<SmallTrainingJob> DigitsCnn(const OpRegistry& registry);

// `layers` residual convolutions on the same digits: activations take far more memory than
// parameters. Smooth activation functions: with relu, sums in another order would flip units and
// change the loss beyond rounding.
absl::StatusOr<SmallTrainingJob> DeepCnn(const OpRegistry& registry, int layers, int64_t batch);

// A LLaMA on the bytes of Genesis.
absl::StatusOr<SmallTrainingJob> SmallLlama(const OpRegistry& registry, int layers = 2,
                                            int64_t sequence = 16, int64_t batch = 8);

// The same, but labels count (are not -100) in unequal shares of examples and positions: half of
// them in the first half of a sequence, none in every fifth example.
absl::StatusOr<SmallTrainingJob> SmallLlamaWithIgnoredLabels(const OpRegistry& registry,
                                                             int layers = 2, int64_t sequence = 16,
                                                             int64_t batch = 8);

}  // namespace espalier
