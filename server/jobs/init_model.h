// The model that a job starts from: TrainingSpec.init_artifact.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {

// The training graph of the artifact's own config.json, for examples of so many tokens, or of
// bytes. NotFound if there is no such artifact; InvalidArgument or Unimplemented, by field, for a
// model that training cannot build (BuildTraining, ops/models/model.h), and for bytes where its
// tokens are others.
absl::StatusOr<Graph> InitGraph(const OpRegistry& registry, const ArtifactStore& artifacts,
                                const std::string& artifact, int64_t sequence_length, bool bytes);

// What the config.json of a trained model says: all that `config` did, and the type that training
// writes. REQUIRES: `config` is a JSON object.
std::string ConfigAfterTraining(const std::string& config);
// The same for a model that is trained from nothing: with that tokenizer, "bytes" or
// none of its own.
std::string ConfigFromScratch(const std::string& config, const std::string& tokenizer);

// The folder of the artifact, if it holds each parameter of the graph in its shape and no other
// tensor. InvalidArgument names the first that differs, with both shapes.
absl::StatusOr<ArtifactFolder> InitFolder(const OpRegistry& registry,
                                          const ArtifactStore& artifacts,
                                          const std::string& artifact, const Graph& graph);

}  // namespace espalier
