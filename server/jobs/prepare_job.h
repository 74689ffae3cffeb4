// From what a client submitted to what can be planned: checks, the graph, the number of steps.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "espalier/v1/training.pb.h"
#include "server/artifacts/artifact_store.h"
#include "worker/data/dataset.h"

namespace espalier {

struct PreparedJob {
  Graph model;                                 // as it was submitted, with its loss
  Graph graph;                                 // what is planned and trained, bound
  v1::Optimizer optimizer;                  // with what the spec left open
  std::map<std::string, std::string> columns;  // graph input -> dataset column
  int64_t total_steps = 0;
  int64_t parameters = 0;
  double tokens_per_step = 0;
  // Of the artifact whose parameters the job starts from, whatever becomes of the artifact.
  std::optional<ArtifactFolder> init_folder;
  std::map<std::string, int> fused;  // rewrite rules that `graph` comes from, and how often
  // By name of the reported value: OpDef::finish of the metric.
  std::map<std::string, double (*)(double)> finishes;
};

// The fields by themselves; InvalidArgument names the field and what is accepted.
absl::Status CheckSpec(const OpRegistry& registry, const v1::TrainingSpec& spec);

// What the workers will read, all of it checked and none of it held: Dataset::OutlineOf.
absl::StatusOr<std::shared_ptr<const Dataset>> OutlineDataset(const v1::Dataset& dataset,
                                                              const ArtifactStore& artifacts);

// The ONNX file of an artifact as a graph with `loss` and `metrics` on its first output; `batch`
// and `labels` as for AddLossAndMetrics. Errors name the artifact and what is wrong in it.
absl::StatusOr<Graph> ImportOnnxArtifact(const OpRegistry& registry, const ArtifactStore& artifacts,
                                         const std::string& name, const std::string& loss,
                                         const std::vector<std::string>& metrics, int64_t batch,
                                         DType labels);

// All operators of the spec's model that there are not, each kind once; of a model that cannot be
// read, none.
std::vector<v1::DryRunReply::Unsupported> FindUnsupported(const OpRegistry& registry,
                                                             const ArtifactStore& artifacts,
                                                             const v1::TrainingSpec& spec);

// F32, or none, leaves the types that the graph names.
DType PrecisionOf(v1::DataType precision);
// InvalidArgument says which are accepted.
absl::Status CheckPrecision(v1::DataType precision, const std::string& field);

// What is planned for a bound graph: its operators fused, in the types of `precision` (see
// WithPrecision). `fused`, if not null, counts the rewrite rules that were used.
absl::StatusOr<Graph> GraphToPlan(const OpRegistry& registry, const Graph& bound, DType precision,
                                  std::map<std::string, int>* fused = nullptr);

// Everything that can be found wrong before workers are needed. Errors name the node, input or
// column.
absl::StatusOr<PreparedJob> PrepareJob(const OpRegistry& registry, const ArtifactStore& artifacts,
                                    const v1::TrainingSpec& spec);

}  // namespace espalier
