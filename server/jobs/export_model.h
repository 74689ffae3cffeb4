// Registers a trained model as an artifact.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/file_system.h"
#include "ops/graph/graph.h"
#include "server/artifacts/artifact_store.h"
#include "storage/object_reader.h"

namespace espalier {

struct ModelExport {
  FileSystem* files;
  ObjectReader* checkpoints;
  ArtifactStore* artifacts;
  const OpRegistry* registry;
  const Graph* model;      // as submitted
  std::string checkpoint;  // folder in `checkpoints`, with the trained parameters
  std::string job_id;
  std::string name;   // of the artifact
  std::string owner;  // of the job
  // Artifacts, empty: none. The model gets the assets of the first (CopyModelAssets) and the
  // tokenizer of the second, or of the first if there is no second.
  std::string init_artifact, tokenizer_artifact;
  // Polled between steps, last after the files are hashed and before the model is registered.
  std::function<bool()> stop;
};

// Registers the checkpoint's parameters as a MODEL artifact, durably: model.safetensors and
// config.json in Hugging Face layout, in the model's parameter types. A graph without a model
// family gets two more files: graph.pb (the graph protobuf without parameter values), from which it
// can be loaded again, and model.onnx, whose weights are those in model.safetensors. If there is no
// model.onnx, *no_onnx says why (operators that ONNX lacks). If another job's model, or an uploaded
// one, has the name, this one is its next version; the result is the name under which it is
// registered. Returns Cancelled once `stop` returns true; then nothing is registered.
absl::StatusOr<std::string> ExportModel(const ModelExport& what, std::string* no_onnx);

}  // namespace espalier
