// Loads a graph from an artifact.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/prediction/predictor.h"

namespace espalier {

// An interface, so that tests need no trained model.
class GraphLoader {
 public:
  virtual ~GraphLoader() = default;

  // Whether the artifact holds a trained graph or an ONNX file. Returns NotFound for an unknown
  // artifact.
  virtual absl::StatusOr<bool> IsGraph(const std::string& artifact) const = 0;

  struct Loaded {
    std::unique_ptr<Predictor> predictor;
    v1::ServedGraph graph;
    int64_t parameters = 0;
  };
  // Errors name the artifact: InvalidArgument if it cannot be served, ResourceExhausted, with byte
  // counts, if it does not fit.
  virtual absl::StatusOr<Loaded> Load(const std::string& artifact,
                                      const v1::GraphBatching& batching, int max_queue) const = 0;
};

}  // namespace espalier
