// Turns a submitted job into one that can be planned: checks, graph, number of steps.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"
#include "ops/graph/graph.h"
#include "ops/onnx/import.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/add_loss_and_metrics.h"
#include "server/jobs/submitted_graph.h"
#include "storage/dataset.h"
#include "storage/dataset_roots.h"

namespace espalier {

struct PreparedJob {
  Graph model;  // as submitted, with its loss
  Graph graph;  // bound; what is planned and trained
  // Initial values of the parameters, which neither graph holds. Workers read them unless there is
  // an init_folder.
  std::vector<InitialValue> initial_values;
  v1::Optimizer optimizer;                     // with defaults filled in
  std::map<std::string, std::string> columns;  // graph input -> dataset column
  int64_t batch_size = 0;  // the spec's, or that of a file which has a fixed one
  int64_t total_steps = 0;
  int64_t steps_per_epoch = 0;  // of a STREAM, which is one epoch, the most that it may have
  int64_t parameters = 0;       // trained elements
  double tokens_per_step = 0;
  // Of a dataset of format STREAM: its `columns` and `ranges`, all of them.
  v1::ExampleStream stream;
  // The examples of a text that was tokenized; null: none was. Submit keeps them (KeepTokens).
  std::shared_ptr<const Dataset> tokens;
  // The artifact whose parameters the job starts from. Stays valid if the artifact is deleted.
  std::optional<ArtifactFolder> init_folder;
  std::map<std::string, int> fused;  // rewrite rule -> times applied to `graph`
  bool evaluates = false;            // held-out examples, or those of spec.validation.dataset
  // Whether the evaluated examples behind the last full batch are evaluated, too.
  bool pad_evaluation = false;
  int64_t evaluation_examples = 0;
  int64_t validate_every = 0;  // steps between validations; 0: none before the end
  std::optional<v1::EarlyStopping> early_stopping;  // with monitor and mode filled in
  // Like `tokens`, of spec.validation.dataset.
  std::shared_ptr<const Dataset> validation_tokens;
  // Reported value -> OpDef::finish of its metric.
  std::map<std::string, double (*)(double)> finishes;
  // Of all parameters and, of an ONNX file, all floating-point initializers; sorted by name.
  std::vector<v1::ParameterUse> parameter_uses;
  // A reported output that is no mean over the batch, so that padding would change it; empty: none.
  std::string unweighted;
  std::vector<std::string> notes;  // what differs from what the user may expect, a sentence each
};

// How a session differs from a job.
struct SessionParts {
  // Instead of the spec's dataset: an outline with the columns of the client's batches. Null: the
  // spec's.
  std::shared_ptr<const Dataset> columns;
  std::vector<std::string> keep;  // computed tensors that become named outputs, too
};

// Checks each field on its own. InvalidArgument names the field and what is accepted.
absl::Status CheckSpec(const OpRegistry& registry, const v1::TrainingSpec& spec);

// Imports the ONNX file of an artifact and adds losses and metrics (AddLossAndMetrics);
// `parameters` and `report` as for ImportOnnx. Errors name the artifact and the problem.
absl::StatusOr<TrainableGraph> ImportOnnxArtifact(
    const OpRegistry& registry, const ArtifactStore& artifacts, const std::string& name,
    const Objective& objective, const LabelColumns& labels, int64_t batch,
    const std::set<std::string>& parameters = {}, ImportReport* report = nullptr);

// Returns all unsupported operators of the spec's model, each kind once; none if the model cannot
// be read.
std::vector<v1::DryRunReply::Unsupported> FindUnsupported(const OpRegistry& registry,
                                                          const ArtifactStore& artifacts,
                                                          const v1::TrainingSpec& spec);

// Maps F32 and unspecified to kF32, which leaves the graph's own types.
DType PrecisionOf(v1::DataType precision);
// Returns InvalidArgument, listing the accepted precisions, unless `precision` is one.
absl::Status CheckPrecision(v1::DataType precision, const std::string& field);

// Returns the graph to plan for a bound graph: operators fused, types converted to `precision` (see
// WithPrecision). If `fused` is not null, counts the rewrite rules used.
absl::StatusOr<Graph> GraphToPlan(const OpRegistry& registry, const Graph& bound, DType precision,
                                  std::map<std::string, int>* fused = nullptr);

// Does every check that needs no workers. Tokenizes a text whose model has a tokenizer of its own.
// With `session`, the graph is one whose named outputs are all kept (kResultsMetadata). Errors name
// the node, input or column.
absl::StatusOr<PreparedJob> PrepareJob(const OpRegistry& registry, const ArtifactStore& artifacts,
                                       const DatasetRoots& roots, const v1::TrainingSpec& spec,
                                       const SessionParts* session = nullptr);

}  // namespace espalier
