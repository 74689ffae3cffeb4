#include "server/jobs/init_model.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/models/llama.h"
#include "worker/checkpoint/file_system.h"
#include "worker/weights/weight_files.h"

namespace espalier {
namespace {

constexpr int64_t kMaxSequence = 1 << 24;

// Checkpoints of some age hold tables that follow from config.json.
constexpr char kDerived[] = ".rotary_emb.inv_freq";

absl::Status In(const std::string& artifact, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("spec.init_artifact '", artifact, "': ", status.message()));
}

// What the trained model's config.json will say: all that the artifact's does, and the type that
// training writes.
std::string ConfigAfterTraining(const std::string& config) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(config, nullptr, false);
  json["torch_dtype"] = "float32";
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<Graph> InitGraph(const OpRegistry& registry, const ArtifactStore& artifacts,
                                const std::string& artifact, int64_t sequence_length, bool bytes) {
  absl::StatusOr<std::string> folder = artifacts.Folder(artifact);
  if (!folder.ok()) return In(artifact, folder.status());
  absl::StatusOr<std::string> config = ReadModelConfig(*NewPosixFileSystem(), *folder);
  if (!config.ok()) return In(artifact, config.status());
  absl::StatusOr<LlamaConfig> llama = LlamaConfigFromJson(*config);
  if (!llama.ok()) return In(artifact, llama.status());
  if (bytes && llama->tokenizer != "bytes") {
    return In(artifact,
              absl::InvalidArgumentError(
                  "it has a tokenizer of its own, but a dataset of text is bytes; give one "
                  "of tokens (NPZ, columns \"tokens\" and \"targets\")"));
  }
  if (sequence_length < 1 || sequence_length > kMaxSequence) {
    return In(artifact,
              absl::InvalidArgumentError(absl::StrCat("examples have ", sequence_length,
                                                      " tokens, expected 1 to ", kMaxSequence)));
  }
  absl::StatusOr<Graph> graph =
      BuildLlamaTraining(registry, *llama, static_cast<int>(sequence_length));
  if (!graph.ok()) return In(artifact, graph.status());
  graph->metadata["config"] = ConfigAfterTraining(*config);
  return graph;
}

absl::StatusOr<std::string> InitFolder(const ArtifactStore& artifacts, const std::string& artifact,
                                       const Graph& graph) {
  absl::StatusOr<std::string> folder = artifacts.Folder(artifact);
  if (!folder.ok()) return In(artifact, folder.status());
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenWeights(*files, *folder);
  if (!weights.ok()) return In(artifact, weights.status());
  std::set<std::string> known;
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kParameter) continue;
    known.insert(value.name);
    const auto found = (*weights)->tensors().find(value.name);
    if (found == (*weights)->tensors().end()) {
      return In(artifact, absl::InvalidArgumentError(absl::StrCat(
                              "it has no tensor '", value.name,
                              "', which the model to be trained has, ", ToString(value.type))));
    }
    if (found->second.dims != value.type.dims) {
      return In(artifact, absl::InvalidArgumentError(absl::StrCat(
                              "tensor '", value.name, "' has shape ", ToString(found->second.dims),
                              ", the model to be trained has ", ToString(value.type.dims))));
    }
    if (!found->second.readable || !IsFloat(value.type.dtype)) {
      return In(artifact, absl::InvalidArgumentError(
                              absl::StrCat("tensor '", value.name, "' is ", found->second.dtype,
                                           ", the model to be trained has ", ToString(value.type),
                                           "; accepted: floating-point numbers for both")));
    }
  }
  for (const auto& [name, tensor] : (*weights)->tensors()) {
    if (known.count(name) > 0 || absl::EndsWith(name, kDerived)) continue;
    return In(artifact, absl::InvalidArgumentError(
                            absl::StrCat("it has a tensor '", name, "', ", ToString(tensor.dims),
                                         ", which the model to be trained has not")));
  }
  return folder;
}

}  // namespace espalier
