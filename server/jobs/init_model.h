// The model that a job starts from: TrainingSpec.init_artifact.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {

// The training graph of the artifact's own config.json, for examples of so many tokens, or of
// bytes. NotFound if there is no such artifact; InvalidArgument or Unimplemented, by field, for a
// model that training cannot build, which is all but LLaMA, and for bytes where its tokens are
// others.
absl::StatusOr<Graph> InitGraph(const OpRegistry& registry, const ArtifactStore& artifacts,
                                const std::string& artifact, int64_t sequence_length, bool bytes);

// The folder of the artifact, if it holds each parameter of the graph in its shape and no other
// tensor. InvalidArgument names the first that differs, with both shapes.
absl::StatusOr<std::string> InitFolder(const ArtifactStore& artifacts, const std::string& artifact,
                                       const Graph& graph);

}  // namespace espalier
