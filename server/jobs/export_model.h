// The trained model as an artifact.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "ops/graph/graph.h"
#include "server/artifacts/artifact_store.h"
#include "base/file_system.h"

namespace espalier {

struct ModelExport {
  FileSystem* files;
  ArtifactStore* artifacts;
  const OpRegistry* registry;
  const Graph* model;                // as it was submitted
  std::string checkpoint_directory;  // of its trained parameters
  std::string job_id;
  std::string name;                // of the artifact
  std::string tokenizer_artifact;  // whose files beside the weights it gets, too; empty: none
  // Asked between the steps, the last time once the files are summed up, before the model is
  // registered.
  std::function<bool()> stop;
};

// Registers the checkpoint's parameters as a MODEL artifact, durably: model.safetensors and
// config.json in Hugging Face layout, in the types that the model gives its parameters. A graph
// without a model family gets two files besides: graph.pb (the graph protobuf without the bytes of
// its parameters), by which it can be loaded again, and model.onnx, whose weights are those in
// model.safetensors. *no_onnx says why there is no model.onnx (operators that ONNX has not).
// Cancelled once `stop` says so; then nothing is registered.
absl::Status ExportModel(const ModelExport& what, std::string* no_onnx);

}  // namespace espalier
