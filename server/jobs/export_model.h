// The trained model as an artifact.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ops/graph/graph.h"
#include "server/artifacts/artifact_store.h"
#include "worker/checkpoint/file_system.h"

namespace espalier {

// Registers the checkpoint's parameters as MODEL artifact `name`, durably: model.safetensors and
// config.json in Hugging Face layout. A graph without a model family gets graph.pb besides (the
// graph protobuf without the bytes of its parameters), by which it can be loaded again.
absl::Status ExportModel(FileSystem* files, ArtifactStore* artifacts, const Graph& graph,
                         const std::string& checkpoint_directory, const std::string& job_id,
                         const std::string& name);

}  // namespace espalier
