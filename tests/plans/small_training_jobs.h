// Two small training jobs on real data.
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
  Graph graph;  // bound to `batch`, with its loss
  std::shared_ptr<const Dataset> dataset;
  int64_t batch = 0;
  std::map<std::string, std::string> columns;  // graph input -> dataset column
};

// A CNN from an ONNX file, on handwritten digits.
absl::StatusOr<SmallTrainingJob> DigitsCnn(const OpRegistry& registry);

// A chain of `layers` residual convolutions on the same digits: activations take far more than
// parameters. Smooth: where sums are taken in another order, a relu here and there would turn over
// and lead the loss elsewhere, on some processors far beyond what rounding does.
absl::StatusOr<SmallTrainingJob> DeepCnn(const OpRegistry& registry, int layers, int64_t batch);

// A LLaMA on the bytes of Genesis.
absl::StatusOr<SmallTrainingJob> SmallLlama(const OpRegistry& registry, int layers = 2,
                                    int64_t sequence = 16, int64_t batch = 8);

}  // namespace espalier
