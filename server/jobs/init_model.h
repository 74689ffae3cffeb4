// Loads the model that a job starts from: TrainingSpec.init_artifact.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {

// Returns the graph of an artifact that was trained from ONNX or a submitted graph, with its loss;
// nothing for other models. Errors name the artifact.
absl::StatusOr<std::optional<Graph>> InitGraphOfArtifact(const OpRegistry& registry,
                                                         const ArtifactStore& artifacts,
                                                         const std::string& artifact);

// Builds the training graph of a config.json for examples of `sequence_length` tokens. Returns
// InvalidArgument or Unimplemented, naming the field, for a model that training cannot build
// (BuildTraining, models/model.h).
absl::StatusOr<Graph> LanguageModelGraph(const OpRegistry& registry, const std::string& config,
                                         int64_t sequence_length);
// The same of an artifact's config.json. Returns NotFound if the artifact does not exist.
absl::StatusOr<Graph> InitGraph(const OpRegistry& registry, const ArtifactStore& artifacts,
                                const std::string& artifact, int64_t sequence_length);

// Returns the config.json of the trained model: all fields of `config`, with the data type that
// training writes. REQUIRES: `config` is a JSON object.
std::string ConfigAfterTraining(const std::string& config);
// Returns the config.json of a model trained from scratch. `tokenizer` is "bytes" or empty.
std::string ConfigFromScratch(const std::string& config, const std::string& tokenizer);

// Returns the artifact's folder if it holds every parameter of the graph in its shape and no other
// tensor. InvalidArgument names the first that differs, with both shapes.
absl::StatusOr<ArtifactFolder> InitFolder(const OpRegistry& registry,
                                          const ArtifactStore& artifacts,
                                          const std::string& artifact, const Graph& graph);

}  // namespace espalier
