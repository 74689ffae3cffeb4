// The part of a graph that computes its named outputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "ops/graph/graph.h"
#include "server/inference/prediction/batch_runner.h"

namespace espalier {

struct PredictionGraph {
  Graph graph;  // not bound; its outputs are those of the signature
  GraphSignature signature;
  int64_t fixed_batch = 0;  // the only batch size that the graph takes; 0: any
  int64_t parameters = 0;   // elements that the outputs depend on
  // A node that takes all examples of a batch together, as a maximum over them does; empty: none.
  std::string whole_batch;
  std::vector<std::string> notes;  // as ServedGraph.notes
};

// Keeps the named outputs that have a dimension of the batch, but no loss and no metric, and of the
// inputs those that they depend on: labels are left out. Returns InvalidArgument, with a remedy,
// for a graph without such an output, or that mixes its examples' dimension with others.
absl::StatusOr<PredictionGraph> MakePredictionGraph(const OpRegistry& registry, Graph graph);

// Lowers it to a forward program for one device: inputs are buffers of their names, outputs are in
// Program.outputs. REQUIRES: `batch` is the graph's fixed_batch, if it has one.
absl::StatusOr<v1::Program> LowerPrediction(const OpRegistry& registry,
                                            const PredictionGraph& prediction, int64_t batch);

}  // namespace espalier
