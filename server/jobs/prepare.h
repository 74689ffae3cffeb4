// From what a client submitted to what can be planned: checks, the graph, the number of steps.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "proto/training.pb.h"
#include "server/artifacts/artifact_store.h"
#include "worker/data/dataset.h"

namespace espalier {

struct PreparedJob {
  Graph model;                                 // as it was submitted, with its loss
  Graph graph;                                 // what is trained: bound, in the job's precision
  proto::Optimizer optimizer;                  // with what the spec left open
  std::map<std::string, std::string> columns;  // graph input -> dataset column
  int64_t total_steps = 0;
  int64_t parameters = 0;
  double tokens_per_step = 0;
  // By name of the reported value: OpDef::finish of the metric.
  std::map<std::string, double (*)(double)> finishes;
};

// The fields by themselves; InvalidArgument names the field and what is accepted.
absl::Status CheckSpec(const OpRegistry& registry, const proto::TrainingSpec& spec);

// Reads the dataset as the workers will.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadDataset(const proto::Dataset& dataset,
                                                           const ArtifactStore& artifacts);

// Everything that can be found wrong before workers are needed. Errors name the node, input or
// column.
absl::StatusOr<PreparedJob> Prepare(const OpRegistry& registry, const ArtifactStore& artifacts,
                                    const proto::TrainingSpec& spec);

}  // namespace espalier
